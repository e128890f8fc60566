"""Decodes JSON values of records to one Arrow column. Arrow's reader parses them, a batch at a
time.

The reader parses one text of many objects, and does not know where records end. So each value is
put into its own object, `{"v":<value>}`, with a line feed. Each object begins a row, whatever the
values are, because a line feed cannot be inside a JSON string and does not continue an object. So
if there are as many rows as values, each value is one row.

If a batch does not parse, its halves are tried. In a small batch json_refusals finds the values
that are certainly refused, and the others are tried again, down to single ones.

The reader takes NaN for a number, and rounds numbers to doubles. So json_numbers looks through the
bytes first. Only values with such numbers are examined one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyarrow import json, types

from isotherm.spark.tables.column_fit import struct_children
from isotherm.spark.tables.json_numbers import (
    Mask,
    large_doubles,
    marked_numbers,
    scan_numbers,
)
from isotherm.spark.tables.json_refusals import refusal
from isotherm.spark.tables.value_types import (
    REPEATED_LEVELS_MAX,
    FieldNameError,
    ValueType,
    column_type,
    mark_of,
    merged,
    twin,
    unmarked,
)

Values: TypeAlias = "pa.Array[Any]"
Places: TypeAlias = npt.NDArray[np.int64]

# The stubs of these lack types that they take.
pc: Any = pyarrow.compute
_read_json: Any = json.read_json
_nulls: Any = pa.nulls

NESTING_MAX = 64
"""The most levels of objects and arrays, because Arrow's reader has a stack of fixed size. Columns
have fewer. Levels with nothing in them are no part of a column."""

_SCREENED_MAX = 256
"""The most values of a batch that json_refusals examines if they do not parse.

