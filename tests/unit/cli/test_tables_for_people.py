"""Tables in a terminal: what fits, and values with units."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from rich.console import Console

from isotherm.cli import output
from isotherm.cli.output import duration, fitting_columns, human_row, print_rows

COLUMNS = ["topic", "size_in_bytes", "deletion_retention_seconds_max", "segment_identifier"]
ROWS: list[dict[str, Any]] = [
    {
        "topic": "flights-of-the-last-thirty-years",
        "size_in_bytes": 12345678901234,
        "deletion_retention_seconds_max": 7,
        "segment_identifier": "x" * 22,
    }
]


def test_last_columns_are_left_out_first() -> None:
    widths = {"a": 10, "b": 5, "c": 5}
    for room in range(60):
        shown = fitting_columns(widths, room)
        assert shown == list(widths)[: len(shown)]
        assert len(shown) >= 1
        whole = sum(widths[each] for each in shown) + 3 * len(shown) - 2
        assert len(shown) == 1 or whole <= room
    assert fitting_columns(widths, 60) == list(widths)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        output, "console", lambda: Console(width=width, highlight=False, markup=False)
    )
    print_rows(COLUMNS, ROWS, as_json=False)
    printed = capsys.readouterr().out
    assert all(len(line) <= width for line in printed.splitlines())
    _, _, rest = " ".join(printed.split()).partition("The terminal is too narrow for: ")
    left_out = [each for each in COLUMNS if each.replace("_", " ") in rest]
    words = set(itertools.chain.from_iterable(each.split("_") for each in COLUMNS))
    head = printed.partition("\u2501")[0].replace("\u2503", " ").split()
    assert set(head) <= words
    assert ("12345678901234" in printed) == ("size_in_bytes" not in left_out)
    assert len(left_out) == {20: 3, 40: 2, 60: 1, 80: 0, 120: 0}[width]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("log_bytes", 1536, "1.5 KiB"),
        ("bytes", 12, "12 B"),
        ("size_in_bytes", None, None),
        ("event_timestamp_ms", 1_700_000_000_000, "2023-11-14 22:13:20"),
        ("grace_ms", 90_000, "1.5 min"),
        ("segments", 1536, 1536),
    ],
)
def test_values_have_units_by_the_ends_of_their_names(name: str, value: Any, text: Any) -> None:
    assert human_row({name: value}) == {name: text}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250 ms"), (1, "1 s"), (5400, "1.5 h"), (172_800, "2 d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
