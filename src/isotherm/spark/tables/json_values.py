"""Decodes JSON values of records to one Arrow column. Arrow's reader parses them, a batch at a time.

The reader parses one text of many objects, and does not know where records end. So each value is put
into its own object, `{"v":<value>}`, with a line feed. Each object begins a row, whatever the values are,
because a line feed cannot be inside a JSON string and does not continue an object. So if there are as many
rows as values, each value is one row.

If a batch does not parse, its halves are tried. In a small batch json_refusals finds the values that are
certainly refused, and the others are tried again, down to single ones.
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

from isotherm.spark.tables.binary_buffers import binary_buffers
from isotherm.spark.tables.column_fit import struct_children
from isotherm.spark.tables.json_refusals import refusal
from isotherm.spark.tables.value_types import FieldNameError, ValueType, column_type, merged, twin

Values: TypeAlias = "pa.Array[Any]"
Places: TypeAlias = npt.NDArray[np.int64]

# The stubs of these lack types that they take.
pc: Any = pyarrow.compute
_read_json: Any = json.read_json
_nulls: Any = pa.nulls

NESTING_MAX = 64
"""The most levels of objects and arrays, because Arrow's reader has a stack of fixed size."""

_SCREENED_MAX = 256
"""The most values of a batch that json_refusals examines if they do not parse. Larger batches are halved."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
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


class JsonDecoder:
    """Decodes batches to columns of one type, `known`.

    With `may_grow`, a field that the type lacks is added to it. From then on `has_grown` is true, and the columns
    are unusable. Without it such fields are left out. `fixed` is the part of the type that the table has.
    """

    framing = None

    def __init__(self, fixed: ValueType, known: ValueType, *, may_grow: bool = True) -> None:
        self._fixed = fixed
        self._begun_with = known
        self._may_grow = may_grow
        self.known = known

    @property
    def has_grown(self) -> bool:
        return self.known != self._begun_with

    def decode(self, values: Values) -> DecodedValues:
        """Decode a batch. A null value becomes a null in the column."""
        parts: list[Values] = []
        dead: list[DeadValue] = []
        if len(values):
            self._decode(values, np.arange(len(values)), parts, dead)
        dead.sort()
        if self.has_grown:
            return DecodedValues(_nulls(0), dead)
        kind = self.known if self.known is not None else pa.null()
        columns = [_of_type(part, kind) for part in parts]
        return DecodedValues(pa.concat_arrays(columns) if columns else _nulls(0, kind), dead)

    def _decode(
        self,
        values: Values,
        places: Places,
        parts: list[Values],
        dead: list[DeadValue],
        *,
        is_screened: bool = False,
    ) -> None:
        count = len(values)
        try:
            column = parse(values, self.known)
            found = _columns_of(column, self.known)
        except (pa.ArrowInvalid, FieldNameError) as error:
            if not is_screened and count <= _SCREENED_MAX:
                self._screen(values, places, parts, dead)
            elif count > 1:
                half = count // 2
                for part in (slice(0, half), slice(half, count)):
                    self._decode(values[part], places[part], parts, dead, is_screened=is_screened)
            elif not self._grows_for(values):
                dead.append(DeadValue(int(places[0]), _reason(error)))
        else:
            if self._may_grow:
                self.known = merged(self.known, found, self._fixed)
            parts.append(column)

    def _screen(
        self, values: Values, places: Places, parts: list[Values], dead: list[DeadValue]
    ) -> None:
        # Types that are not in the table yet may still be widened.
        may_widen = self.known != self._fixed
        reasons = [
            refusal(each, self.known, may_grow=self._may_grow, may_widen=may_widen)
            for each in values.to_pylist()
        ]
        dead += [
            DeadValue(int(place), reason[:_REASON_SIZE_MAX])
            for place, reason in zip(places, reasons, strict=True)
            if reason is not None
        ]
        left = np.flatnonzero([reason is None for reason in reasons])
        if len(left):
            others = values.take(pa.array(left, pa.int64()))
            self._decode(others, places[left], parts, dead, is_screened=True)

    def _grows_for(self, value: Values) -> bool:
        """Whether the type of this single value changes the known type."""
        if not self._may_grow:
            return False
        try:
            alone = column_type(parse(value, None).type)
        except (pa.ArrowInvalid, FieldNameError):
            return False
        before = self.known
        self.known = merged(before, alone, self._fixed)
        return self.known != before


def _columns_of(column: Values, known: ValueType) -> ValueType:
    """The type of the column's fields. Raises FieldNameError if one cannot be a column beside those of
    `known`."""
    found = column_type(column.type)
    reason = twin(found, known)
    if reason is not None:
        raise FieldNameError(reason)
    return found


def parse(values: Values, known: ValueType) -> Values:
    """One struct for each value, with the fields of `known`, then new fields with types that Arrow infers.
    Raises ArrowInvalid unless each value is one JSON object or null, and fits `known`."""
    values = pc.fill_null(values, b"null")
    values.cast(pa.string())  # raises for bytes that are not UTF-8
    _check_nesting(values)
    rows = pc.binary_join_element_wise(b'{"v":', values, b"}\n", b"")
    text = rows.buffers()[2]
    schema = None if known is None else pa.schema([pa.field("v", known)])
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


def _check_nesting(values: Values) -> None:
    for index in np.flatnonzero(_opened(values) > NESTING_MAX):
        if _depth(values[int(index)].as_py()) > NESTING_MAX:
            raise pa.ArrowInvalid(f"objects and arrays are nested deeper than {NESTING_MAX}")


def _opened(values: Values) -> Places:
    """The number of [ and { in each value, which is an upper bound of its depth."""
    offsets, data = binary_buffers(values)
    counts = np.zeros(len(values), np.int64)
    # reduceat cannot sum an empty range, so leave out empty values.
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        # [ is 0x5b and { is 0x7b: they differ only in the bit 0x20.
        # One pass over the bytes of the batch. A search in each value took a third of the decoding.
        is_open = (data[offsets[0] :] | 0x20) == 0x7B
        counts[filled] = np.add.reduceat(
            is_open.view(np.uint8), offsets[filled] - offsets[0], dtype=np.int64
        )
    return counts


def _depth(value: bytes) -> int:
    symbols = np.frombuffer(_TEXT.sub(b"", value), np.uint8)
    # [ and { are 0x5b and 0x7b, ] and } are 0x5d and 0x7d.
    steps = np.isin(symbols, (0x5B, 0x7B)).astype(np.int64) - np.isin(symbols, (0x5D, 0x7D))
    return int(np.cumsum(steps).max(initial=0))


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
    """Arrow's message without the number of the row, since the batch has one value, and without our `v`."""
    text = _PLACE.sub("", " ".join(str(error).split()))
    named = _FIELD.sub(lambda found: f"field {found[1]}" if found[1] else "it", text)
    return named[:_REASON_SIZE_MAX]
