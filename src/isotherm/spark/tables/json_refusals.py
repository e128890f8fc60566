"""Why a JSON value cannot be in a table, without Arrow: some microseconds for a value. Pure.

Arrow's reader stops at the first value that it refuses, and starting it costs as much as a hundred
values. So what is surely refused is found here first. What is not sure is left to Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types

from isotherm.spark.tables.value_types import ValueType

# As Arrow calls them.
_JSON_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}


class _Unsure(Exception):
    """The value may change the column's type."""


def refusal(value: bytes | None, kind: ValueType, *, may_grow: bool) -> str | None:
    """The reason, or None if there is none or it is not sure. With `may_grow` a field that `kind`
    lacks makes it unsure."""
    if value is None:
        return None
    try:
        parsed = json.loads(value.decode())
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except json.JSONDecodeError as error:
        return f"it is not JSON: {error}"
    except (RecursionError, ValueError):  # also: a number with more digits than int() takes
        return None
    if parsed is None:
        return None
    if not isinstance(parsed, dict):
        return "it is not a JSON object"
    if kind is None:
        return None
    try:
        conflicts = list(_conflicts(parsed, kind, "", may_grow=may_grow))
    except (_Unsure, RecursionError):
        return None
    return conflicts[0] if conflicts else None


def _conflicts(value: object, kind: pa.DataType, path: str, *, may_grow: bool) -> Iterator[str]:
    if value is None:
        return
    found, wanted = _JSON_KINDS[type(value)], _kind_of(kind)
    if found != wanted:
        yield f"field {path} changed from {wanted} to {found}"
    elif isinstance(value, dict) and isinstance(kind, pa.StructType):
        for name, inner in value.items():
            index = kind.get_field_index(name)
            if index >= 0:
                inside = f"{path}/{name}" if path else name
                yield from _conflicts(inner, kind.field(index).type, inside, may_grow=may_grow)
            elif may_grow:
                raise _Unsure
    elif isinstance(value, list) and isinstance(kind, pa.ListType):
        for inner in value:
            yield from _conflicts(inner, kind.value_type, f"{path}/[]", may_grow=may_grow)


def _kind_of(kind: pa.DataType) -> str:
    if isinstance(kind, pa.StructType):
        return "object"
    if isinstance(kind, pa.ListType):
        return "array"
    if types.is_boolean(kind):
        return "boolean"
    return "string" if types.is_string(kind) else "number"
