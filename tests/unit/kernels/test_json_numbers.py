"""The loops over JSON values, against Python's json and decimal."""

from __future__ import annotations

import itertools
import json
import struct
from decimal import Decimal
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.kernels import json_numbers as kernels

DEPTH_SURE, DEPTH_MAX = 2, 3
NUMBERS = [
    *("0", "-0", "7", "-7", "9007199254740992", "9007199254740993", "-9007199254740993"),
    *("9007199254740994", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "18446744073709551616", "1" + "0" * 18, "1" + "0" * 19, "1" * 40),
    *("1.0", "-3.000", "1e2", "1E+2", "10.5e1", "150e-1", "155e-1", "0.0", "-0e7", "1.5", "0.1"),
    *("9007199254740993.0", "92233720368547758070e-1", "1e18", "1e19", "1e20", "9.3e18"),
    *("0.123456789012345", "0.1234567890123456", "0.12345678901234567", "0.123456789012345678"),
    *("123456789012345.6", "1.234567890123456000", "0.0001234567890123456", "1e290", "1e291"),
    *("1e-290", "1e-292", "0." + "0" * 400 + "1", "1" + "0" * 400 + ".5", "1e999999999999"),
]


def looked_through(
    values: list[bytes], *, is_form_free: bool = False
) -> tuple[list[int], list[tuple[int, bytes]]]:
    """The flags of the values, and the copied numbers with the indexes of their values."""
    data = np.frombuffer(b"".join(values), np.uint8)
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    offsets.flags.writeable = False
    flags, texts = np.full(len(values), 0xFF, np.uint8), np.zeros(len(data), np.uint8)
    ends, rows = np.zeros(len(data), np.int32), np.zeros(len(data), np.int32)
    count = kernels.look_through(
        data, offsets, DEPTH_SURE, DEPTH_MAX, is_form_free, flags, texts, ends, rows
    )
    starts = [0, *ends[:count]]
    copied = [bytes(texts[a:b]) for a, b in itertools.pairwise(starts)]
    return flags.tolist(), list(zip(rows[:count].tolist(), copied, strict=True))


def flags_of(text: str, *, is_form_free: bool) -> tuple[int, bool]:
    """The flags of a number, and whether it must be copied."""
    number = Decimal(text)
    digits = len("".join(map(str, number.as_tuple().digits)).strip("0"))
    is_whole = text.lstrip("-").isdigit()
    is_small = number == 0 or -450 < number.adjusted() < 20
    is_long = is_small and number == int(number) and -(2**63) <= int(number) < 2**63
    flags = kernels.OTHER_FORM if is_long and not is_whole else 0
    if is_long and (is_whole or is_form_free):
        return flags | (kernels.ONLY_LONG if int(float(number)) != int(number) else 0), False
    if is_whole or digits > 17 or (number != 0 and not -291 <= number.adjusted() < 290):
        return flags | kernels.DOUBTFUL, False
    return flags, number != Decimal(repr(float(number)))


@pytest.mark.parametrize("is_form_free", [False, True])
@pytest.mark.parametrize("text", NUMBERS)
def test_flags_of_numbers(text: str, is_form_free: bool) -> None:
    values = [b"", text.encode(), b"[true,%s]" % text.encode(), b'{"1e999":%s}' % text.encode()]
    flags, copied = looked_through(values, is_form_free=is_form_free)
    expected, is_copied = flags_of(text, is_form_free=is_form_free)
    assert flags == [0, expected, expected, expected]
    assert copied or not is_copied
    assert not copied or copied == [(row, text.encode()) for row in (1, 2, 3)]


