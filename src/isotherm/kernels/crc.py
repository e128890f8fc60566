"""Compiled CRC-32C of many batches. Importing this module loads the kernel.

As fast per byte as google-crc32c, but without a Python call per batch, which takes as long as
three thousand bytes. The processor's CRC instruction takes eight bytes and has a latency of three
steps, so three lanes of a batch are computed in parallel. To combine them, the CRC of an earlier
lane is extended by as many zeros as follow it, with lookup tables.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,assignment"

from __future__ import annotations

from typing import Any

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined, primitive
from isotherm.kernels.processor import has_crc_instruction
from isotherm.kernels.raw_memory import byte_at, word_at
from isotherm.kernels.tables import BATCHES, BYTES

HAS_INSTRUCTION = has_crc_instruction()
"""Whether Numba compiles for a processor with the CRC instruction. There is no kernel otherwise."""

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reversed
_WORD_SIZE = 8
_LANE_SIZE = 512  # a power of two: `_lane_tables` doubles up to it
CRC_START = 21  # the CRC covers a batch from its attributes on


def _after_zeros(tables, sums):
    """The CRCs `sums`, each extended by the zeros of `tables`."""
    parts = [tables[index, sums >> (8 * index) & 0xFF] for index in range(4)]
    return parts[0] ^ parts[1] ^ parts[2] ^ parts[3]


def _lane_tables():
    """Tables by byte of a CRC: its value after one lane of zeros, and after two."""
    sums = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    for _ in range(8):  # one byte of zeros
        sums = sums >> 1 ^ np.where(sums & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    size = 1
    while size < _LANE_SIZE:
        # Each step doubles the zeros: the tables are applied to themselves.
        sums = _after_zeros(sums, sums)
        size *= 2
    return sums, _after_zeros(sums, sums)


# Numba compiles global arrays into the machine code as constants.
_AFTER_ONE_LANE, _AFTER_TWO_LANES = _lane_tables()


def _instruction(name, bits):
    """An intrinsic that adds `bits` bits to a CRC."""

    @primitive
    def add(_context, _total, _added):
        from llvmlite import ir
        from numba import types

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


@inlined
def _joined(tables, total, lane):
    """The CRC of two adjacent parts. `tables` match the length of the second part."""
    return (
        np.uint64(tables[0, total & np.uint64(0xFF)])
        ^ np.uint64(tables[1, total >> np.uint64(8) & np.uint64(0xFF)])
        ^ np.uint64(tables[2, total >> np.uint64(16) & np.uint64(0xFF)])
        ^ np.uint64(tables[3, total >> np.uint64(24)])
        ^ lane
    )


@inlined
def crc32c(data, position, end):
    """The CRC-32C of `data[position:end]`. Only for processors with the instruction."""
    total = np.uint64(0xFFFFFFFF)
    while end - position >= 3 * _LANE_SIZE:
        # CRCs are linear: the later lanes start at 0, and the first lane carries the initial value.
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
    """Index of the first batch whose CRC is wrong; -1 if all are right."""
    for index in range(len(batches)):
        row = batches[index]
        if np.int64(crc32c(data, row.position + CRC_START, row.position + row.size)) != row.crc:
            return index
    return -1


# The index of the first batch with a wrong CRC, or -1. None on a processor without the instruction.
first_wrong_crc: Any = (
    kernel(types.int64(BYTES, BATCHES))(_first_wrong) if HAS_INSTRUCTION else None
)
