"""Converts columns of one type to another type that has more, or other, fields. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types

from isotherm.spark.tables.column_limits import doubles_of, inside
from isotherm.spark.tables.value_types import ValueType

# The stubs lack types that these take.
nulls: Any = pa.nulls
_map_of: Any = pa.MapArray.from_arrays


def conflict(other: ValueType, column: ValueType, path: str = "") -> str | None:
    """The reason why a column of type `other` cannot be converted to `column`. None if it can. A
    field that only one of them has is not a conflict."""
    if other is None or column is None or other == column:
        return None
    if isinstance(other, pa.StructType) and isinstance(column, pa.StructType):
        for field in other:
            index = column.get_field_index(field.name)
            if index >= 0:
                inside = f"{path}/{field.name}" if path else field.name
                reason = conflict(field.type, column.field(index).type, inside)
                if reason is not None:
                    return reason
        return None
    if types.is_map(other) and types.is_map(column):
        keys = conflict(other.key_type, column.key_type, f"{path}/{{key}}")
        return keys or conflict(other.item_type, column.item_type, f"{path}/{{}}")
    if isinstance(other, pa.ListType) and isinstance(column, pa.ListType):
        return conflict(other.value_type, column.value_type, f"{path}/[]")
    if types.is_int64(other) and types.is_float64(column):
        return None
    return f"{f'field {path}' if path else 'it'} changed from {column} to {other}"


def struct_children(column: Any) -> dict[str, Any]:
    """The fields of a struct column as columns, null where the struct is null. `flatten` gives all
    at once. A look-up of each by name would take the square of their number in all."""
    return dict(zip((field.name for field in column.type), column.flatten(), strict=True))


def conformed(column: Any, kind: pa.DataType) -> Any:
    """The column as `kind`, with which it must have no conflict. Fields that it lacks are null, and
    fields that `kind` lacks are left out. Whole numbers may become doubles. Raises UnfitValueError
    for one that no double is."""
    if column.type == kind:
        return column
    if types.is_null(column.type):
        return nulls(len(column), kind)
    if column.offset:
        # A copy: Arrow makes no lists and maps from the offsets of a slice.
        column = column.take(pa.array(range(len(column)), pa.int64()))
    if isinstance(kind, pa.StructType):
        children = struct_children(column)
        fields = [_conformed_field(children, len(column), field) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if types.is_map(kind):
        with inside("{}"):
            items = conformed(column.items, kind.item_type)
        return _map_of(column.offsets, column.keys, items, type=kind, mask=column.is_null())
    if isinstance(kind, pa.ListType):
        with inside("[]"):
            items = conformed(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, type=kind, mask=column.is_null())
    return doubles_of(column)


def _conformed_field(children: dict[str, Any], count: int, field: Any) -> Any:
    if field.name not in children:
        return nulls(count, field.type)
    with inside(field.name):
        return conformed(children[field.name], field.type)


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns of `schema`. Columns that it lacks are null."""
    columns = [
        conformed(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
