"""Finds the reason why a JSON value cannot be in a table, without Arrow, in some microseconds per
value. Pure.

Arrow's reader stops at the first value that it refuses, and starting it costs as much as reading a
hundred values. So values that are certainly refused are found here first. Doubtful ones are left to
Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
from pyarrow import types

from isotherm.spark.tables.json_numbers import OtherText, WholeText
from isotherm.spark.tables.value_types import (
    LEVELS_MAX,
    REPEATED_LEVELS_MAX,
    ValueType,
    mark_of,
    marked,
    name_reason,
    twin_reason,
)

# Arrow's names of JSON types.
_JSON_KINDS: dict[type, str] = {
    bool: "boolean",
    WholeText: "number",
    OtherText: "number",
    str: "string",
    dict: "object",
    list: "array",
}


class _Unsure(Exception):
    """The value may change the column's type, so Arrow must decide."""


class _Rules(NamedTuple):
    """The changes that the column's type still allows: new fields, and doubles instead of whole
    numbers. If `is_form_free`, 3.0 is a whole number."""

    grows: bool
    widens: bool
    is_form_free: bool


class _Refused(Exception):
    """The value is refused. The message is the reason."""


def refusal(
    value: bytes | None,
    kind: ValueType,
    *,
    may_grow: bool,
    may_widen: bool = False,
    is_form_free: bool = False,
) -> str | None:
    """The reason why a value is refused. None if it is not, or if that is uncertain. It is
    uncertain with `may_grow` if `kind` lacks a field, and with `may_widen` if a number does not fit
    into whole numbers. With `is_form_free`, 3.0 is a whole number."""
    if value is None:
        return None
    try:
        parsed = json.loads(
            value.decode(),
            object_pairs_hook=_fields,
            parse_int=WholeText,
            parse_float=OtherText,
            parse_constant=_no_number,
        )
        if parsed is None:
            return None
        if not isinstance(parsed, dict):
            return "it is not a JSON object"
        # Python's json takes half of a surrogate pair for text. Arrow fails on such a name.
        if b"\\u" in value:
            json.dumps(parsed, ensure_ascii=False).encode()
        _check_fields(parsed)
        return _reason(parsed, kind, _Rules(may_grow, may_widen, is_form_free))
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except UnicodeEncodeError:
        return "half of a surrogate pair is no text"
    except json.JSONDecodeError as error:
        return f"it is not JSON: {error}"
    except _Refused as refused:
        return str(refused)
    except RecursionError:
        return None


def _reason(parsed: object, kind: ValueType, rules: _Rules) -> str | None:
    try:
        conflicts = (
            [] if kind is None else list(_conflicts(parsed, marked("", kind, None), "", rules))
        )
    except _Unsure:
        conflicts = []
    if rules.grows and not conflicts:
        _check_numbers(parsed, "", rules)
    return conflicts[0] if conflicts else None


def _no_number(name: str) -> NoReturn:
    raise _Refused(f"it is not JSON: {name} is no number")


def _fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"field {twice} was specified twice")
    return fields


def _check_fields(value: object, levels: int = 0, arrays: int = 0) -> bool:
    """Whether the value has a type (see `column_type`). It is inside so many objects and arrays.
    Raises _Refused for names and levels that no column has."""
    if isinstance(value, dict):
        typed = [name for name, inner in value.items() if _check_fields(inner, levels + 1, arrays)]
        for name in typed:
            reason = name_reason(name)
            if reason is not None:
                raise _Refused(reason)
        return bool(typed)
    if isinstance(value, list):
        typed_count = sum(_check_fields(inner, levels + 1, arrays + 1) for inner in value)
        return typed_count > 0
    if value is None:
        return False
    if arrays > REPEATED_LEVELS_MAX:
        raise _Refused(f"arrays are nested deeper than {REPEATED_LEVELS_MAX}")
    if levels > LEVELS_MAX:
        raise _Refused(f"objects and arrays are nested deeper than {LEVELS_MAX}")
    return True


def _check_numbers(value: object, path: str, rules: _Rules) -> None:
    """Raise _Refused for a number that no column has, whatever its type."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(inner, f"{path}/{name}" if path else name, rules)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, f"{path}/[]", rules)
    elif isinstance(value, WholeText | OtherText) and not (
        _is_long(value, rules) or value.is_double()
    ):
        raise _Refused(_in_no_double(path))


def _conflicts(value: object, column: pa.Field[Any], path: str, rules: _Rules) -> Iterator[str]:
    if value is None:
        return
    kind = column.type
    actual, expected = _JSON_KINDS[type(value)], _kind_of(kind)
    if actual != expected:
        yield f"field {path} changed from {expected} to {actual}"
    elif isinstance(value, WholeText | OtherText):
        yield from _lost_digits(value, column, path, rules)
    elif isinstance(value, dict) and isinstance(kind, pa.StructType):
        for name, inner in value.items():
            inside = f"{path}/{name}" if path else name
            yield from _conflicts_of_field(name, inner, kind, inside, rules)
    elif isinstance(value, list) and isinstance(kind, pa.ListType):
        for inner in value:
            yield from _conflicts(inner, kind.value_field, f"{path}/[]", rules)


def _conflicts_of_field(
    name: str, value: object, beside: pa.StructType, path: str, rules: _Rules
) -> Iterator[str]:
    index = beside.get_field_index(name)
    if index >= 0:
        yield from _conflicts(value, beside.field(index), path, rules)
    elif _check_fields(value) and (first := _in_other_case(name, beside)) is not None:
        yield twin_reason(path, first)
    elif rules.grows:
        raise _Unsure


def _in_other_case(name: str, kind: pa.StructType) -> str | None:
    return next((field.name for field in kind if field.name.lower() == name.lower()), None)


def _lost_digits(
    value: WholeText | OtherText, column: pa.Field[Any], path: str, rules: _Rules
) -> Iterator[str]:
    if not types.is_int64(column.type):
        if not value.is_double():
            yield _in_no_double(path)
    elif not _is_long(value, rules):
        if rules.widens and mark_of(column) is None and value.is_double():
            raise _Unsure
        yield f"field {path} is not a whole number of 64 bits"


def _is_long(value: WholeText | OtherText, rules: _Rules) -> bool:
    return (rules.is_form_free or isinstance(value, WholeText)) and value.is_long()


def _in_no_double(path: str) -> str:
    return f"field {path} has a number that no double is exactly"


def _kind_of(kind: pa.DataType) -> str:
    if isinstance(kind, pa.StructType):
        return "object"
    if isinstance(kind, pa.ListType):
        return "array"
    if types.is_boolean(kind):
        return "boolean"
    return "string" if types.is_string(kind) else "number"
