"""Finds the numbers of JSON values that a column would not have as they were sent. Pure.

JSON does not bound its numbers. A column has whole numbers of 64 bits, or doubles. A double is the
number that was sent if it is equal to it, or if the number is its shortest decimal, which is what
most writers of JSON print and all readers give back: 0.1 is one, 0.12345678901234567 is not. A
number that is written as a whole one must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from isotherm.spark.tables.binary_buffers import binary_buffers
from isotherm.spark.tables.column_fit import struct_children
from isotherm.spark.tables.value_types import NEEDED, ValueType, marked

Values: TypeAlias = "pa.Array[Any]"
Places: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# The stubs of these lack types that they take.
pc: Any = pyarrow.compute
_buffer_of: Any = pa.py_buffer
_from_buffers: Any = pa.Array.from_buffers

_LONGS = range(-(2**63), 2**63)
_LONG_SIZE_MAX = len(str(_LONGS[0]))
_DOUBLE_WHOLE_MAX = 2**53
"""Up to here all whole numbers are doubles."""


class WholeText(str):
    """The text of a JSON number without fraction and power of ten."""

    __slots__ = ()

    def is_long(self) -> bool:
        return len(self) <= _LONG_SIZE_MAX and int(self) in _LONGS

    def is_double(self) -> bool:
        return _is_equal(self, float(self))


class OtherText(str):
    """The text of any other JSON number."""

    __slots__ = ()

    def is_long(self) -> bool:
        """Whether it is a whole number of 64 bits, as 3.0 and 1e2 are."""
        value = float(self)
        if value == 0 or not abs(value) <= _LONGS.stop:
            return value == 0 and _is_zero(self)
        exact = Decimal(self)
        return exact == int(exact) and int(exact) in _LONGS

    def is_double(self) -> bool:
        value = float(self)
        return _is_equal(self, value) or (
            value != 0 and math.isfinite(value) and Decimal(self) == Decimal(repr(value))
        )


def _is_equal(text: str, value: float) -> bool:
    if value == 0:
        return _is_zero(text)
    return math.isfinite(value) and Decimal(text) == Decimal(value)


def _is_zero(text: str) -> bool:
    return not text.lower().partition("e")[0].strip("-0.")


class NumberScan(NamedTuple):
    """What a look through the bytes of values has found.

    too_deep    values with more levels of objects and arrays than allowed
    doubtful    values with NaN or Infinity, with a number that may be in no column, or with many
                levels
    only_long   values with a whole number that int64 has and double has not
    plain       the values, in which whole numbers of int64 are written as such
    """

    too_deep: Places
    doubtful: Places
    only_long: Mask
    plain: Values


def scan_numbers(
    values: Values, depth_sure: int, depth_max: int, *, is_form_free: bool
) -> NumberScan:
    """Look through the values, which need not be JSON. One with more levels than `depth_sure` is
    doubtful. With `is_form_free`, 3.0 is the whole number 3, and `plain` has 3 instead. Otherwise
    `plain` are the values."""
    # Only executors decode, so only they load kernels.
    from isotherm.kernels import json_numbers as kernels

    offsets, data = binary_buffers(values)
    flags = np.empty(len(values), np.uint8)
    texts = np.empty(len(data), np.uint8)
    numbers_max = len(data) // kernels.COPIED_SIZE_MIN
    ends, rows = np.empty(numbers_max + 1, np.int32), np.empty(numbers_max, np.int32)
    ends[0] = 0
    copied = kernels.look_through(
        data, offsets, depth_sure, depth_max, is_form_free, flags, texts, ends[1:], rows
    )
    if values.null_count:
        # The bytes of a null need not be empty.
        flags[np.asarray(values.is_null())] = 0
    doubtful = flags & (kernels.WORD | kernels.DOUBTFUL) != 0
    if copied:
        doubtful[rows[:copied][~_are_shortest(texts[: ends[copied]], ends[: copied + 1])]] = True
    plain = values
    if is_form_free and (flags & kernels.OTHER_FORM).any():
        plain = _with_plain_numbers(values)
    return NumberScan(
        np.flatnonzero(flags & kernels.TOO_DEEP),
        np.flatnonzero(doubtful),
        flags & kernels.ONLY_LONG != 0,
        plain,
    )


def _are_shortest(texts: npt.NDArray[np.uint8], ends: npt.NDArray[np.int32]) -> Mask:
    """Whether each decimal is the shortest one of its double. Arrow prints the shortest."""
    from isotherm.kernels.json_numbers import read_numbers

    sent = _from_buffers(pa.string(), len(ends) - 1, [None, _buffer_of(ends), _buffer_of(texts)])
    printed = sent.cast(pa.float64()).cast(pa.string())
    read = []
    for text in (sent, printed):
        offsets, data = binary_buffers(text)
        digits, powers = np.empty(len(text), np.int64), np.empty(len(text), np.int64)
        read_numbers(data, offsets, digits, powers)
        read.append((digits, powers))
    (digits, powers), (printed_digits, printed_powers) = read
    are_same: Mask = (digits == printed_digits) & (powers == printed_powers)
    return are_same


def _with_plain_numbers(values: Values) -> Values:
    from isotherm.kernels import json_numbers as kernels

    offsets, data = binary_buffers(values)
    size = int(offsets[-1] - offsets[0])
    out = np.empty(size * kernels.GROWTH_MAX, np.uint8)
    out_offsets = np.empty(len(offsets), np.int32)
    written = kernels.write_whole(data, offsets, out, out_offsets)
    validity = _buffer_of(np.packbits(np.asarray(values.is_valid()), bitorder="little"))
    buffers = [validity, _buffer_of(out_offsets), _buffer_of(out[:written])]
    plain: Values = _from_buffers(pa.binary(), len(values), buffers)
    return plain


def large_doubles(column: Values, kind: ValueType) -> Mask:
    """The rows with a double that may stand for a whole number that it is not.

    Only fields of `kind` count.
    """
    is_large = np.zeros(len(column), np.bool_)
    for rows in _rows_of_large(column, kind, np.arange(len(column))):
        is_large[rows] = True
    return is_large


def _rows_of_large(column: Any, kind: ValueType, rows: Places) -> Iterator[Places]:
    if isinstance(column.type, pa.StructType) and isinstance(kind, pa.StructType):
        inner = {field.name: field.type for field in kind}
        for name, child in struct_children(column).items():
            if name in inner:
                yield from _rows_of_large(child, inner[name], rows)
    elif isinstance(column.type, pa.ListType) and isinstance(kind, pa.ListType):
        if not types.is_null(column.type.value_type):
            parents = pc.list_parent_indices(column).to_numpy()
            yield from _rows_of_large(column.flatten(), kind.value_type, rows[parents])
    elif column.type == kind == pa.float64():
        doubles = column.fill_null(0).to_numpy(zero_copy_only=False)
        yield rows[np.abs(doubles) >= _DOUBLE_WHOLE_MAX]


def marked_numbers(kind: ValueType, column: Values) -> ValueType:
    """The type of the column's fields, with a mark on those with a whole number that no double
    has.
    """
    if isinstance(kind, pa.StructType):
        children = struct_children(column)
        return pa.struct([_marked_field(field, children[field.name]) for field in kind])
    if isinstance(kind, pa.ListType):
        # `flatten` leaves out elements of lists that are null.
        return pa.list_(_marked_field(kind.value_field, pc.list_flatten(column)))
    return kind


def _marked_field(field: pa.Field[Any], column: Values) -> pa.Field[Any]:
    if types.is_int64(field.type) and types.is_int64(column.type):
        return marked(field.name, field.type, NEEDED if _has_only_long(column) else None)
    inner = marked_numbers(field.type, column)
    assert inner is not None
    return field.with_type(inner)


def _has_only_long(column: Values) -> bool:
    """Whether a column of whole numbers has one that no double has."""
    longs = column.fill_null(0).to_numpy(zero_copy_only=False)
    magnitudes = np.abs(longs).view(np.uint64)
    lowest_bits = magnitudes & (~magnitudes + np.uint64(1))
    return bool((magnitudes // np.maximum(lowest_bits, 1) > _DOUBLE_WHOLE_MAX).any())
