"""Compiled loops over JSON values: which of them have numbers, depths or words that need a closer
look.

Values are `data[offsets[i]:offsets[i + 1]]`. They need not be JSON: of other bytes the result means
nothing, but up to the first byte that is not JSON it is right.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined
from isotherm.kernels.raw_memory import byte_at, word_at
from isotherm.kernels.tables import BYTES, BYTES_OUT, INT32_OUT, INT64_OUT

TOO_DEEP = 1
"""The flag of a value with more levels of objects and arrays than allowed."""
WORD = 2
"""The flag of a value with NaN or Infinity, which are no JSON."""
DOUBTFUL = 4
"""The flag of a value with a number that may be in no column: a whole one beyond 64 bits, or
another one that has more than 17 digits or is near the bounds of doubles. Also that of a value with
many levels."""
ONLY_LONG = 8
"""The flag of a value with a whole number that int64 has and double has not."""
OTHER_FORM = 16
"""The flag of a value with a number that is whole, and of int64, but is not written so: 3.0 or
1e2.
"""

_COPIED = 32

FLOAT_DIGITS = 15
"""A decimal with so many digits is the shortest one of its double."""
FLOAT_DIGITS_MAX = 17
"""The shortest decimal of a double has at most so many digits."""
COPIED_SIZE_MIN = FLOAT_DIGITS + 1
"""The bytes of the shortest number that is copied."""
GROWTH_MAX = 5
"""How much longer a number may be that is written as a whole one: 9e18 has 4 bytes, and 19 then."""
_DIGITS_MAX = 19
_EXPONENT_MAX = 290
"""Between 10 to this power and 10 to minus it, all doubles have 53 bits."""
_POWER_LIMIT = 1_000_000_000
"""Larger powers of ten need not be told apart."""
_WHOLE, _OTHER, _NO_JSON = 0, 1, 2
"""The forms of numbers: without fraction and power, with one of them, and such as JSON does not
have.
"""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_PLUS, _MINUS, _POINT = ord("+"), ord("-"), ord(".")
_OPEN, _CLOSED = ord("{"), ord("}")
_ZERO, _NINE, _E, _I, _N = ord("0"), ord("9"), ord("e"), ord("I"), ord("N")
_LOWER = 0x20
_INT64_MAX = np.uint64(2**63 - 1)
_DOUBLE_WHOLE_MAX = np.uint64(2**53)
_WORD_SIZE = 8
_LOW_BITS, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES = np.uint64(_QUOTE) * _LOW_BITS, np.uint64(_BACKSLASH) * _LOW_BITS
_ONE, _TEN, _NONE = np.uint64(1), np.uint64(10), np.uint64(0)

_LOWER_HALF = np.uint64(2**32 - 1)
_HALF_SHIFT = np.uint64(32)
_TOP_BIT = np.uint64(2**63)
_MANTISSA_MIN = np.uint64(2**52)
_UNCERTAINTY = 0.004
"""The error of `_is_surely_shortest`, in units of the last bit of a double.

