"""CRC-32C (Castagnoli), the checksum of record batches."""

from __future__ import annotations

import google_crc32c
import numpy as np

from isotherm.record.varint import ReadBuffer


def crc32c(buffer: ReadBuffer) -> int:
    """Checksum of all bytes of a contiguous buffer. Does not copy it."""
    # The C function accepts only objects whose buffer needs no release: `bytes` and arrays, but not
    # bytearray and memoryview. An array over the same memory costs 0.1 us.
    return int(google_crc32c.value(np.frombuffer(buffer, dtype=np.uint8)))