Larger batches are halved.
"""

_PLACE = re.compile(r" in row \d+|JSON parse error: ")
_FIELD = re.compile(r"Column\(/v/?(.*?)\)")
_REASON_SIZE_MAX = 200


class DeadValue(NamedTuple):
    """A value that cannot be decoded. `place` is its index in the batch."""

    place: int
    reason: str


class DecodedValues(NamedTuple):
    """The column of the values that could be decoded, in their order, and the other values."""

    column: Values
    dead: Sequence[DeadValue]


class _Batch(NamedTuple):
    """Values that are decoded together, with their places.

    `plain` are the texts for Arrow (see NumberScan).
    """

    values: Values
    places: Places
    only_long: Mask
    plain: Values

    def take(self, rows: Places) -> _Batch:
        indexes = pa.array(rows, pa.int64())
        values = self.values.take(indexes)
        plain = values if self.plain is self.values else self.plain.take(indexes)
        return _Batch(values, self.places[rows], self.only_long[rows], plain)

    def without(self, rows: list[int]) -> _Batch:
        return self.take(np.delete(np.arange(len(self.places)), rows)) if rows else self

    def part(self, part: slice) -> _Batch:
        values = self.values[part]
        plain = values if self.plain is self.values else self.plain[part]
        return _Batch(values, self.places[part], self.only_long[part], plain)


class _Found(NamedTuple):
    """The type that the fields of values have, and the column from which it is known."""

    kind: ValueType
    column: Values


class JsonDecoder:
    """Decodes batches to columns of one type, `value_type`.

    With `may_grow`, a field that the type lacks is added to it. From then on `has_grown` is true,
    and the columns are unusable. Without it such fields are left out. `fixed` is the part of the
    type that the table has. With `is_form_free`, 3.0 is a whole number.
    """

    framing = None

    def __init__(
        self,
        fixed: ValueType,
        value_type: ValueType,
        *,
        may_grow: bool = True,
        is_form_free: bool = False,
    ) -> None:
        self._fixed = fixed
        self._begun_with = value_type
        self._may_grow = may_grow
        self._is_form_free = is_form_free
        self.value_type = value_type

    @property
    def value_type(self) -> ValueType:
        return self._value_type

    @value_type.setter
    def value_type(self, kind: ValueType) -> None:
        self._value_type = kind
        self._plain = unmarked(kind)

    @property
    def has_grown(self) -> bool:
        return self.value_type != self._begun_with

    def decode(self, values: Values) -> DecodedValues:
        """Decode a batch. A null value becomes a null in the column."""
        parts: list[Values] = []
        dead: list[DeadValue] = []
        if len(values):
            batch = self._scanned(values, dead)
            if len(batch.places):
                self._decode(batch, parts, dead)
        dead.sort()
        if self.has_grown:
            return DecodedValues(_nulls(0), dead)
        kind = self._plain if self._plain is not None else pa.null()
        columns = [_of_type(part, kind) for part in parts]
        return DecodedValues(pa.concat_arrays(columns) if columns else _nulls(0, kind), dead)

    def _scanned(self, values: Values, dead: list[DeadValue]) -> _Batch:
        """The values without those that no column has as they are."""
        # More levels are too many if they are arrays.
        scan = scan_numbers(
            values, REPEATED_LEVELS_MAX, NESTING_MAX, is_form_free=self._is_form_free
        )
        batch = _Batch(values, np.arange(len(values)), scan.only_long, scan.plain)
        too_deep = f"objects and arrays are nested deeper than {NESTING_MAX}"
        dead += [DeadValue(int(place), too_deep) for place in scan.too_deep]
        rows = np.setdiff1d(scan.doubtful, scan.too_deep)
        return batch.without([*scan.too_deep, *self._refuse(batch, rows, self.value_type, dead)])

    def _decode(
        self,
        batch: _Batch,
        parts: list[Values],
        dead: list[DeadValue],
        *,
        is_screened: bool = False,
    ) -> None:
        count = len(batch.places)
        try:
            column = parse(batch.plain, self._plain)
            decoded = self._found(batch, column)
        except (pa.ArrowInvalid, FieldNameError) as error:
            if not is_screened and count <= _SCREENED_MAX:
                self._screen(batch, parts, dead)
            elif count > 1:
                self._halve(batch, parts, dead, is_screened=is_screened)
            elif not self._grows_for(batch):
                dead.append(DeadValue(int(batch.places[0]), _reason(error)))
            return
        kind = decoded.kind
        if batch.only_long.any():
            if self._lacks_numbers(batch, decoded, parts, dead):
                return
            kind = marked_numbers(kind, decoded.column)
        if self._may_grow:
            self.value_type = merged(self.value_type, kind, self._fixed)
        parts.append(column)

    def _halve(
        self, batch: _Batch, parts: list[Values], dead: list[DeadValue], *, is_screened: bool
    ) -> None:
        half = len(batch.places) // 2
        for part in (slice(0, half), slice(half, None)):
            self._decode(batch.part(part), parts, dead, is_screened=is_screened)

    def _screen(self, batch: _Batch, parts: list[Values], dead: list[DeadValue]) -> None:
        rest = batch.without(
            self._refuse(batch, np.arange(len(batch.places)), self.value_type, dead)
        )
        if len(rest.places):
            self._decode(rest, parts, dead, is_screened=True)

    def _found(self, batch: _Batch, column: Values) -> _Found:
        """The type that the fields of the values have. Raises FieldNameError if one cannot be a
        column beside those of `value_type`."""
        kind = column_type(column.type)
        if (
            batch.plain is not batch.values
            and self._may_grow
            and not self.value_type == self._fixed == kind
        ):
            # Of a field without a schema, 3.0 is the first double.
            column = parse(batch.values, _as_doubles(self.value_type, self._fixed))
            kind = column_type(column.type)
        reason = twin(kind, self.value_type)
        if reason is not None:
            raise FieldNameError(reason)
        return _Found(kind, column)

    def _lacks_numbers(
        self, batch: _Batch, decoded: _Found, parts: list[Values], dead: list[DeadValue]
    ) -> bool:
        """Whether doubles stand for whole numbers that they are not.

        The values have then been decoded otherwise.
        """
        rows = np.flatnonzero(batch.only_long & large_doubles(decoded.column, self.value_type))
        refused = self._refuse(batch, rows, self.value_type, dead, may_grow=False)
        if refused:
            rest = batch.without(refused)
            if len(rest.places):
                self._decode(rest, parts, dead)
            return True
        if not self._may_grow:
            return False
        # In a new field the first number determines the type. A value with both types in it is
        # dead.
        whole = merged(self.value_type, decoded.kind, self._fixed)
        rows = np.flatnonzero(batch.only_long & large_doubles(decoded.column, whole))
        if len(batch.places) == 1:
            return bool(self._refuse(batch, rows, whole, dead))
        if any(reason is not None for reason in self._reasons(batch, rows, whole)):
            self._halve(batch, parts, dead, is_screened=False)
            return True
        return False

    def _grows_for(self, batch: _Batch) -> bool:
        """Whether the type of this single value changes the known type."""
        if not self._may_grow:
            return False
        try:
            column = parse(batch.values, None)
            alone = column_type(column.type)
        except (pa.ArrowInvalid, FieldNameError):
            return False
        if any(reason is not None for reason in self._reasons(batch, np.zeros(1, np.int64), alone)):
            return False
        grown = merged(self.value_type, marked_numbers(alone, column), self._fixed)
        has_grown = grown != self.value_type
        if has_grown:
            self.value_type = grown
        return has_grown

    def _refuse(
        self,
        batch: _Batch,
        rows: Places,
        kind: ValueType,
        dead: list[DeadValue],
        *,
        may_grow: bool = True,
    ) -> list[int]:
        """Add those of the rows to `dead` that are certainly not in a column of this type.

        Returns their indexes.
        """
        reasons = self._reasons(batch, rows, kind, may_grow=may_grow)
        refused = [
            (row, reason) for row, reason in zip(rows.tolist(), reasons, strict=True) if reason
        ]
        dead += [
            DeadValue(int(batch.places[row]), reason[:_REASON_SIZE_MAX]) for row, reason in refused
        ]
        return [row for row, _ in refused]

    def _reasons(
        self, batch: _Batch, rows: Places, kind: ValueType, *, may_grow: bool = True
    ) -> list[str | None]:
        # Types that are not in the table yet may still be widened.
        return [
            refusal(
                value,
                kind,
                may_grow=may_grow and self._may_grow,
                may_widen=kind != self._fixed,
                is_form_free=self._is_form_free,
            )
            for value in batch.values.take(pa.array(rows, pa.int64())).to_pylist()
        ]


def _as_doubles(kind: ValueType, fixed: ValueType) -> ValueType:
    """The type with doubles for the whole numbers that do not change because of other numbers."""
    if isinstance(kind, pa.StructType):
        inner = (
            {field.name: field.type for field in fixed} if isinstance(fixed, pa.StructType) else {}
        )
        return pa.struct([_as_double(field, inner.get(field.name)) for field in kind])
    if isinstance(kind, pa.ListType):
        item = fixed.value_type if isinstance(fixed, pa.ListType) else None
        return pa.list_(_as_double(kind.value_field, item))
    return kind


def _as_double(field: pa.Field[Any], fixed: ValueType) -> pa.Field[Any]:
    if types.is_int64(field.type) and (fixed is not None or mark_of(field) is not None):
        return pa.field(field.name, pa.float64())
    inner = _as_doubles(field.type, fixed)
    assert inner is not None
    return pa.field(field.name, inner)


def parse(values: Values, kind: ValueType) -> Values:
    """One struct for each value, with the fields of `kind`, then new fields with types that Arrow
    infers. Raises ArrowInvalid unless each value is one JSON object or null, and fits `kind`."""
    values = pc.fill_null(values, b"null")
    values.cast(pa.string())  # raises for bytes that are not UTF-8
    rows = pc.binary_join_element_wise(b'{"v":', values, b"}\n", b"")
    text = rows.buffers()[2]
    schema = None if kind is None else pa.schema([pa.field("v", kind)])
    table = _read_json(
        pa.BufferReader(text),
        # All text must be in one block, because the reader refuses an object across two blocks.
        json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        json.ParseOptions(explicit_schema=schema, newlines_in_values=True),
    )
    if len(table) != len(values) or table.column_names != ["v"]:
        raise pa.ArrowInvalid("it is not one JSON object")
    # Take the chunk instead of combining: Arrow cannot copy a list array with only nulls.
    column: Values = table.column("v").chunk(0)
    if not (types.is_struct(column.type) or types.is_null(column.type)):
        raise pa.ArrowInvalid("it is not a JSON object")
    return column


def _of_type(column: Values, kind: pa.DataType) -> Values:
    """The column without the fields that `kind` lacks, in which only nulls were found."""
    if column.type == kind:
        return column
    if isinstance(kind, pa.StructType) and isinstance(column.type, pa.StructType):
        assert isinstance(column, pa.StructArray)
        children = struct_children(column)
        fields = [_of_type(children[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if isinstance(kind, pa.ListType) and isinstance(column, pa.ListArray):
        elements = _of_type(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, elements, type=kind, mask=column.is_null())
    # The column has only nulls and empty objects.
    empty: Values = _nulls(len(column), kind)
    return empty


def _reason(error: Exception) -> str:
    """Arrow's message without the number of the row, since the batch has one value, and without
    our `v`.
    """
    text = _PLACE.sub("", " ".join(str(error).split()))
    named = _FIELD.sub(lambda match: f"field {match[1]}" if match[1] else "it", text)
    return named[:_REASON_SIZE_MAX]
