"""Makes the index in docs/decisions/README.md from the records.

    python scripts/decision_index.py

Under its title a record has a line `Part: NAME`, the part of the system that it is about. Its line
in the index is the first sentence of its decision, or says which record replaces it. A test fails
while the index is not what the records say.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

DECISIONS: Final = Path(__file__).parents[1] / "docs" / "decisions"
README: Final = DECISIONS / "README.md"
MARK: Final = "<!-- The rest is made by scripts/decision_index.py. -->\n"
# In the order of the index.
PARTS: Final = (
    "formats and protocol",
    "kernels",
    "broker",
    "cluster",
    "groups and transactions",
    "log",
    "remote tier",
    "remote log metadata",
    "Spark",
    "tables",
    "console and command line",
    "installation and configuration",
    "tests and benchmarks",
)
HEADINGS: Final = ("Context", "Decision", "Rejected")
_EFFECT_LENGTH_MAX: Final = 220
_HEADING = re.compile(r"^(?:## (.+)|\*\*([A-Z][\w ]*)\.\*\*)", re.MULTILINE)
_SENTENCE = re.compile(r"(.+?[.:])(?=\s+[A-Z`*\[\d-]|\s*$)", re.DOTALL)
_EMPHASIS = re.compile(r"(?<![`\w*])\*([^*]+)\*(?![`\w*])")
_LABEL = re.compile(r"\*([^*]+)[.:]\*\s*")
_LABEL_WORDS_MIN: Final = 5


class RecordError(Exception):
    """A record lacks something. The message names the file and what it lacks."""


class Record(NamedTuple):
    number: int
    file_name: str
    title: str
    part: str
    effect: str


def read_record(path: Path) -> Record:
    """Raises RecordError if the page does not have the form of a record."""
    text = path.read_text(encoding="utf-8")
    title = re.match(rf"# {int(path.name[:4])}\. (.+)\n", text)
    if title is None:
        raise RecordError(f"{path.name}: the first line has to be '# {int(path.name[:4])}. TITLE'")
    part = re.match(r"\nPart: (.+)\n\n", text[title.end() :])
    if part is None or part[1] not in PARTS:
        raise RecordError(
            f"{path.name}: the third line has to be 'Part: NAME' with one of: {', '.join(PARTS)}"
        )
    sections = _sections(text)
    missing = [heading for heading in HEADINGS if not sections.get(heading)]
    if missing:
        raise RecordError(f"{path.name}: no text under {', '.join(missing)}")
    replaced = re.match(r"Replaced by .+?(?=\n\n)", text[title.end() + part.end() :], re.DOTALL)
    effect = _first_sentence(replaced[0] if replaced else sections["Decision"])
    return Record(int(path.name[:4]), path.name, title[1], part[1], effect)


def read_records() -> list[Record]:
    return [read_record(path) for path in sorted(DECISIONS.glob("[0-9]*.md"))]


def index_of(records: list[Record]) -> str:
    """The index, with a list for each part."""
    lines = []
    for part in PARTS:
        lines += [f"## {part[0].upper()}{part[1:]}", ""]
        for number, file_name, title, of_part, effect in records:
            if of_part == part:
                lines.append(f"- {number}. [{title}]({file_name}): {effect}")
        lines.append("")
    numbers = {record.number for record in records}
    unused = [str(number) for number in range(1, max(numbers)) if number not in numbers]
    return "\n".join([*lines, f"Not used: {', '.join(unused)}.", ""])


def page_of(readme: str, records: list[Record]) -> str:
    """The page with the index in the place of what is after the mark."""
    introduction, mark, _ = readme.partition(MARK)
    if not mark:
        raise RecordError(f"{README.name}: no line {MARK!r}")
    return f"{introduction}{mark}\n{index_of(records)}"


def _sections(text: str) -> dict[str, str]:
    """The text under each heading, in either of the two forms that headings have."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading[1] or heading[2]: text[heading.end() : end].strip()
        for heading, end in zip(headings, ends, strict=True)
    }


def _first_sentence(decision: str) -> str:
    """The first sentence, or the label of a first point that is a sentence itself."""
    paragraph = re.split(r"\n\s*\n|\n(?=- )", decision.removeprefix("- "))[0]
    text = " ".join(paragraph.replace("**", "").split())
    label = _LABEL.match(text)
    if label is not None:
        if len(label[1].split()) >= _LABEL_WORDS_MIN:
            return f"{label[1]}."
        text = text[label.end() :]
    sentence = _SENTENCE.match(text)
    effect = _EMPHASIS.sub(r"\1", sentence[1] if sentence else text)
    if len(effect) > _EFFECT_LENGTH_MAX:
        cut = effect[:_EFFECT_LENGTH_MAX]
        effect = (cut.rpartition(", ")[0] or cut.rpartition(" ")[0]) + " …"
    return effect[:-1] + "." if effect.endswith(":") else effect


if __name__ == "__main__":
    README.write_text(page_of(README.read_text(encoding="utf-8"), read_records()), encoding="utf-8")
