"""Decides which records and batches the cleaner keeps, and writes them.

For each batch, in this order (Kafka Cleaner.cleanInto):
- A data batch of an aborted transaction loses all its records. A marker that is no longer needed
  loses its record once its delete horizon has passed, and gets a horizon before.
- Other data batches lose the records that the round discards: those with a newer record of their
  key, tombstones whose horizon has passed, and records without a key. The first round that keeps a
  tombstone and has cleaned up to it sets the batch's horizon (KIP-534).
- A batch without records is removed, unless it is the last batch of an active producer (it has the
  last sequence number, or the epoch) or the round keeps it (it has the last offset).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from isotherm.record.batch import BatchHeader
from isotherm.record.batch_header import DELETE_HORIZON_FLAG
from isotherm.record.filter import (
    FilteredBatches,
    decide_outcomes,
    locate_records,
    write_filtered,
)
from isotherm.segment.cleaning.chunk import Chunk
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.segment.producer_snapshot import LastRecord
from isotherm.types import ProducerId, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch_table import BoolArray, Int64Array
    from isotherm.record.filter import PlaceTable

    ChooseRecords: TypeAlias = Callable[[Chunk, PlaceTable, Int64Array], int]
    """Clears `is_kept` for the records to discard, given the delete horizon of each batch (infinite
    if it has none). Returns how many of them had no key."""

_NEVER_MS = np.iinfo(np.int64).max

LastRecords: TypeAlias = Mapping[ProducerId, LastRecord]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The rules for the batches of a chunk.

    `kept_when_empty` marks the batches that are kept even without records, `in_map` those whose
    records are all in the round's offset map, `is_verified` those whose CRC was checked before.
    """

    now_ms: TimestampMs
    delete_retention_ms: int
    last_records: LastRecords
    kept_when_empty: BoolArray
    in_map: BoolArray
    is_verified: BoolArray


class FilteredChunk(NamedTuple):
    """`is_read` marks the batches whose records were read."""

    filtered: FilteredBatches
    records_kept: int
    is_read: BoolArray
    keyless_count: int


@dataclass(frozen=True, slots=True)
class _BatchChoice:
    """The decisions for whole batches, one row each."""

    loses_all: BoolArray
    kept_when_empty: BoolArray
    gets_horizon: BoolArray


def filter_chunk(
    chunk: Chunk, rules: BatchRules, transactions: CleanedTransactions, choose: ChooseRecords
) -> FilteredChunk:
    """Filter the batches of a chunk. Raises CorruptRecordError for a damaged batch that would lose
    records."""
    from isotherm.kernels.cleaner import KEEPS_ALL, UNDECIDED

    batches = chunk.batches
    choice = _choose_batches(chunk, rules, transactions)
    # Their records need not be located: only `chunk.records_count` has the counts.
    batches["records_count"][choice.loses_all | (chunk.fates != UNDECIDED)] = 0
    places = locate_records(chunk.data, chunk.unpacked, batches)
    keyless_count = choose(chunk, places, _expiry_ms(chunk))
    outcomes = decide_outcomes(
        batches,
        places,
        chunk.records_count,
        kept_when_empty=choice.kept_when_empty,
        keeps_all=chunk.fates == KEEPS_ALL,
        gets_horizon=choice.gets_horizon,
        # Kafka requires only a tombstone. Outside the offset map, older records of its key are
        # still in the log, and a reader could meet them after the tombstone is gone.
        gets_horizon_with_tombstone=rules.in_map,
        new_horizon_ms=rules.now_ms + rules.delete_retention_ms,
    )
    filtered = write_filtered(
        chunk.data, chunk.unpacked, batches, places, outcomes, is_verified=rules.is_verified
    )
    return FilteredChunk(
        filtered,
        int(outcomes["kept_count"].sum()),
        ~choice.loses_all | choice.kept_when_empty,
        keyless_count,
    )


def _expiry_ms(chunk: Chunk) -> Int64Array:
    has_horizon = chunk.batches["attributes"] & DELETE_HORIZON_FLAG != 0
    return np.where(has_horizon, chunk.batches["base_timestamp"], _NEVER_MS)


def _choose_batches(
    chunk: Chunk, rules: BatchRules, transactions: CleanedTransactions
) -> _BatchChoice:
    count = len(chunk.batches)
    choice = _BatchChoice(
        np.zeros(count, dtype=np.bool_),
        rules.kept_when_empty | has_last_data(chunk, rules.last_records),
        np.zeros(count, dtype=np.bool_),
    )
    for row, header in chunk.transactional_headers():
        if not header.is_control:
            choice.loses_all[row] = transactions.on_data_batch(header)
            continue
        marker = chunk.control_record(row, header)
        is_unneeded = transactions.on_control_batch(header, marker)
        # `<=`, as in Kafka's Cleaner.
        horizon_has_passed = header.has_delete_horizon and header.base_timestamp <= rules.now_ms
        choice.loses_all[row] = is_unneeded and horizon_has_passed
        # The first round that finds a marker unneeded sets the horizon. Only a later one drops the
        # marker.
        choice.gets_horizon[row] = is_unneeded
        if _is_last_marker(header, rules.last_records):
            choice.kept_when_empty[row] = True
    return choice


def has_last_data(chunk: Chunk, last_records: LastRecords) -> BoolArray:
    """Whether each batch has the last data offset of an active producer."""
    # Kafka: `isBatchLastRecordOfProducer` in Cleaner.cleanInto.
    last_offsets = chunk.last_offsets
    is_last = np.zeros(len(last_offsets), dtype=np.bool_)
    owners = {
        last.data_offset: producer_id
        for producer_id, last in last_records.items()
        if last.data_offset is not None
    }
    if owners:
        producer_ids = chunk.batches["producer_id"]
        candidates = np.isin(last_offsets, np.fromiter(owners, dtype=np.int64, count=len(owners)))
        for row in np.flatnonzero(candidates).tolist():
            is_last[row] = owners[int(last_offsets[row])] == int(producer_ids[row])
    return is_last


def _is_last_marker(header: BatchHeader, last_records: LastRecords) -> bool:
    """Whether this marker may be the last batch of an active producer, and has its epoch."""
    last = last_records.get(header.producer_id)
    return last is not None and last.data_offset is None and header.producer_epoch == last.epoch
