"""Both ways of checking the CRCs of many batches agree with google-crc32c."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import pytest

from isotherm.kernels import crc
from isotherm.kernels.tables import BATCH
from isotherm.record.batch_table import first_wrong_crc_by_library

CRC_START = 21
WAYS = [first_wrong_crc_by_library]
if crc.HAS_INSTRUCTION:
    WAYS.append(crc.first_wrong_crc)


@pytest.mark.parametrize("first_wrong_crc", WAYS, ids=["library", "instruction"][: len(WAYS)])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 150, 1535, 1536, 1537, 1544, 5000, 16_384])
def test_crc_of_each_batch_is_right_and_a_wrong_one_is_named(
    size: int, first_wrong_crc: Callable[[Any, Any], int]
) -> None:
    data = np.frombuffer(random.Random(size).randbytes(40_000), dtype=np.uint8)
    batches = np.zeros(5, dtype=BATCH)
    batches["position"] = np.arange(5) * 701
    batches["size"] = CRC_START + size
    batches["crc"] = [
        google_crc32c.value(data[start : start + size].tobytes())
        for start in (batches["position"] + CRC_START).tolist()
    ]
    assert first_wrong_crc(data, batches) == -1
    for wrong in (0, 4):
        damaged = batches.copy()
        damaged["crc"][wrong] ^= 1 << (wrong * 7)
        assert first_wrong_crc(data, damaged) == wrong
    assert first_wrong_crc(data, batches[:0]) == -1
