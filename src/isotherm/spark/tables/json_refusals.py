"""Finds the reason why a JSON value cannot be in a table, without Arrow, in some microseconds per value. Pure.

Arrow's reader stops at the first value that it refuses, and starting it costs as much as reading a hundred
values. So values that are certainly refused are found here first. Doubtful ones are left to Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyarrow import types

from isotherm.spark.tables.value_types import ValueType, twin_reason

# Arrow's names of JSON types.
_JSON_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_LONGS = range(-(2**63), 2**63)


class _Unsure(Exception):
    """The value may change the column's type, so Arrow must decide."""


class _Grows(NamedTuple):
    """The changes that the column's type still allows: new fields, and doubles instead of whole numbers."""

    fields: bool
    numbers: bool


class _Refused(Exception):
    """The value is refused. The message is the reason."""


def refusal(
    value: bytes | None, kind: ValueType, *, may_grow: bool, may_widen: bool = False
) -> str | None:
    """The reason why a value is refused. None if it is not, or if that is uncertain. It is uncertain with
    `may_grow` if `kind` lacks a field, and with `may_widen` if a number does not fit into whole numbers."""
    if value is None:
        return None
    try:
        parsed = json.loads(value.decode(), object_pairs_hook=_fields)
        if parsed is None:
            return None
        if not isinstance(parsed, dict):
            return "it is not a JSON object"
        # Python's json takes half of a surrogate pair for text. Arrow fails on such a name.
        if b"\\u" in value:
            json.dumps(parsed, ensure_ascii=False).encode()
        _check_names(parsed)
        grows = _Grows(may_grow, may_widen)
        conflicts = [] if kind is None else list(_conflicts(parsed, kind, "", grows))
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except UnicodeEncodeError:
        return "half of a surrogate pair is no text"
    except json.JSONDecodeError as error:
        return f"it is not JSON: {error}"
    except _Refused as refused:
        return str(refused)
    except (
        RecursionError,
        ValueError,
        _Unsure,
    ):  # ValueError also for a number with more digits than int() accepts
        return None
    return conflicts[0] if conflicts else None


def _fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"field {twice} was specified twice")
    return found


def _check_names(value: object) -> bool:
    """Whether the value has a type (see `column_type`). Raises _Refused for field names that it refuses."""
    if isinstance(value, dict):
        typed = [name for name, inner in value.items() if _check_names(inner)]
        for name in typed:
            if not name or "." in name:
                raise _Refused(f"a column cannot have this name field={name!r}")
        return bool(typed)
    if isinstance(value, list):
        typed_count = sum(_check_names(inner) for inner in value)
        return typed_count > 0
    return value is not None


def _conflicts(value: object, kind: pa.DataType, path: str, grows: _Grows) -> Iterator[str]:
    if value is None:
        return
    found, wanted = _JSON_KINDS[type(value)], _kind_of(kind)
    if found != wanted:
        yield f"field {path} changed from {wanted} to {found}"
    elif types.is_int64(kind):
        yield from _lost_digits(value, path, grows)
    elif isinstance(value, dict) and isinstance(kind, pa.StructType):
        for name, inner in value.items():
            inside = f"{path}/{name}" if path else name
            yield from _conflicts_of_field(name, inner, kind, inside, grows)
    elif isinstance(value, list) and isinstance(kind, pa.ListType):
        for inner in value:
            yield from _conflicts(inner, kind.value_type, f"{path}/[]", grows)


def _conflicts_of_field(
    name: str, value: object, beside: pa.StructType, path: str, grows: _Grows
) -> Iterator[str]:
    index = beside.get_field_index(name)
    if index >= 0:
        yield from _conflicts(value, beside.field(index).type, path, grows)
    elif _check_names(value) and (first := _in_other_case(name, beside)) is not None:
        yield twin_reason(path, first)
    elif grows.fields:
        raise _Unsure


def _in_other_case(name: str, kind: pa.StructType) -> str | None:
    return next((field.name for field in kind if field.name.lower() == name.lower()), None)


def _lost_digits(value: object, path: str, grows: _Grows) -> Iterator[str]:
    if isinstance(value, int) and value in _LONGS:
        return
    if grows.numbers:
        raise _Unsure
    yield f"field {path} is not a whole number of 64 bits"


def _kind_of(kind: pa.DataType) -> str:
    if isinstance(kind, pa.StructType):
        return "object"
    if isinstance(kind, pa.ListType):
        return "array"
    if types.is_boolean(kind):
        return "boolean"
    return "string" if types.is_string(kind) else "number"
