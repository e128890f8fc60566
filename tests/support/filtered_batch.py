"""A batch after compaction, for tests of its readers."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from isotherm.record.batch_table import read_batch_table, unpack_records
from isotherm.record.filter import decide_outcomes, locate_records, write_filtered
from isotherm.types import TimestampMs


def filtered_batch(
    batch: bytes | bytearray, kept: Collection[int], *, delete_horizon_ms: TimestampMs | None = None
) -> bytes:
    """The batch with only the records at the indexes `kept`; without any it is an empty batch.

    `delete_horizon_ms` is set unless the batch has a horizon.
    """
    batches, _ = read_batch_table(batch)
    unpacked, _ = unpack_records(batch, batches)
    records_count = batches["records_count"].copy()
    places = locate_records(batch, unpacked, batches)
    places["is_kept"] = np.isin(np.arange(len(places)), list(kept))
    outcomes = decide_outcomes(
        batches,
        places,
        records_count,
        kept_when_empty=np.array([True]),
        gets_horizon=np.array([delete_horizon_ms is not None]),
        gets_horizon_with_tombstone=np.array([False]),
        new_horizon_ms=delete_horizon_ms or 0,
    )
    is_verified = np.array([False])
    filtered = write_filtered(batch, unpacked, batches, places, outcomes, is_verified=is_verified)
    return bytes(filtered.records)
