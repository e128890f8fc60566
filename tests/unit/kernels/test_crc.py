"""Both ways of checking and of setting the CRCs of many batches agree with google-crc32c."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import pytest

from isotherm.kernels import crc
from isotherm.kernels.filter import WRITTEN, set_crcs
from isotherm.kernels.tables import BATCH
from isotherm.record.batch_table import first_wrong_crc_by_library
from isotherm.record.filter import set_crcs_by_library

CRC_START = 21
WAYS = [first_wrong_crc_by_library]
if crc.HAS_INSTRUCTION:
    WAYS.append(crc.first_wrong_crc)
WAYS_TO_SET = [set_crcs_by_library]
if crc.HAS_INSTRUCTION:
    WAYS_TO_SET.append(set_crcs)


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


@pytest.mark.parametrize("set_new_crcs", WAYS_TO_SET, ids=["library", "instruction"][: len(WAYS)])
def test_crcs_of_new_batches_are_set_and_nothing_else(
    set_new_crcs: Callable[[Any, Any], None],
) -> None:
    sizes = [CRC_START, CRC_START + 1, 300, 5000]
    before = random.Random(3).randbytes(sum(sizes))
    out = np.frombuffer(bytearray(before), dtype=np.uint8)
    written = np.zeros(len(sizes), dtype=WRITTEN)
    written["size"] = sizes
    written["position"] = np.cumsum([0, *sizes[:-1]])
    written["is_new"] = [1, 1, 0, 1]
    set_new_crcs(out, written)
    expected = bytearray(before)
    for batch in written[written["is_new"] == 1]:
        covered = int(batch["position"]) + CRC_START
        value = google_crc32c.value(before[covered : batch["position"] + batch["size"]])
        expected[covered - 4 : covered] = value.to_bytes(4)
    assert out.tobytes() == bytes(expected)
