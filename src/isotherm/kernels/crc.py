"""Compiled CRC-32C of many batches. Importing this module loads Numba and the kernel.

As fast per byte as google-crc32c, without a call from Python for each batch, which takes as long as
three thousand bytes do. The processor's instruction takes eight bytes a step, but its result is there
three steps later only; so three lanes of a batch are summed at a time. What sums become by the zeros
that a lane would be is looked up in tables, and joins them.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,assignment"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, register_jitable

from isotherm.kernels.kernel import kernel
from isotherm.kernels.raw_memory import byte_at, word_at
from isotherm.kernels.tables import BATCHES, BYTES

HAS_INSTRUCTION = "+sse4.2" in cpu_target.target_context.codegen().magic_tuple()[2]
"""Whether Numba compiles for a processor that has it: there is no kernel elsewhere."""

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reversed
_WORD_SIZE = 8
_LANE_SIZE = 512
_CRC_START = 21


def _after_zeros(tables, sums):
    """What sums become by the zeros that `tables` are for."""
    parts = [tables[index, sums >> (8 * index) & 0xFF] for index in range(4)]
    return parts[0] ^ parts[1] ^ parts[2] ^ parts[3]


def _lane_tables():
    """For each byte of a sum, what one and two lanes of zeros make of it."""
    sums = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    for _ in range(8):  # one byte of zeros
        sums = sums >> 1 ^ np.where(sums & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    size = 1
    while size < _LANE_SIZE:
        sums = _after_zeros(sums, sums)
        size *= 2
    return sums, _after_zeros(sums, sums)


# Numba takes global arrays into the compiled code.
_AFTER_ONE_LANE, _AFTER_TWO_LANES = _lane_tables()


def _instruction(name, bits):
    """An intrinsic that adds so many bits to a sum."""

    @intrinsic
    def add(_context, _total, _added):
        def generate(_context, builder, _signature, arguments):
            width = ir.IntType(max(bits, 32))
            kind = ir.FunctionType(width, [width, ir.IntType(bits)])
            function = builder.module.declare_intrinsic(name, (), kind)
            total = arguments[0] if bits == 64 else builder.trunc(arguments[0], width)
            added = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            result = builder.call(function, [total, added])
            return result if bits == 64 else builder.zext(result, ir.IntType(64))

        return types.uint64(types.uint64, types.uint64), generate

    return add


_add_word = _instruction("llvm.x86.sse42.crc32.64.64", 64)
_add_byte = _instruction("llvm.x86.sse42.crc32.32.8", 8)


@register_jitable(forceinline=True)
def _joined(tables, total, lane):
    """The sum of what `total` and then `lane`, begun at 0, are the sums of; `tables` fit the latter."""
    return (
        np.uint64(tables[0, total & np.uint64(0xFF)])
        ^ np.uint64(tables[1, total >> np.uint64(8) & np.uint64(0xFF)])
        ^ np.uint64(tables[2, total >> np.uint64(16) & np.uint64(0xFF)])
        ^ np.uint64(tables[3, total >> np.uint64(24)])
        ^ lane
    )


@register_jitable(forceinline=True)
def _crc(data, position, end):
    total = np.uint64(0xFFFFFFFF)
    while end - position >= 3 * _LANE_SIZE:
        second = third = np.uint64(0)
        for _ in range(_LANE_SIZE // _WORD_SIZE):
            total = _add_word(total, word_at(data, position))
            second = _add_word(second, word_at(data, position + _LANE_SIZE))
            third = _add_word(third, word_at(data, position + 2 * _LANE_SIZE))
            position += _WORD_SIZE
        total = _joined(_AFTER_TWO_LANES, total, _joined(_AFTER_ONE_LANE, second, third))
        position += 2 * _LANE_SIZE
    while end - position >= _WORD_SIZE:
        total = _add_word(total, word_at(data, position))
        position += _WORD_SIZE
    while position < end:
        total = _add_byte(total, byte_at(data, position))
        position += 1
    return total ^ np.uint64(0xFFFFFFFF)


def _first_wrong(data, batches):
    """Index of the first of some batches of `data` whose CRC is wrong; -1 when all are right."""
    for index in range(len(batches)):
        row = batches[index]
        if np.int64(_crc(data, row.position + _CRC_START, row.position + row.size)) != row.crc:
            return index
    return -1


# None on a processor without the instruction.
first_wrong_crc: Any = (
    kernel(types.int64(BYTES, BATCHES))(_first_wrong) if HAS_INSTRUCTION else None
)
