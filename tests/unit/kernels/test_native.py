"""Kernels are called as machine code: with which arguments, with which results, and where from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isotherm.kernels import types
from isotherm.kernels.compiler import image_of
from isotherm.kernels.linking import Image, LinkError
from isotherm.kernels.native import native_kernel
from isotherm.kernels.raw_memory import copy
from isotherm.kernels.tables import BATCH, BATCHES, BYTES, BYTES_OUT, INT64_OUT
from isotherm.kernels.types import Signature

pytestmark = pytest.mark.slow  # as a file: the kernels of these tests are compiled

int64 = types.int64
copy_bytes: Any = copy  # mypy does not know how kernels call it
STRIDED = types.Array(int64, 1, "A", readonly=True)
TABLE_OUT = types.Array(int64, 2, "C")


def compiled(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """The kernel of the function, from the bytes in which its image is kept."""
    image = Image.from_bytes(image_of(function, signature).to_bytes())
    return native_kernel(function.__name__, signature, image)


def weigh(column: Any, table: Any, is_doubled: Any, first: Any, factor: Any) -> Any:
    """Numbers that are different for all places of the arguments."""
    strided, data = column
    total = first
    for index in range(len(strided)):
        total += strided[index] * (index + 1)
    for index in range(len(data)):
        total += np.int64(data[index]) * factor
    for row in range(table.shape[0]):
        for at in range(table.shape[1]):
            table[row, at] = 10 * row + at
    return (2 * total if is_doubled else total), np.int64(len(strided)), table.size


WEIGH = types.UniTuple(int64, 3)(
    types.Tuple((STRIDED, BYTES)), TABLE_OUT, types.boolean, int64, int64
)


def test_arguments_and_results_are_those_of_the_function() -> None:
    image = image_of(weigh, WEIGH)
    # Code that runs at any address: here at two.
    for kernel in (native_kernel("a", WEIGH, image), native_kernel("b", WEIGH, image)):
        for step in (1, 2, -3):
            column = (np.arange(20)[::step], np.frombuffer(b"\1\2\3", np.uint8))
            tables = np.zeros((3, 4), np.int64), np.zeros((3, 4), np.int64)
            for is_doubled, first in ((True, -(1 << 40)), (False, (1 << 62) + 7)):
                expected = weigh(column, tables[0], is_doubled, first, -5)
                assert kernel(column, tables[1], is_doubled, first, -5) == expected
            assert (tables[0] == tables[1]).all()


def fill(data: Any, out: Any) -> None:
    copy_bytes(data, 0, len(out), out, 0)


def test_kernel_without_a_result_gives_none_and_may_call_the_c_library() -> None:
    kernel = compiled(fill, types.void(BYTES, BYTES_OUT))
    data = np.frombuffer(bytes(range(256)) * 100, np.uint8)
    out = np.zeros(20_000, np.uint8)
    assert kernel(data, out) is None
    assert out.tobytes() == data[:20_000].tobytes()


def total_size(batches: Any, sums: Any) -> Any:
    total = 0
    for index in range(len(batches)):
        total += batches[index].size
        sums[index] = total
    return total


@pytest.fixture(scope="module")
def total_size_kernel() -> Callable[..., Any]:
    return compiled(total_size, int64(BATCHES, INT64_OUT))


def test_rows_of_tables_are_read(total_size_kernel: Callable[..., Any]) -> None:
    batches, sums = np.zeros(5, BATCH), np.zeros(5, np.int64)
    batches["size"] = [1, 2, 3, 4, 5]
    assert total_size_kernel(batches[1:], sums) == 14
    assert sums.tolist() == [2, 5, 9, 14, 0]
    assert total_size_kernel(batches[:0], sums[:0]) == 0


READ_ONLY = np.frombuffer(bytes(40), np.int64)


@pytest.mark.parametrize(
    "sums",
    [
        np.zeros(5, np.int32),
        np.zeros((5, 1), np.int64),
        np.zeros(10, np.int64)[::2],
        np.zeros(5, ">i8"),
        np.zeros(41, np.uint8)[1:].view(np.int64),
        READ_ONLY,
        [0] * 5,
        None,
    ],
    ids=["narrow", "two axes", "strided", "big-endian", "unaligned", "read-only", "list", "none"],
)
def test_array_of_another_type_is_refused(total_size_kernel: Callable[..., Any], sums: Any) -> None:
    with pytest.raises(TypeError, match="total_size"):
        total_size_kernel(np.zeros(5, BATCH), sums)


def divide(number: Any, divisor: Any) -> Any:
    return number // divisor


def test_exception_of_the_code_is_an_error_of_the_call() -> None:
    kernel = compiled(divide, int64(int64, int64))
    assert kernel(7, -2) == -4
    with pytest.raises(ArithmeticError, match="divide"):
        kernel(7, 0)
    with pytest.raises(TypeError):
        kernel(7)


def rounded_root(number: Any) -> Any:
    return np.int64(math.exp(number))


def test_code_that_needs_another_library_is_not_linked() -> None:
    with pytest.raises(LinkError, match="exp"):
        image_of(rounded_root, int64(int64))
