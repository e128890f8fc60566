"""The lines of `isotherm consume`: as JSON, as bytes for a pipe, and as text for a terminal."""

from __future__ import annotations

import base64
import json
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.cli.consume import formatted, json_line, nearest_offset, text_line
from isotherm.cli.dump_log import _record_row
from isotherm.cli.output import print_rows
from isotherm.cli.shown_bytes import terminal_text
from isotherm.record.batch import Record

FIELDS = {
    b"t": b"flights",
    b"p": b"0",
    b"o": b"7",
    b"T": b"5",
    b"k": b"a %s key",
    b"s": b"%k %o \\n",
}
ODD = [
    b"",
    b"text",
    b"\xff",
    rb"\xff",
    b"\\",
    b"/w==",
    "\u2028\N{GRINNING FACE}\x00\x9b".encode(),
    b"\xed\xa0\x80",
    b"\xc0\x80",
]  # fmt: skip


def headers_of(given: Any) -> Any:
    return given.headers() or ()


def message(
    key: bytes | None = None,
    value: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> Any:
    return SimpleNamespace(
        topic=lambda: "flights",
        partition=lambda: 0,
        offset=lambda: 7,
        timestamp=lambda: (1, 5),
        key=lambda: key,
        value=lambda: value,
        headers=lambda: headers,
    )


def decoded(text: str | None, encoding: str | None) -> bytes | None:
    """The bytes, by what `--json` says of its texts."""
    if text is None:
        assert encoding is None
        return None
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode(encoding)


@pytest.mark.parametrize(
    ("record_format", "line"),
    [
        (b"%t/%p/%o/%T", b"flights/0/7/5"),
        # A mark in a key or a value is not replaced.
        (b"%k|%s", b"a %s key|%k %o \\n"),
        (rb"%o\t%k\n", b"7\ta %s key\n"),
        (b"100%% %o %x", b"100% 7 %x"),
    ],
)
def test_marks_are_replaced_once(record_format: bytes, line: bytes) -> None:
    assert formatted(record_format, FIELDS) == line


def test_missing_key_is_nothing() -> None:
    assert formatted(b"[%k]", {**FIELDS, b"k": None}) == b"[]"


@given(st.none() | st.binary() | st.sampled_from(ODD), st.booleans())
def test_bytes_are_decoded_from_json_as_they_were(data: bytes | None, as_base64: bool) -> None:
    line = json_line(headers_of, as_base64=as_base64)(message(data, data, [("h", data)]))
    assert not any(unicodedata.category(letter) == "Cc" for letter in line.decode())
    row = json.loads(line)
    (header,) = row["headers"]
    assert decoded(row["key"], row["key_encoding"]) == data
    assert decoded(row["value"], row["value_encoding"]) == data
    assert decoded(header["value"], header["encoding"]) == data
    assert not as_base64 or row["value_encoding"] == (None if data is None else "base64")

    dumped = json.loads(
        json.dumps(
            _record_row(Record(7, 5, data, data, (("h", data),)), as_value, [], as_json=True)
        )
    )
    (header,) = dumped["headers"]
    assert decoded(dumped["key"], dumped["key_encoding"]) == data
    assert decoded(dumped["value"], dumped["value_encoding"]) == data
    assert decoded(header["value"], header["encoding"]) == data


def as_value(record: Record) -> bytes | None:
    return record.value


@pytest.mark.parametrize("data", ODD)
def test_pipe_gets_the_bytes(data: bytes) -> None:
    assert (
        text_line("%k|%s", as_base64=False, for_terminal=False)(message(data, data))
        == data + b"|" + data
    )
    in_base64 = text_line("%s", as_base64=True, for_terminal=False)(message(None, data))
    assert base64.b64decode(in_base64, validate=True) == data


def test_terminal_gets_no_control_characters() -> None:
    line_of = text_line("%s", as_base64=False, for_terminal=True)
    assert line_of(message(None, b"a\tb\nc")) == b"a\tb\nc"
    assert (
        line_of(message(None, b"\x1b]0;title\x07\r\xff\xc2\x9b"))
        == rb"\x1b]0;title\x07\x0d\xff\x9b"
    )
    assert terminal_text("Ä日本".encode()) == "Ä日本"


@pytest.mark.parametrize(("offset", "start"), [(0, 3), (3, 3), (4, 4), (9, 9), (10, 10), (50, 10)])
def test_offset_outside_a_log_is_its_nearest_end(offset: int, start: int) -> None:
    assert nearest_offset(offset, first=3, end=10) == start


def test_headers_of_one_name_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    row = json.loads(json_line(headers_of, as_base64=False)(message(headers=headers)))
    assert [(each["key"], each["value"]) for each in row["headers"]] == [
        ("a", "1"),
        ("b", None),
        ("a", "2"),
    ]

    shown = _record_row(Record(7, 5, None, b"v", tuple(headers)), as_value, [], as_json=False)
    print_rows(["headers"], [shown], as_json=False)
    assert "a=1, b=None, a=2" in capsys.readouterr().out
