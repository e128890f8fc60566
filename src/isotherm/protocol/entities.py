"""Creates entities of any version from the fields of the newest version."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kio.schema.errors import ErrorCode

from isotherm.protocol.schema import SchemaField, cached_by_class, schema_fields

_VERSIONED_MODULE = re.compile(r"(?P<package>.+)\.v\d+\.(?P<kind>\w+)")


@cached_by_class
def _fields_by_name(entity_type: type[Any]) -> dict[str, SchemaField]:
    return {field.name: field for field in schema_fields(entity_type)}


def has_field(entity_type: type[Any], name: str) -> bool:
    return name in _fields_by_name(entity_type)


def entity_of(entity_type: type[Any], values: Mapping[str, Any]) -> Any:
    """An entity with these fields. Fields that only other versions have are left out.

    A nested message is given as a mapping of its own fields, an array of them as an iterable of
    mappings, or of entities of `item_class`. Fields without a default must be given, as to the
    class itself, and a field that no version has is a mistake (TypeError).
    """
    fields = _fields_by_name(entity_type)
    _check_names(entity_type, fields, values)
    return entity_type(
        **{
            name: _field_value(fields[name], value)
            for name, value in values.items()
            if name in fields
        }
    )


def _check_names(
    entity_type: type[Any], fields: Mapping[str, SchemaField], values: Mapping[str, Any]
) -> None:
    if values.keys() <= fields.keys():
        return
    for name in values.keys() - fields.keys():
        if not _is_of_another_version(entity_type.__module__, entity_type.__name__, name):
            place = f"{entity_type.__module__}.{entity_type.__qualname__}"
            raise TypeError(
                f"no version of the message has such a field field={name} class={place}"
            )


@functools.cache
def _is_of_another_version(module_name: str, class_name: str, field_name: str) -> bool:
    """Whether another version of a message class has the field. Loads the modules of other
    versions, the newest first, until one has it.

    Kafka has renamed nested messages, so any class that this version lacks may be this one.
    """
    module = _VERSIONED_MODULE.fullmatch(module_name)
    if module is None:
        return False
    own = _messages(module_name).keys() - {class_name}
    package = importlib.import_module(module["package"])
    versions = (module.name for module in pkgutil.iter_modules(package.__path__))
    for version in sorted(versions, key=lambda name: int(name[1:]), reverse=True):
        others = _messages(f"{module['package']}.{version}.{module['kind']}")
        if any(field_name in others[name] for name in others.keys() - own):
            return True
    return False


def _messages(module_name: str) -> Mapping[str, frozenset[str]]:
    """The names of the fields of each message class of a module."""
    return {
        name: frozenset(field.name for field in dataclasses.fields(message))
        for name, message in vars(importlib.import_module(module_name)).items()
        if isinstance(message, type) and dataclasses.is_dataclass(message)
    }


def _field_value(field: SchemaField, value: Any) -> Any:
    if field.entity_type is None or value is None:
        return value
    if not field.is_array:
        return entity_of(field.entity_type, value)
    items = cast("Iterable[Mapping[str, Any]]", value)
    item_type = field.entity_type
    return tuple(
        item if isinstance(item, item_type) else entity_of(item_type, item) for item in items
    )


def item_class(entity_type: type[Any], name: str) -> type[Any]:
    """The class of the items of an array of messages."""
    item_type = _fields_by_name(entity_type)[name].entity_type
    assert item_type is not None
    return item_type


def blank_entity(entity_type: type[Any], values: Mapping[str, Any]) -> Any:
    """Like `entity_of`, but missing fields are null, zero or empty, and unknown fields are ignored.
    Error responses of all APIs are built with it."""
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