def test_what_is_not_copied_is_the_shortest_decimal_of_its_double() -> None:
    rng = Random(1)
    doubles = [struct.unpack("d", rng.randbytes(8))[0] for _ in range(3000)]
    doubles += [rng.random() for _ in range(3000)]
    printed = [repr(each) for each in doubles if 1e-280 < abs(each) < 1e280]
    # Neighbours of such decimals, and any digits.
    others = [f"{each[:-1]}{rng.randrange(10)}" for each in printed if "e" not in each]
    others += [repr(2.0**power) for power in range(-900, 900)]
    others += [
        f"{rng.randrange(1, 10)}.{rng.randrange(10**digits):0{digits}}e{rng.randint(-280, 280)}"
        for digits in (15, 16)
        for _ in range(3000)
    ]
    _, copied = looked_through([each.encode() for each in printed + others])
    rows = {row for row, _ in copied}
    inexact = {
        row
        for row, each in enumerate(printed + others)
        if Decimal(repr(float(each))) != Decimal(each)
    }
    assert len(inexact) > 3000
    assert inexact <= rows
    # Nearly all that writers print is decided by the kernel.
    assert sum(row < len(printed) for row in rows) < len(printed) / 20


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        ("[[1]]", 0),
        ("[[[1]]]", kernels.DOUBTFUL),
        ("[[[[1]]]]", kernels.DOUBTFUL | kernels.TOO_DEEP),
        ('{"a":{"b":[{}]}}', kernels.DOUBTFUL | kernels.TOO_DEEP),
        ("[[]][[]][[]][[]]", 0),
        ('["[[[[{{{{"]', 0),
        ("[NaN]", kernels.WORD),
        ("-Infinity", kernels.WORD),
        ('["NaN"]', 0),
        ("[true,false,null]", 0),
        ("-", 0),
        ("1e", 0),
        ("1.", 0),
    ],
)
def test_depths_and_words(value: str, flag: int) -> None:
    assert looked_through([value.encode(), b"1"])[0] == [flag, 0]


@settings(derandomize=True, max_examples=200)
@given(st.lists(st.text('a"\\é1e9N[', max_size=30), max_size=4))
def test_strings_end_where_they_end(texts: list[str]) -> None:
    values = [json.dumps([text, 1]).replace("1]", "NaN]").encode() for text in texts]
    assert looked_through(values)[0] == [kernels.WORD] * len(values)
    values = [json.dumps([text]).encode() for text in texts]
    assert looked_through(values)[0] == [0] * len(values)
    # A string without an end goes no further than its value.
    values = [json.dumps(text)[:-1].encode() for text in texts] + [b"NaN"]
    assert looked_through(values)[0] == [0] * len(texts) + [kernels.WORD]


def test_whole_numbers_are_written_as_such() -> None:
    values = {
        b"": b"",
        b'{"a 1.0 \\" 1e2":1.0}': b'{"a 1.0 \\" 1e2":1}',
        b"[-1.50e1,2.5,1e18,1e19,0.0,-0.0]": b"[-15,2.5,1000000000000000000,1e19,0,-0]",
        b"9223372036854775807.0 ": b"9223372036854775807 ",
        b"-9.223372036854775808E18": b"-9223372036854775808",
        b"9223372036854775808.0": b"9223372036854775808.0",
        # These are no JSON, and must not become it.
        b"1. 1.0.0 01.0 -.0 1.0e 1.0e+ 1e2.5 1e2e3 .0": (
            b"1. 1.0.0 01.0 -.0 1.0e 1.0e+ 1e2.5 1e2e3 .0"
        ),
        b'"1.0': b'"1.0',
        b"-": b"-",
    }
    data = np.frombuffer(b"".join(values), np.uint8)
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    offsets.flags.writeable = False
    out, ends = (
        np.zeros(len(data) * kernels.GROWTH_MAX, np.uint8),
        np.zeros(len(values) + 1, np.int32),
    )
    size = kernels.write_whole(data, offsets, out, ends)
    assert [bytes(out[a:b]) for a, b in itertools.pairwise(ends)] == list(values.values())
    assert size == ends[-1]


def test_digits_and_powers_of_numbers() -> None:
    texts = ["12.50", "1e20", "0.00123E-5", "123456789.12345678", "5e-324", "100"]
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    offsets.flags.writeable = False
    digits, powers = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    kernels.read_numbers(data, offsets, digits, powers)
    assert digits.tolist() == [125, 1, 123, 12345678912345678, 5, 1]
    assert powers.tolist() == [-1, 20, -10, -8, -324, 2]
