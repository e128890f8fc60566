"""Fits columns to the fields of a Protobuf message, before ptars writes them. Pure.

ptars writes less than it was given, without an error: no null of a list, and 0 for the name of an
enum that it does not know. A cast of Arrow's drops the fields that the target lacks. Here these are
errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from isotherm.errors import ConfigError
from isotherm.spark.tables.column_fit import nulls, struct_children

pc: Any = pyarrow.compute
# The stubs lack types that these take.
_map_of: Any = pa.MapArray.from_arrays

_DIGITS = r"^-?[0-9]{1,10}$"
"""A number without a name, as `isotherm pipeline table` shows it."""


def unknown_fields(kind: pa.DataType, target: pa.DataType, path: str = "") -> Iterator[str]:
    """The paths of the fields of `kind` that `target`, the message as ptars has it, lacks."""
    if isinstance(kind, pa.StructType) and isinstance(target, pa.StructType):
        for field in kind:
            index = target.get_field_index(field.name)
            if index < 0:
                yield f"{path}{field.name}"
            else:
                yield from unknown_fields(
                    field.type, target.field(index).type, f"{path}{field.name}."
                )
    elif isinstance(kind, pa.MapType) and isinstance(target, pa.MapType):
        yield from unknown_fields(kind.item_type, target.item_type, path)
    elif isinstance(kind, pa.ListType) and isinstance(target, pa.ListType):
        yield from unknown_fields(kind.value_type, target.value_type, path)


def fitted_structures(structures: Any, kind: pa.StructType, message: Descriptor) -> Any:
    """The structures as `kind`, ptars' type of the message. Fields that they lack are null.

    Raises ArrowException for a type or a number that a field cannot have, and ConfigError for a
    null in a list or map, for the name of no enum, and for several fields of one choice.
    """
    if structures.type == kind and not len(kind):
        return structures
    children = struct_children(structures)
    _check_choices(children, message)
    columns = [
        _fitted(children[field.name], field.type, message.fields_by_name[field.name])
        if field.name in children
        else nulls(len(structures), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=structures.is_null())


def _fitted(values: Any, kind: Any, field: FieldDescriptor) -> Any:
    if isinstance(kind, pa.MapType) and isinstance(values.type, pa.MapType):
        # As lists: Arrow flattens no maps.
        parts = [("key", values.type.key_type), ("value", values.type.item_type)]
        entries = values.cast(pa.list_(pa.struct(parts)))
        keys, items = entries.flatten().flatten()
        _check_items(items, field)
        item = field.message_type.fields_by_name["value"]
        keys = keys.cast(kind.key_type)
        return _map_of(_starts(entries), keys, _fitted_item(items, kind.item_type, item), type=kind)
    if isinstance(kind, pa.ListType) and isinstance(values.type, pa.ListType):
        items = values.flatten()
        _check_items(items, field)
        items = _fitted_item(items, kind.value_type, field)
        return pa.ListArray.from_arrays(_starts(values), items, type=kind)
    return _fitted_item(values, kind, field)


def _fitted_item(values: Any, kind: Any, field: FieldDescriptor) -> Any:
    if isinstance(kind, pa.StructType) and isinstance(values.type, pa.StructType):
        return fitted_structures(values, kind, field.message_type)
    if field.type == FieldDescriptor.TYPE_ENUM and pa.types.is_string(values.type):
        return _numbers_of(values, field.enum_type, field)
    fitted = values.cast(kind)
    if pa.types.is_float32(kind) and pa.types.is_float64(values.type):
        _check_finite(values, fitted, field)
    return fitted


def _check_choices(children: dict[str, Any], message: Descriptor) -> None:
    """A message has at most one field of a oneof. A reader would take the last one."""
    for choice in message.oneofs:
        names = [field.name for field in choice.fields if field.name in children]
        counts = sum(np.asarray(children[name].is_valid()).astype(np.int64) for name in names)
        if len(names) > 1 and np.max(counts, initial=0) > 1:
            raise ConfigError(
                "a message cannot have several fields of one choice"
                f" oneof={choice.full_name} fields={','.join(names)}"
            )


def _check_finite(doubles: Any, floats: Any, field: FieldDescriptor) -> None:
    """Digits are rounded, as by all writers of `float`. A number beyond its range is refused."""
    is_lost = pc.and_(pc.is_finite(doubles), pc.invert(pc.is_finite(floats)))
    lost = doubles.filter(pc.fill_null(is_lost, False))
    if len(lost):
        raise ConfigError(
            f"a number is too large for a float field={field.full_name} number={lost[0].as_py()}"
        )


def _starts(lists: Any) -> Any:
    """Where the items of each list begin, and the end. Null has none: for a message it is empty."""
    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def _check_items(items: Any, field: FieldDescriptor) -> None:
    if items.null_count:
        raise ConfigError(
            f"a list or map of a message cannot have null field={field.full_name}"
            " hint='filter(COLUMN, x -> x IS NOT NULL)'"
        )


def _numbers_of(names: Any, kind: EnumDescriptor, field: FieldDescriptor) -> Any:
    """The numbers of an enum's names. Digits are a number that may have no name."""
    places = pc.index_in(names, value_set=pa.array([value.name for value in kind.values]))
    numbers = pa.array([value.number for value in kind.values], pa.int32()).take(places)
    rest = pc.if_else(pc.is_valid(numbers), pa.scalar(None, pa.string()), names)
    is_digits = pc.fill_null(pc.match_substring_regex(rest, _DIGITS), True)
    unknown = rest.filter(pc.invert(is_digits))
    if len(unknown):
        name = unknown[0].as_py()
        raise ConfigError(
            f"an enum has no such name field={field.full_name} name={name!r} enum={kind.full_name}"
        )
    return pc.coalesce(numbers, rest.cast(pa.int32()))
