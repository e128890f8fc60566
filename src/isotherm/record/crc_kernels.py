"""Compiled CRC-32C of many small batches. Importing this module loads Numba and the kernel.

google-crc32c uses the processor's instruction and is far faster per byte, but a call from Python
takes as long as some 1000 bytes do here, and what is appended record by record is 200 bytes long.
Eight bytes a step with eight tables ("slicing by 8").
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numba
import numpy as np
from numba import types

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reversed
_SLICES = 8

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)


def _make_tables():
    tables = np.empty((_SLICES, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for number in range(1, _SLICES):
        before = tables[number - 1]
        tables[number] = (before >> 8) ^ tables[0, before & 0xFF]
    return tables


# Numba takes a global array into the compiled code.
_TABLES = _make_tables()


@numba.njit([types.int64(_BYTES, _NUMBERS, _NUMBERS, _NUMBERS)], cache=True, nogil=True)
def first_wrong_crc(data, starts, ends, crcs):
    """Index of the first range of `data` whose CRC is not the one given; -1 when all are right.

    Ranges must lie within `data`.
    """
    for index in range(len(starts)):
        position = starts[index]
        end = ends[index]
        crc = np.uint32(0xFFFFFFFF)
        while end - position >= _SLICES:
            low = crc ^ (
                np.uint32(data[position])
                | np.uint32(data[position + 1]) << np.uint32(8)
                | np.uint32(data[position + 2]) << np.uint32(16)
                | np.uint32(data[position + 3]) << np.uint32(24)
            )
            crc = (
                _TABLES[7, low & np.uint32(0xFF)]
                ^ _TABLES[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
                ^ _TABLES[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
                ^ _TABLES[4, low >> np.uint32(24)]
                ^ _TABLES[3, data[position + 4]]
                ^ _TABLES[2, data[position + 5]]
                ^ _TABLES[1, data[position + 6]]
                ^ _TABLES[0, data[position + 7]]
            )
            position += _SLICES
        while position < end:
            crc = (crc >> np.uint32(8)) ^ _TABLES[0, (crc ^ data[position]) & np.uint32(0xFF)]
            position += 1
        if np.int64(crc ^ np.uint32(0xFFFFFFFF)) != crcs[index]:
            return index
    return -1
