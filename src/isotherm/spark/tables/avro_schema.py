"""Parses Avro schemas to read values that were written with them, with fastavro.

As Java's readers, this ignores what only matters to writers, or is invalid in a way that changes no
bytes: defaults of another type, which older registries have accepted, and invalid decimals, whose
values are bytes, as Avro's specification has it. fastavro refuses both.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import fastavro

from isotherm.spark.tables.schema_registry import RegisteredSchema

_DEFAULT, _LOGICAL_TYPE = "default", "logicalType"
_FIXED_SIZE_MAX = 2**31 - 1


class ParsedSchema(NamedTuple):
    """A schema as fastavro has it, and the types that it may refer to, by name."""

    schema: Any
    names: dict[str, Any]


def parsed_schema(schema: RegisteredSchema, *, is_plain: bool = False) -> ParsedSchema:
    """Parse a schema and its references, with `is_plain` without logical types. Raises
    SchemaParseException, ValueError, LookupError, TypeError or RecursionError for a text that is no
    schema of Avro."""
    names: dict[str, Any] = {}
    for _, text in schema.references:
        fastavro.parse_schema(_for_reading(json.loads(text), is_plain), named_schemas=names)
    own = _for_reading(json.loads(schema.text), is_plain)
    parsed = fastavro.parse_schema(own, named_schemas=names)
    return ParsedSchema(parsed, names)


def _for_reading(schema: Any, is_plain: bool) -> Any:
    """The schema without defaults, and without invalid decimals or all logical types, which it
    loses in place."""
    # Without recursion, whose limit a schema may exceed.
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            part.pop(_DEFAULT, None)
            if is_plain or (part.get(_LOGICAL_TYPE) == "decimal" and not _is_decimal(part)):
                part.pop(_LOGICAL_TYPE, None)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return schema


def _is_decimal(schema: dict[str, Any]) -> bool:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    # The exact type counts, because bool is a subclass of int.
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return False
    return 0 < precision <= _digits_max(schema)


def _digits_max(schema: dict[str, Any]) -> float:
    """The digits that all numbers of the type's bytes may have."""
    if schema.get("type") != "fixed":
        return math.inf
    size = schema.get("size")
    if type(size) is not int or not 0 < size <= _FIXED_SIZE_MAX:
        return 0
    return math.floor(math.log10(2) * (8 * size - 1))
