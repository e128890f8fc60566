"""The kernel for small batches gives what google-crc32c gives."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
import pytest

from isotherm.record.crc_kernels import first_wrong_crc


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 150, 1024])
def test_crc_of_each_range_is_right_and_a_wrong_one_is_named(size: int) -> None:
    data = np.frombuffer(random.Random(size).randbytes(10_000), dtype=np.uint8)
    starts = np.arange(0, len(data) - size, 701)
    crcs = np.array([google_crc32c.value(data[s : s + size].tobytes()) for s in starts])
    for each in (starts, crcs):
        each.flags.writeable = False
    ends = starts + size
    ends.flags.writeable = False
    assert first_wrong_crc(data, starts, ends, crcs) == -1
    for wrong in (0, len(starts) - 1):
        damaged = crcs.copy()
        damaged[wrong] ^= 1 << (wrong % 32)
        damaged.flags.writeable = False
        assert first_wrong_crc(data, starts, ends, damaged) == wrong
