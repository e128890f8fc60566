"""The limits of columns, at their ends.

The oracles are Python's dates, its whole numbers and its doubles.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.tables.column_limits import (
    UnfitValueError,
    check_times,
    dates_of,
    decimals_of,
    doubles_of,
    inside,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGS = st.integers(-(2**63), 2**63 - 1)
REASON = "it does not fit its column: "


def longs(*values: int | None) -> Any:
    return pa.array(values, pa.int64())


def binary(values: list[bytes | None]) -> Any:
    return pa.array(values, pa.binary())


def signed(number: int, more: int = 0) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1 + more, "big", signed=True)


@pytest.mark.parametrize("units_of_second", [1, 1_000, 1_000_000])
def test_times_are_those_of_python(units_of_second: int) -> None:
    ends = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    first, last = ((end - EPOCH) // timedelta(microseconds=1) for end in ends)
    first, last = first * units_of_second // 1_000_000, last * units_of_second // 1_000_000
    check_times(longs(), units_of_second)
    check_times(longs(None, first, 0, last), units_of_second)
    for number, year in (
        (first - 1, 0),
        (last + 1, 10_000),
        (first - 366 * 86_400 * units_of_second - 1, -1),
        (last + 1 + 400 * 365.2425 * 86_400 * units_of_second, 10_400),
    ):
        with pytest.raises(UnfitValueError) as caught:
            check_times(longs(0, None, int(number)), units_of_second)
        assert str(caught.value) == f"{REASON}a time is not in the years 1 to 9999 year={year}"


def test_dates_are_those_of_python() -> None:
    days = [(each - EPOCH.date()).days for each in (date.min, date.max)]
    assert dates_of(longs(days[0], None, days[1])).to_pylist() == [date.min, None, date.max]
    assert dates_of(longs()).type == pa.date32()
    for number, year in ((days[0] - 1, 0), (days[1] + 1, 10_000), (2**63 - 1, None)):
        with pytest.raises(
            UnfitValueError, match="a date is not in the years 1 to 9999 year="
        ) as e:
            dates_of(longs(0, number))
        assert year is None or str(e.value).endswith(f"year={year}")


@given(
    st.integers(1, 38),
    st.lists(st.none() | st.tuples(st.integers(-(10**39), 10**39), st.integers(0, 20)), max_size=9),
    st.integers(0, 3),
)
def test_decimals_are_the_numbers_in_the_bytes(
    precision: int, numbers: list[tuple[int, int] | None], start: int
) -> None:
    fit = [number for number in numbers if number is None or abs(number[0]) < 10**precision]
    stored = binary([None if each is None else signed(*each) for each in fit])[start:]
    column = decimals_of(stored, precision, 1)
    column.validate(full=True)
    assert column.type == pa.decimal128(precision, 1)
    assert column.to_pylist() == [
        None if each is None else Decimal(each[0]).scaleb(-1, Context(prec=39))
        for each in fit[start:]
    ]


@pytest.mark.parametrize("precision", [1, 4, 18, 37, 38])
@pytest.mark.parametrize("sign", [-1, 1])
def test_decimals_with_too_many_digits_tell_both_numbers(precision: int, sign: int) -> None:
    largest = sign * (10**precision - 1)
    for more in (0, 1, 15, 40):
        assert decimals_of(binary([signed(largest, more)]), precision, 0)[0].as_py() == largest
    for number, digits in (
        (largest + sign, precision + 1),
        (sign * 10**40, 41),
        (sign * 2**127, 39),
        (sign * 2**128, 39),
        (sign * 2**128 + 5, 39),
        (sign * 10**300, 301),
        (sign * 256**500, "more than 301"),
    ):
        for more in (0, 1, 20):
            # Behind long numbers that fit.
            stored = [signed(sign, 30), None, signed(number, more)]
            with pytest.raises(UnfitValueError) as caught:
                decimals_of(binary(stored), precision, 0)
            assert str(caught.value) == (
                f"{REASON}a decimal has too many digits"
                f" digits={digits} digits_of_column={precision}"
            )


def test_no_bytes_are_zero_and_nulls_have_no_digits() -> None:
    # The bytes under a null count for nothing.
    valid = pa.py_buffer(bytes([0b101]))
    offsets = pa.array([0, 1, 30, 30], pa.int32()).buffers()[1]
    stored = pa.Array.from_buffers(
        pa.binary(), 3, [valid, offsets, pa.py_buffer(b"\x07" + b"\x01" * 29)]
    )
    assert decimals_of(stored, 4, 0).to_pylist() == [7, None, 0]
    assert decimals_of(binary([]), 4, 2).type == pa.decimal128(4, 2)


@given(st.lists(st.none() | LONGS | st.integers(-(2**60), 2**60).map(lambda n: n // 8 * 8)))
def test_doubles_are_whole_numbers_or_refused(numbers: list[int | None]) -> None:
    unfit = [number for number in numbers if number is not None and int(float(number)) != number]
    if unfit:
        with pytest.raises(UnfitValueError) as caught:
            doubles_of(longs(*numbers))
        assert str(caught.value) == (
            f"{REASON}a whole number is not exact as a double number={unfit[0]}"
        )
    else:
        assert doubles_of(longs(*numbers)).to_pylist() == numbers


@pytest.mark.parametrize(
    ("number", "fits"),
    [(2**53, True), (-(2**53), True), (2**53 + 1, False), (-(2**53) - 1, False), (2**62, True),
     (2**63 - 1, False), (2**63 - 1024, True), (-(2**63), True)],
)  # fmt: skip
def test_the_ends_of_doubles(number: int, fits: bool) -> None:
    if fits:
        assert doubles_of(longs(None, number)).to_pylist() == [None, number]
    else:
        with pytest.raises(UnfitValueError):
            doubles_of(longs(None, number))


def test_errors_name_the_path_of_the_field() -> None:
    with pytest.raises(UnfitValueError) as caught, inside("a"), inside("[]"), inside("b"):
        check_times(longs(2**62), 1)
    assert "the years 1 to 9999 field=a/[]/b year=" in str(caught.value)
