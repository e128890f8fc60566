"""The types of a table's columns `key` and `value`, and the rules by which they grow. Pure. For
JSON:

    true, false -> bool · whole numbers -> int64 · other numbers -> double · texts -> string
    objects -> struct · arrays -> list

A field that was null in every record, or an object without fields, has no type yet: None.

A column never changes once it is in the table, because Iceberg can promote none of these types. A
type that only this run has found may still change from int64 to double, unless a schema has
declared it, or a double cannot have one of its whole numbers: a mark on the field tells. Otherwise
the first type stays, in the order of partitions and offsets, and records with another type become
dead letters (docs/decisions/0141-the-first-type-of-a-field-stays.md,
0184-numbers-are-exact-or-dead-letters.md).

Engines ignore the case of column names. So if the names of fields differ only in case, only the
first field becomes a column (docs/decisions/0179-names-that-differ-in-case-only.md).
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
from pyarrow import types

ValueType: TypeAlias = "pa.DataType | None"
StructType: TypeAlias = "pa.StructType"
T = TypeVar("T")


class KeyValue(NamedTuple, Generic[T]):
    """A pair of things for the column `key` and for the column `value`."""

    key: T
    value: T


DecodedTypes: TypeAlias = KeyValue[ValueType]
"""The types of the two columns. None while no field is known."""


LEVELS_MAX = 32
"""The most levels of a column: structs, lists and maps inside each other.

Delta Lake and PyIceberg fail for some more.
"""
REPEATED_LEVELS_MAX = 16
"""The most lists and maps among them. Arrow's time for Parquet doubles with each one."""

# Arrow infers these types from strings. In the table a string stays a string.
_TEXTS = (types.is_timestamp, types.is_date, types.is_time, types.is_string)


_MARK = b"isotherm.number"
NEEDED = b"needed"
"""The mark of a field of int64 with a whole number that no double has."""
DECLARED = b"declared"
"""The mark of a number whose type a schema has declared."""


class FieldNameError(ValueError):
    """A field with this name cannot be a column."""


def name_reason(name: str) -> str | None:
    """The reason why a field cannot be a column, if it is its name. Iceberg names nested columns by
    paths with dots, delta-rs cuts names at a zero character, and half of a surrogate pair has no
    bytes."""
    is_column = name and "." not in name and "\0" not in name and _is_text(name)
    return None if is_column else f"a column cannot have this name field={name!r}"


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def column_type(parsed: pa.DataType) -> ValueType:
    """The column's type for a type that Arrow's JSON reader inferred. Raises FieldNameError for a
    name that no column can have."""
    if isinstance(parsed, pa.StructType):
        fields = []
        for field in parsed:
            kind = column_type(field.type)
            if kind is None:
                continue
            reason = name_reason(field.name)
            if reason is not None:
                raise FieldNameError(reason)
            fields.append(pa.field(field.name, kind))
        return pa.struct(fields) if fields else None
    if isinstance(parsed, pa.ListType):
        element = column_type(parsed.value_type)
        return None if element is None else pa.list_(element)
    if types.is_null(parsed):
        return None
    return pa.string() if any(test(parsed) for test in _TEXTS) else parsed


def mark_of(field: pa.Field[Any]) -> bytes | None:
    """NEEDED or DECLARED, if the type of the field does not change because of other numbers that
    are found.
    """
    return (field.metadata or {}).get(_MARK)


def marked(name: str, kind: pa.DataType, mark: bytes | None) -> pa.Field[Any]:
    return pa.field(name, kind, metadata=None if mark is None else {_MARK: mark})


