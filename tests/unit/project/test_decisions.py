"""docs/decisions: each record has the parts that the README promises, and the index is what the
records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.decision_index import (
    DECISIONS,
    MARK,
    PARTS,
    README,
    RecordError,
    index_of,
    page_of,
    read_record,
    read_records,
)

RECORD = """\
# 7. A title

Part: log

**Context.** Why.

**Decision.** {decision}

**Rejected.** What else.
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "0007-a-title.md"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(DECISIONS.glob("[0-9]*.md")), ids=lambda path: path.name)
def test_record_is_whole(path: Path) -> None:
    assert read_record(path).effect


def test_index_is_what_the_records_say() -> None:
    page = README.read_text(encoding="utf-8")
    assert page == page_of(page, read_records()), "run: python scripts/decision_index.py"


def test_index_has_every_page() -> None:
    index = README.read_text(encoding="utf-8").partition(MARK)[2]
    pages = {path.name for path in DECISIONS.glob("*.md")} - {README.name}
    assert pages == {name for name in pages if f"({name})" in index}
    assert [part for part in PARTS if f"\n## {part[0].upper()}{part[1:]}\n\n- " not in index] == []


@pytest.mark.parametrize(
    ("decision", "effect"),
    [
        ("One thing. Another.", "One thing."),
        ("A file has `a.b`:\n\n- and more", "A file has `a.b`."),
        ("- *Order.* The *first* one. More.\n- *Second.* More.", "The first one."),
        ("- *A label that is a sentence.* More.", "A label that is a sentence."),
    ],
)
def test_effect_is_the_first_sentence(tmp_path: Path, decision: str, effect: str) -> None:
    record = read_record(written(tmp_path, RECORD.format(decision=decision)))
    assert record.effect == effect
    assert f"- 7. [A title](0007-a-title.md): {effect}\n\n" in index_of([record])
    assert "Not used: 1, 2, 3, 4, 5, 6." in index_of([record])


def test_effect_of_a_replaced_record_names_the_other(tmp_path: Path) -> None:
    text = RECORD.format(decision="One thing.").replace(
        "**Context", "Replaced by [9](0009-x.md).\n\n**Context"
    )
    assert read_record(written(tmp_path, text)).effect == "Replaced by [9](0009-x.md)."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# 7.", "# 8.", "0007-a-title.md: the first line has to be '# 7. TITLE'"),
        ("Part: log", "Part: logs", "0007-a-title.md: the third line has to be 'Part: NAME'"),
        ("**Rejected.**", "Or", "0007-a-title.md: no text under Rejected"),
        ("**Context.** Why.", "## Context", "0007-a-title.md: no text under Context"),
    ],
)
def test_record_that_lacks_a_part_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = written(tmp_path, RECORD.format(decision="One thing.").replace(old, new))
    with pytest.raises(RecordError) as error:
        read_record(path)
    assert str(error.value).startswith(message)
