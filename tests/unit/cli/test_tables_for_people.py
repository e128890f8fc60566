"""Tables in a terminal: what fits, and values with units."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from rich.console import Console

from isotherm.cli import output
from isotherm.cli.output import duration, fitting_columns, human_row, print_rows, print_stream

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
        whole = sum(widths[each] for each in shown) + 3 * (len(shown) - 1)
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
        ("max_timestamp", 1_700_000_000_000, "2023-11-14 22:13:20"),
        ("timestamp", -1, None),
        ("delete_horizon_ms", 1_700_000_000_000, "2023-11-14 22:13:20"),
        ("size", 1536, "1.5 KiB"),
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


def test_headers_are_whole_at_each_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["base_offset", "last_offset", "crc_valid", "leader_epoch", "producer_id"]
    for width in range(16, 60):
        table = Console(width=width, highlight=False, markup=False)
        monkeypatch.setattr(output, "console", lambda table=table: table)
        print_rows(columns, [dict.fromkeys(columns, 1)], as_json=False)
        head = capsys.readouterr().out.partition("\u2501")[0].replace("\u2503", " ").split()
        assert set(head) <= set(
            itertools.chain.from_iterable(column.split("_") for column in columns)
        )


def test_quantities_are_aligned_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(width=80, highlight=False, markup=False))
    rows = [human_row({"bytes": size, "name": "a"}) for size in (1, 1536)]
    print_rows(["bytes", "name"], rows, as_json=False)
    assert [line.split("\u2502")[0] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "     1 B ",
        " 1.5 KiB ",
    ]
    print_stream(["size", "name"], [{"size": 1}, {"size": 1536}], as_json=False)
    assert capsys.readouterr().out.splitlines() == ["   size  name", "    1 B", "1.5 KiB"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_line_of_a_stream_is_wider_than_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        output, "console", lambda: Console(width=width, highlight=False, markup=False)
    )
    print_stream(["name", *COLUMNS], [{"name": "n", **each} for each in ROWS], as_json=False)
    head, row, *notice = capsys.readouterr().out.splitlines()
    assert max(len(head), len(row)) <= width
    assert ("x" * 22 in row) == (not notice)
    assert bool(notice) == (width < 120)


@pytest.mark.parametrize(
    "timestamp_ms", [1_700_000_000_000_000_000, -(2**63), 2**63 - 1, 253_402_300_800_000]
)
def test_time_beyond_the_calendar_stays_a_number(timestamp_ms: int) -> None:
    assert human_row({"timestamp": timestamp_ms}) == {"timestamp": timestamp_ms}
