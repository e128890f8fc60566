"""Compiled writers of the integers of a record. See `isotherm.kernels` for the rules of kernels."""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,unreachable"

from __future__ import annotations

import numpy as np

from isotherm.kernels.parts import inlined


@inlined
def zigzag(value):
    return np.uint64((value << 1) ^ (value >> 63))


@inlined
def varint_size(raw):
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varint(out, position, raw):
    while raw >= np.uint64(0x80):
        out[position] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
        raw >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(raw)
    return position + 1


@inlined
def write_int(out, position, value, size):
    for index in range(size):
        out[position + index] = np.uint8((value >> (8 * (size - 1 - index))) & 0xFF)
