"""The format string of `isotherm consume`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from isotherm.cli.consume import _print_record, formatted
from isotherm.cli.dump_log import _record_row
from isotherm.cli.output import print_rows
from isotherm.record.batch import Record

FIELDS = {"t": "flights", "p": 0, "o": 7, "T": 5, "k": "a %s key", "s": "%k %o \\n"}


@pytest.mark.parametrize(
    ("record_format", "line"),
    [
        ("%t/%p/%o/%T", "flights/0/7/5"),
        # A mark in a key or a value is not replaced.
        ("%k|%s", "a %s key|%k %o \\n"),
        (r"%o\t%k\n", "7\ta %s key\n"),
        ("100%% %o %x", "100% 7 %x"),
    ],
)
def test_marks_are_replaced_once(record_format: str, line: str) -> None:
    assert formatted(record_format, FIELDS) == line


def test_missing_key_is_nothing() -> None:
    assert formatted("[%k]", {**FIELDS, "k": None}) == "[]"


def test_headers_of_one_name_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    expected = [{"key": "a", "value": "1"}, {"key": "b", "value": None}, {"key": "a", "value": "2"}]
    message = SimpleNamespace(
        topic=lambda: "flights",
        partition=lambda: 0,
        offset=lambda: 7,
        timestamp=lambda: (1, 5),
        key=lambda: None,
        value=lambda: b"v",
        headers=lambda: headers,
    )
    _print_record(message, "%s", as_json=True)
    assert json.loads(capsys.readouterr().out)["headers"] == expected

    record = Record(7, 5, None, b"v", tuple(headers))
    row = _record_row(record, lambda _: (None, "v"))
    assert row["headers"] == expected
    print_rows(["headers"], [row], as_json=False)
    assert "a=1, b=None, a=2" in capsys.readouterr().out