def unmarked(kind: ValueType) -> ValueType:
    """The type without marks, as a table has it."""
    if isinstance(kind, pa.StructType):
        return pa.struct([_unmarked_field(field) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(_unmarked_field(kind.value_field))
    return kind


def _unmarked_field(field: pa.Field[Any]) -> pa.Field[Any]:
    inner = unmarked(field.type)
    assert inner is not None
    plain = field.with_type(inner)
    return plain if mark_of(field) is None else plain.remove_metadata()


def merged(column: ValueType, other: ValueType, fixed: ValueType = None) -> ValueType:
    """`column` with the fields of `other` that it lacks, except twins (see `twin`). The types in
    `fixed`, a part of `column`, do not change."""
    if other is None or (column is not None and column.equals(other, check_metadata=True)):
        return column
    if column is None:
        return _without_twins(other)
    if isinstance(column, pa.StructType) and isinstance(other, pa.StructType):
        return _merged_fields(column, other, fixed)
    if isinstance(column, pa.ListType) and isinstance(other, pa.ListType):
        inner = fixed.value_type if isinstance(fixed, pa.ListType) else None
        return pa.list_(_merged_field(_item(column), _item(other), inner))
    if isinstance(column, pa.MapType) and isinstance(other, pa.MapType):
        inner = fixed.item_type if isinstance(fixed, pa.MapType) else None
        item = merged(column.item_type, other.item_type, inner)
        assert item is not None
        return pa.map_(column.key_type, item)
    widens = types.is_int64(column) and types.is_float64(other) and fixed is None
    return other if widens else column


def _merged_field(column: pa.Field[Any], other: pa.Field[Any], fixed: ValueType) -> pa.Field[Any]:
    marks = (mark_of(column), mark_of(other))
    if fixed is None and types.is_int64(column.type) and types.is_float64(other.type):
        # A schema that declares a double may follow one that has declared a whole number.
        stays = marks[0] == NEEDED or (marks[0] == DECLARED and marks[1] != DECLARED)
        return column if stays else marked(column.name, other.type, marks[1])
    kind = merged(column.type, other.type, fixed)
    assert kind is not None
    if fixed is not None:
        return marked(column.name, kind, None)
    if kind != other.type:
        return marked(column.name, kind, marks[0])
    return marked(column.name, kind, NEEDED if NEEDED in marks else marks[0] or marks[1])


def merged_types(types: DecodedTypes, other: DecodedTypes, fixed: DecodedTypes) -> DecodedTypes:
    """As `merged`, for both columns."""
    return KeyValue(*(merged(*part) for part in zip(types, other, fixed, strict=True)))


def twin(other: ValueType, column: ValueType, path: str = "") -> str | None:
    """The first field of `other` that cannot be a column, because its name differs only in case
    from that of a field beside it in `column` or `other`. It is the reason for a dead letter.
    Fields of `column` are columns."""
    if isinstance(other, pa.StructType):
        columns = (
            {field.name: field.type for field in column}
            if isinstance(column, pa.StructType)
            else {}
        )
        names = {name.lower(): name for name in columns}
        for field in other:
            inside = f"{path}/{field.name}" if path else field.name
            first = names.setdefault(field.name.lower(), field.name)
            if field.name not in columns and first != field.name:
                return twin_reason(inside, first)
            reason = twin(field.type, columns.get(field.name), inside)
            if reason is not None:
                return reason
        return None
    if isinstance(other, pa.ListType):
        inner = column.value_type if isinstance(column, pa.ListType) else None
        return twin(other.value_type, inner, f"{path}/[]")
    if isinstance(other, pa.MapType):
        inner = column.item_type if isinstance(column, pa.MapType) else None
        return twin(other.item_type, inner, f"{path}/{{}}")
    return None


def too_deep(kind: ValueType) -> str | None:
    """The reason why this type cannot be a column, if it has too many levels."""
    # Without recursion, whose limit a schema may exceed.
    waiting: list[tuple[ValueType, int, int]] = [(kind, 1, 0)]
    while waiting:
        part, levels, repeated = waiting.pop()
        if isinstance(part, pa.StructType):
            inner = [field.type for field in part]
        elif isinstance(part, pa.ListType):
            inner, repeated = [part.value_type], repeated + 1
        elif isinstance(part, pa.MapType):
            inner, repeated = [part.key_type, part.item_type], repeated + 1
        else:
            continue
        if repeated > REPEATED_LEVELS_MAX:
            return f"lists and maps are nested deeper than {REPEATED_LEVELS_MAX}"
        if levels > LEVELS_MAX:
            return f"fields are nested deeper than {LEVELS_MAX}"
        waiting += [(one, levels + 1, repeated) for one in inner]
    return None


def twin_reason(path: str, first: str) -> str:
    return f"field {path} differs in case only from {first}"


def decoded_types(schema: pa.Schema) -> DecodedTypes:
    """The types of `key` and `value` in the schema of a table, or of some of its columns."""
    return KeyValue(
        *(schema.field(name).type if name in schema.names else None for name in KeyValue._fields)
    )


def _merged_fields(column: StructType, other: StructType, fixed: ValueType) -> pa.DataType:
    fields: dict[str, Any] = {field.name: field for field in column}
    fixed_kinds = (
        {field.name: field.type for field in fixed} if isinstance(fixed, pa.StructType) else {}
    )
    names = {name.lower() for name in fields}
    for field in other:
        if field.name in fields:
            fixed_kind = fixed_kinds.get(field.name)
            fields[field.name] = _merged_field(fields[field.name], field, fixed_kind)
        elif field.name.lower() not in names:
            names.add(field.name.lower())
            kind = _without_twins(field.type)
            fields[field.name] = marked(field.name, kind, mark_of(field))
    return pa.struct([marked(field.name, field.type, mark_of(field)) for field in fields.values()])


def _item(kind: pa.ListType[Any]) -> pa.Field[Any]:
    """The elements of a list, with Arrow's usual name for them."""
    return kind.value_field.with_name("item")


def _without_twins(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return _merged_fields(pa.struct([]), kind, None)
    if isinstance(kind, pa.ListType):
        item = _item(kind)
        return pa.list_(marked(item.name, _without_twins(item.type), mark_of(item)))
    if isinstance(kind, pa.MapType):
        return pa.map_(kind.key_type, _without_twins(kind.item_type))
    return kind
