"""CRC-32C (Castagnoli), which protects batches and some files of a log.

The one module that knows the library, so that it can be changed (docs/decisions/0301).
"""

from __future__ import annotations

import google_crc32c
import numpy as np

from isotherm.record.varint import ReadBuffer

# Of bytes, or an array of them, as an int.
crc32c_of_array = google_crc32c.value


def crc32c_extended(crc: int, buffer: ReadBuffer) -> int:
    """CRC-32C of bytes whose first ones have `crc` (0 if there are none), and whose last ones are
    those of a contiguous buffer. Does not copy it."""
    return int(google_crc32c.extend(crc, np.frombuffer(buffer, dtype=np.uint8)))


def crc32c(buffer: ReadBuffer) -> int:
    """CRC-32C of all bytes of a contiguous buffer. Does not copy it."""
    # The C function accepts only objects whose buffer needs no release: `bytes` and arrays, but not
    # bytearray and memoryview. An array over the same memory costs 0.1 us.
    return int(crc32c_of_array(np.frombuffer(buffer, dtype=np.uint8)))
