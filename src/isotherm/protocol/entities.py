"""Creates entities of any version from the fields of the newest version."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kio.schema.errors import ErrorCode

from isotherm.protocol.schema import SchemaField, cached_by_class, schema_fields


@cached_by_class
def _fields_by_name(entity_type: type[Any]) -> dict[str, SchemaField]:
    return {field.name: field for field in schema_fields(entity_type)}


def entity_of(entity_type: type[Any], values: Mapping[str, Any]) -> Any:
    """An entity with these fields. Fields that its version does not have are left out.

    A nested message is given as a mapping of its own fields, an array of them as an iterable of
    mappings. Fields without a default must be given, as to the class itself (TypeError).
    """
    fields = _fields_by_name(entity_type)
    return entity_type(
        **{
            name: _field_value(fields[name], value)
            for name, value in values.items()
            if name in fields
        }
    )


def _field_value(field: SchemaField, value: Any) -> Any:
    if field.entity_type is None or value is None:
        return value
    if not field.is_array:
        return entity_of(field.entity_type, value)
    items = cast("Iterable[Mapping[str, Any]]", value)
    return tuple(entity_of(field.entity_type, item) for item in items)


def blank_entity(entity_type: type[Any], values: Mapping[str, Any]) -> Any:
    """Like `entity_of`, but missing fields are null, zero or empty: for error responses."""
    given = {name: value for name, value in values.items() if name in _fields_by_name(entity_type)}
    return entity_type(
        **{
            field.name: blank_value(field, given.get(field.name))
            for field in schema_fields(entity_type)
            if field.tag is None or field.name in given
        }
    )


def blank_value(field: SchemaField, value: Any = None) -> Any:
    """`value`; if it is None, the field's null, zero or empty value."""
    if field.is_array:
        items = () if value is None else value
        if field.entity_type is None:
            return tuple(items)
        return tuple(blank_entity(field.entity_type, item) for item in items)
    if value is not None:
        return value if field.entity_type is None else blank_entity(field.entity_type, value)
    if field.is_nullable:
        return None
    if field.entity_type is not None:
        return blank_entity(field.entity_type, {})
    return _BLANKS.get(field.kafka_type or "", 0)


_EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
_BLANKS: Mapping[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(),
    "timedelta_i64": datetime.timedelta(),
    "datetime_i64": _EPOCH,
}
