"""Replaces fields of JSON values by null. All other bytes of a value stay as they were: no number
is rounded, and no member moves."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TypeAlias

_SPACE = re.compile(r"[ \t\n\r]*")
# Numbers stay texts: Python refuses integers of thousands of digits, and JSON has no bound.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)
_NULL = "null"

FieldPath: TypeAlias = tuple[str, ...]
"""The names of members from the outermost one on. A list on the way stands for each of its
elements."""


def parse_field(text: str) -> FieldPath:
    """The path of `user.name`. Raises ValueError for an empty name."""
    path = tuple(text.split("."))
    if not all(path):
        raise ValueError(f"a field has an empty name field={text!r}")
    return path


def redacted(value: bytes, fields: Sequence[FieldPath]) -> bytes:
    """The value with each of the fields that it has replaced by null. A member that occurs twice is
    replaced twice. Raises ValueError if it is not JSON in UTF-8."""
    try:
        text = value.decode()
        _DECODER.decode(text)
        spans: set[tuple[int, int]] = set()
        for path in fields:
            _find(text, _skip(text, 0), path, spans)
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    parts, end = [], 0
    for start, stop in sorted(spans):
        if start < end:
            continue  # inside of a field that is replaced as a whole
        parts += [text[end:start], _NULL]
        end = stop
    return "".join([*parts, text[end:]]).encode()


def _find(text: str, at: int, path: FieldPath, spans: set[tuple[int, int]]) -> int:
    """Add the places of the field below the value at `at`. Returns where that value ends. The text
    is valid JSON."""
    if not path:
        end = _DECODER.raw_decode(text, at)[1]
        if text[at:end] != _NULL:
            spans.add((at, end))
        return end
    if text[at] == "{":
        at = _skip(text, at + 1)
        while text[at] != "}":
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # the colon
            if name == path[0]:
                at = _find(text, at, path[1:], spans)
            else:
                at = _DECODER.raw_decode(text, at)[1]
            at = _after_comma(text, at)
        return at + 1
    if text[at] == "[":
        at = _skip(text, at + 1)
        while text[at] != "]":
            at = _after_comma(text, _find(text, at, path, spans))
        return at + 1
    return _DECODER.raw_decode(text, at)[1]


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
