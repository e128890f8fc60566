"""The limits of a table's columns, and the error for values beyond them. Pure.

Times and dates are those of the years 1 to 9999, as in SQL. Parquet files could have others, but
PyIceberg could not commit them, and no Python could show them
(docs/decisions/0187-a-table-has-the-years-1-to-9999.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from isotherm.spark.tables.binary_buffers import binary_buffers

pc: Any = pyarrow.compute
# The stubs lack types that these take.
_buffer_of: Any = pa.py_buffer
_from_buffers: Any = pa.Array.from_buffers
_decimal: Any = pa.decimal128

DAY_MIN, DAY_MAX = -719_162, 2_932_896
"""The days of 0001-01-01 and 9999-12-31 since the epoch, both inclusive."""
DAY_S = 86_400
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_DECIMAL_SIZE = 16
_SHORT_BITS_MAX = 1_000


class UnfitValueError(pa.ArrowInvalid):
    """The column cannot have a value.

    `path` leads to its field, `detail` says what the value is like.
    """

    def __init__(self, fact: str, detail: str, path: str = "") -> None:
        place = f" field={path}" if path else ""
        super().__init__(f"it does not fit its column: {fact}{place} {detail}")
        self._fact = fact
        self._detail = detail
        self._path = path

    def inside(self, name: str) -> UnfitValueError:
        """The error of the field `name` around this one."""
        path = f"{name}/{self._path}" if self._path else name
        return UnfitValueError(self._fact, self._detail, path)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Add the name of a field to errors of its values."""
    try:
        yield
    except UnfitValueError as error:
        raise error.inside(name) from None


def check_times(times: Any, units_of_second: int) -> None:
    """Raise UnfitValueError for a time outside the years.

    `times` is an int64 array of units since the epoch.
    """
    _check_years("time", times, units_of_second * DAY_S)


def dates_of(days: Any) -> Any:
    """The dates of an int64 array of days since the epoch.

    Raises UnfitValueError for one outside the years.
    """
    _check_years("date", days, 1)
    return days.cast(pa.int32()).cast(pa.date32())


def _check_years(noun: str, numbers: Any, units_of_day: int) -> None:
    for bound in pc.min_max(numbers).values():
        day = None if not bound.is_valid else bound.as_py() // units_of_day
        if day is not None and not DAY_MIN <= day <= DAY_MAX:
            raise UnfitValueError(f"a {noun} is not in the years 1 to 9999", f"year={_year(day)}")


def _year(day: int) -> int:
    """The year of a day since the epoch. Python's own dates end with the year 9999."""
    cycle, rest = divmod(day - DAY_MIN, _CYCLE_DAYS)
    return date.fromordinal(rest + 1).year + cycle * _CYCLE_YEARS


def decimals_of(stored: Any, precision: int, scale: int) -> Any:
    """The decimals of a binary array of unscaled numbers, big-endian in two's complement. No bytes
    are zero. Raises UnfitValueError for one with more digits than `precision`."""
    offsets, data = binary_buffers(stored)
    is_valid = np.asarray(stored.is_valid())
    filled = np.flatnonzero(is_valid & (np.diff(offsets) > 0))
    starts, ends = offsets[filled].astype(np.int64), offsets[filled + 1].astype(np.int64)
    signs = np.where(data[starts] >= 0x80, 0xFF, 0).astype(np.uint8)
    # Arrow's decimals are little-endian, with the sign in all bytes that the number does not need.
    made = np.zeros((len(stored), _DECIMAL_SIZE), np.uint8)
    made[filled] = signs[:, None]
    for index in range(_DECIMAL_SIZE):
        has_byte = ends - starts > index
        if not has_byte.any():
            break
        made[filled[has_byte], index] = data[ends[has_byte] - 1 - index]
    buffers = [_buffer_of(np.packbits(is_valid, bitorder="little")), _buffer_of(made)]
    # Arrow's own check of digits misses -2^127.
    bounds = pc.min_max(_from_buffers(_decimal(38, 0), len(stored), buffers)).values()
    fits = all(not bound.is_valid or abs(int(bound.as_py())) < 10**precision for bound in bounds)
    if not (fits and _are_signs(starts, ends, signs, data) and _have_sign(made[filled], signs)):
        raise _too_many_digits(stored, precision)
    return _from_buffers(_decimal(precision, scale), len(stored), buffers)


def _have_sign(made: npt.NDArray[np.uint8], signs: npt.NDArray[np.uint8]) -> bool:
    return bool(((made[:, -1] >= 0x80) == (signs > 0)).all())


def _are_signs(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    signs: npt.NDArray[np.uint8],
    data: npt.NDArray[np.uint8],
) -> bool:
    """Whether all bytes of numbers before their last sixteen only repeat the sign."""
    long = np.flatnonzero(ends - starts > _DECIMAL_SIZE)
    if not len(long):
        return True
    # Pairs of bounds: each second range is what lies between the numbers.
    bounds = np.stack([starts[long], ends[long] - _DECIMAL_SIZE], axis=1).ravel()
    lowest = np.minimum.reduceat(data, bounds)[::2]
    highest = np.maximum.reduceat(data, bounds)[::2]
    return bool(((lowest == signs[long]) & (highest == signs[long])).all())


def _too_many_digits(stored: Any, precision: int) -> UnfitValueError:
    """The error for the first decimal with too many digits."""
    numbers = (
        int.from_bytes(digits, "big", signed=True) for digits in stored.drop_null().to_pylist()
    )
    number = next(abs(value) for value in numbers if abs(value) >= 10**precision)
    # Python makes no text of very long numbers.
    is_short = number.bit_length() <= _SHORT_BITS_MAX
    digits = len(str(number)) if is_short else f"more than {len(str(2**_SHORT_BITS_MAX)) - 1}"
    return UnfitValueError(
        "a decimal has too many digits", f"digits={digits} digits_of_column={precision}"
    )


def doubles_of(numbers: Any) -> Any:
    """An int64 array as doubles. Raises UnfitValueError for a number that no double is."""
    doubles = numbers.cast(pa.float64(), safe=False)
    before, after = (np.asarray(pc.fill_null(array, 0)) for array in (numbers, doubles))
    # The nearest double of the greatest numbers is 2^63, which no int64 is.
    is_whole = after < 2.0**63
    is_exact = is_whole & (np.where(is_whole, after, 0).astype(np.int64) == before)
    if not is_exact.all():
        raise UnfitValueError(
            "a whole number is not exact as a double", f"number={before[np.argmin(is_exact)]}"
        )
    return doubles
