"""Making an entity of whichever version was asked for from the fields of the newest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from isotherm.protocol.schema import SchemaField, cached_by_class, schema_fields


@cached_by_class
def _fields_by_name(entity_type: type[Any]) -> dict[str, SchemaField]:
    return {field.name: field for field in schema_fields(entity_type)}


def entity_of(entity_type: type[Any], values: Mapping[str, Any]) -> Any:
    """An entity with these fields; those that its version does not have are left out.

    A nested message is given as a mapping of its own fields, an array of them as an iterable of
    mappings. A field that has no default must be given, as to the class itself (TypeError).
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
