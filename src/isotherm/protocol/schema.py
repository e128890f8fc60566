"""The fields of a message class in kio's style, in the form that the codec compiles from.

Such a class is a dataclass with `__flexible__` (KIP-482 encoding or not). Its fields have
`metadata={"kafka_type": ..., "tag": ...}`: no kafka_type for a nested class, a tag only for tagged
fields. `X | None` is a nullable field, `tuple[X, ...]` an array of X, `tuple[X, ...] | None` a
nullable array. Kafka's zero uuid is None in all of them. Tagged fields have defaults: a value
equal to the default is not written.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def cached_by_class(function: F) -> F:
    """functools.cache, typed: its stub does not know that classes are hashable."""
    return cast("F", functools.cache(function))


class SchemaField(NamedTuple):
    name: str
    kafka_type: str | None  # None: a nested class
    entity_type: type[Any] | None  # the nested class
    is_array: bool
    is_nullable: bool  # the array itself, when it is one
    tag: int | None
    default: Any  # tagged fields have one, others may

    @property
    def has_default(self) -> bool:
        return self.default is not dataclasses.MISSING


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """The type without None, and whether None is allowed."""
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    (inner,) = (arm for arm in typing.get_args(annotation) if arm is not types.NoneType)
    return inner, True


def _schema_field(field: dataclasses.Field[Any], annotation: Any) -> SchemaField:
    inner, is_nullable = _without_none(annotation)
    is_array = typing.get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(typing.get_args(inner)[0])
    entity_type: type[Any] | None = inner if dataclasses.is_dataclass(inner) else None  # type: ignore[assignment]
    kafka_type = None if entity_type else field.metadata["kafka_type"]
    tag, default = field.metadata.get("tag"), field.default
    if tag is not None and default is dataclasses.MISSING:
        if entity_type is None or is_array:
            raise TypeError(f"a tagged field needs a default field={field.name}")
        # kio leaves the default of such a struct out; in Kafka each of its numbers is zero.
        default = entity_type(**dict.fromkeys((f.name for f in schema_fields(entity_type)), 0))
    return SchemaField(field.name, kafka_type, entity_type, is_array, is_nullable, tag, default)


def schema_fields(entity_type: type[Any]) -> Sequence[SchemaField]:
    """The fields in wire order; tagged ones last, by tag."""
    annotations = typing.get_type_hints(entity_type)
    fields = [_schema_field(f, annotations[f.name]) for f in dataclasses.fields(entity_type)]
    untagged = [field for field in fields if field.tag is None]
    tagged = sorted((f for f in fields if f.tag is not None), key=lambda f: f.tag or 0)
    if tagged and not entity_type.__flexible__:
        raise TypeError(f"tagged fields need a flexible version class={entity_type.__name__}")
    return [*untagged, *tagged]