It is less than two of 2**10.
"""
_POWER_MIN = -(_EXPONENT_MAX + FLOAT_DIGITS_MAX)


def _leading_bits(power: int) -> int:
    """The first 64 bits of ten to this power."""
    whole: int = 10**power if power >= 0 else (1 << 128 - 4 * power) // 10**-power
    return whole << 64 >> whole.bit_length()


_POWERS = np.array(
    [_leading_bits(power) for power in range(_POWER_MIN, _EXPONENT_MAX + 1)], np.uint64
)

_READONLY_INT32 = types.Array(types.int32, 1, "C", readonly=True)


@inlined
def _byte(data, position):
    return np.int64(byte_at(data, position))


@inlined
def _has_zero_byte(word):
    return (word - _LOW_BITS) & ~word & _HIGH_BITS != _NONE


@inlined
def _string_end(data, position, end):
    """The position after the string whose quote is at `position`, or beyond `end`."""
    position += 1
    while position < end:
        stop = position + _WORD_SIZE
        if stop <= end:
            word = word_at(data, position)
            if not _has_zero_byte(word ^ _QUOTES) and not _has_zero_byte(word ^ _BACKSLASHES):
                position = stop
                continue
        stop = min(stop, end)
        while position < stop:
            byte = _byte(data, position)
            position += 2 if byte == _BACKSLASH else 1
            if byte == _QUOTE:
                return position
    return position + 1


@inlined
def _power(data, position, end):
    is_negative = False
    if position < end and (_byte(data, position) == _MINUS or _byte(data, position) == _PLUS):
        is_negative = _byte(data, position) == _MINUS
        position += 1
    power = 0
    while position < end and _ZERO <= _byte(data, position) <= _NINE:
        if power < _POWER_LIMIT:
            power = power * 10 + (_byte(data, position) - _ZERO)
        position += 1
    return (-power if is_negative else power), position


@inlined
def _digits(data, position, end):
    """Read digits, with at most one point among them. Returns their end, the position after the
    point (beyond `end` if there is none), the count of digits without zeros before and after them,
    these digits as a number, and the count of zeros after them."""
    digits = _NONE
    count = 0
    zeros = 0
    fraction_start = end + 1
    while position < end:
        byte = _byte(data, position)
        if _ZERO < byte <= _NINE:
            for _ in range(min(zeros, _DIGITS_MAX + 1)):
                digits *= _TEN
            digits = digits * _TEN + np.uint64(byte - _ZERO)
            count += zeros + 1
            zeros = 0
        elif byte == _ZERO:
            zeros += count > 0
        elif byte == _POINT and fraction_start > end:
            fraction_start = position + 1
        else:
            break
        position += 1
    return position, fraction_start, count, digits, zeros


@inlined
def _number(data, position, end):
    """Read the number at `position`.

    Returns its end, whether it has a minus, its form, the count of its digits without zeros before
    and after them, these digits as a number (wrong if there are more than 19), and the power of ten
    that it is multiplied with.
    """
    is_negative = _byte(data, position) == _MINUS
    start = position + is_negative
    position, fraction_start, count, digits, zeros = _digits(data, start, end)
    form = _WHOLE if fraction_start > end else _OTHER
    exponent = zeros - max(position - fraction_start, 0)
    # JSON has a digit before the point, no zero before other digits, and a digit after the point.
    size = min(fraction_start - 1, position) - start
    if size == 0 or (size > 1 and _byte(data, start) == _ZERO) or fraction_start == position:
        form = _NO_JSON
    if position < end and _byte(data, position) | _LOWER == _E:
        power, position = _power(data, position + 1, end)
        exponent += power
        form = max(form, _OTHER)
        if not _ZERO <= _byte(data, position - 1) <= _NINE:
            form = _NO_JSON
    if position < end and (_byte(data, position) == _POINT or _byte(data, position) | _LOWER == _E):
        form = _NO_JSON
    return position, is_negative, form, count, digits, exponent


@inlined
def _is_int64(is_negative, count, digits, exponent):
    """Whether the number is a whole one of int64, and its magnitude if it is."""
    if count == 0:
        return True, _NONE
    if exponent < 0 or count + exponent > _DIGITS_MAX:
        return False, _NONE
    for _ in range(exponent):
        digits *= _TEN
    limit = _INT64_MAX + _ONE if is_negative else _INT64_MAX
    return digits <= limit, digits


@inlined
def _is_double(magnitude):
    while magnitude > _DOUBLE_WHOLE_MAX and magnitude & _ONE == _NONE:
        magnitude >>= _ONE
    return magnitude <= _DOUBLE_WHOLE_MAX


@inlined
def _high_product(one, other):
    """The upper 64 bits of the product."""
    one_low, one_high = one & _LOWER_HALF, one >> _HALF_SHIFT
    low, high = other & _LOWER_HALF, other >> _HALF_SHIFT
    middle = one_high * low + (one_low * low >> _HALF_SHIFT)
    other_middle = one_low * high + (middle & _LOWER_HALF)
    return one_high * high + (middle >> _HALF_SHIFT) + (other_middle >> _HALF_SHIFT)


@inlined
def _is_surely_shortest(digits, exponent):
    """Whether these digits, the last of which is not 0, times the power of ten are certainly the
    shortest decimal of their double, and the nearest one of so many digits.

    The number is computed with 62 bits or more: 53 for the double, the others tell the distance
    from it. It is the shortest if the decimals with one digit less, below and above it, belong to
    other doubles.
    """
    scaled = digits
    while scaled < _TOP_BIT:
        scaled <<= _ONE
    product = _high_product(scaled, _POWERS[exponent - _POWER_MIN])
    shift = np.uint64(11) if product >= _TOP_BIT else np.uint64(10)
    mantissa = product >> shift
    distance = np.float64(product - (mantissa << shift)) / np.float64(_ONE << shift)
    step = np.float64(mantissa) / np.float64(digits)
    if mantissa == _MANTISSA_MIN or abs(distance - 0.5) < _UNCERTAINTY:
        # Below a power of two doubles are twice as near to each other.
        return False
    if distance > 0.5:
        distance -= 1.0
    last = np.float64(digits % _TEN)
    return (
        abs(distance) < step / 2 - _UNCERTAINTY
        and distance - last * step < -0.5 - _UNCERTAINTY
        and distance + (10.0 - last) * step > 0.5 + _UNCERTAINTY
    )


@inlined
def _flags_of_number(is_negative, form, count, digits, exponent, is_form_free):
    is_int64, magnitude = _is_int64(is_negative, count, digits, exponent)
    flags = OTHER_FORM if is_int64 and form == _OTHER else 0
    if is_int64 and (form == _WHOLE or is_form_free):
        return flags if _is_double(magnitude) else flags | ONLY_LONG
    if form == _WHOLE or count > FLOAT_DIGITS_MAX or abs(exponent + count) > _EXPONENT_MAX:
        return flags | DOUBTFUL
    if count <= FLOAT_DIGITS or _is_surely_shortest(digits, exponent):
        return flags
    return flags | _COPIED


@inlined
def _step(byte):
    """1 for the start of an object or an array, -1 for the end."""
    # [ is 0x5b and { is 0x7b, ] and } are 0x5d and 0x7d.
    if byte | _LOWER == _OPEN:
        return 1
    return -1 if byte | _LOWER == _CLOSED else 0


@kernel(
    types.int64(
        BYTES,
        _READONLY_INT32,
        types.int64,
        types.int64,
        types.boolean,
        BYTES_OUT,
        BYTES_OUT,
        INT32_OUT,
        INT32_OUT,
    )
)
def look_through(data, offsets, depth_sure, depth_max, is_form_free, flags, texts, ends, rows):
    """Fill the flags of each value. One with more levels than `depth_sure` is doubtful. Copy
    numbers of 16 and 17 digits that may not be the shortest decimal of their double to `texts`, one
    after the other; their ends there go into `ends`, and the indexes of their values into `rows`.
    Returns their number.

    If `is_form_free`, a whole number is whole in any form. `texts` has room for the bytes of all
    values, `ends` and `rows` for one number in 16 bytes.
    """
    copied = 0
    text_end = 0
    for row in range(len(offsets) - 1):
        position, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        depth = 0
        flag = 0
        while position < end:
            byte = _byte(data, position)
            if byte == _QUOTE:
                position = _string_end(data, position, end)
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                start = position
                position, is_negative, form, count, digits, exponent = _number(data, position, end)
                number_flags = _flags_of_number(
                    is_negative, form, count, digits, exponent, is_form_free
                )
                flag |= number_flags & ~_COPIED
                if number_flags & _COPIED:
                    for index in range(start, position):
                        texts[text_end] = _byte(data, index)
                        text_end += 1
                    ends[copied] = text_end
                    rows[copied] = row
                    copied += 1
            else:
                depth += _step(byte)
                if depth > depth_sure:
                    flag |= DOUBTFUL if depth <= depth_max else TOO_DEEP
                elif byte in (_N, _I):
                    flag |= WORD
                position += 1
        flags[row] = flag
    return copied


@kernel(types.void(BYTES, _READONLY_INT32, INT64_OUT, INT64_OUT))
def read_numbers(data, offsets, digits, exponents):
    """Read one number from each value, as its digits and the power of ten that they are
    multiplied with.
    """
    for row in range(len(offsets) - 1):
        _, _, _, _, value, exponent = _number(data, offsets[row], offsets[row + 1])
        digits[row] = np.int64(value)
        exponents[row] = exponent


@inlined
def _write(out, start, magnitude):
    width = 1
    left = magnitude
    while left >= _TEN:
        left //= _TEN
        width += 1
    for index in range(width):
        out[start + width - 1 - index] = _ZERO + np.uint8(magnitude % _TEN)
        magnitude //= _TEN
    return width


@kernel(types.int64(BYTES, _READONLY_INT32, BYTES_OUT, INT32_OUT))
def write_whole(data, offsets, out, out_offsets):
    """Copy the values, with all whole numbers of int64 written as such: 3 for 3.0, 100 for 1e2.
    Returns the size.

    `out` has room for five times the bytes.
    """
    size = 0
    out_offsets[0] = 0
    for row in range(len(offsets) - 1):
        position, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        while position < end:
            start = position
            byte = _byte(data, position)
            if byte == _QUOTE:
                position = min(_string_end(data, position, end), end)
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                position, is_negative, form, count, digits, exponent = _number(data, position, end)
                fits, magnitude = _is_int64(is_negative, count, digits, exponent)
                if fits and form == _OTHER:
                    if is_negative:
                        out[size] = _MINUS
                        size += 1
                    size += _write(out, size, magnitude)
                    start = position
            else:
                position += 1
            for index in range(start, position):
                out[size] = _byte(data, index)
                size += 1
        out_offsets[row + 1] = size
    return size
