"""The second pass: a group of segments written again without what is superseded.

For each batch, in this order (Kafka Cleaner.cleanInto):
- a data batch of an aborted transaction loses all its records; a marker that has served its time
  loses its record once its delete horizon has come, and gets one before;
- of a data batch go records whose key has a newer one, tombstones whose horizon has come, and
  records without a key; the first round that keeps a tombstone and has cleaned up to it sets the
  batch's horizon (KIP-534);
- what is left empty goes, unless it is the last batch of an active producer (it has the last
  sequence number, or the epoch), or the last one of the round (it has the last offset).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.cleaned_log import CleanerStats
from isotherm.log.cleaner.offset_map import OffsetMap
from isotherm.log.cleaner.segment_reader import Chunk, SegmentReader, Throttle
from isotherm.log.cleaner.segment_writer import SegmentWriter
from isotherm.log.cleaner.transactions import CleanedTransactions
from isotherm.log.file_cache import FileCache
from isotherm.log.log_read import aborted_transactions, floor_index
from isotherm.log.log_segment import LogSegment
from isotherm.log.producer_state import LastRecord
from isotherm.record.batch import BatchHeader
from isotherm.record.batch_header import DELETE_HORIZON_FLAG
from isotherm.record.filter import (
    FilteredBatches,
    decide_outcomes,
    locate_records,
    write_filtered,
)
from isotherm.types import Offset, ProducerId, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch_table import BoolArray, Int64Array

_NEVER_MS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of cleaning decides by. `upper_bound_offset` is the first uncleanable one.

    Batches from `first_dirty_offset` to the end of what the map knows have been read and verified.
    """

    offset_map: OffsetMap
    now_ms: TimestampMs
    delete_retention_ms: int
    first_dirty_offset: Offset
    upper_bound_offset: Offset


@dataclass(frozen=True, slots=True)
class _BatchChoice:
    """What is decided of batches as such, a row each."""

    loses_all: BoolArray
    kept_when_empty: BoolArray
    gets_horizon: BoolArray


class GroupRewriter:
    """Writes one group. `segments` are the log's, of which the group is a run."""

    def __init__(
        self,
        cache: FileCache,
        directory: Path,
        config: TopicConfig,
        reader: SegmentReader,
        throttle: Throttle,
        *,
        size_max: int,
    ) -> None:
        self._cache = cache
        self._directory = directory
        self._config = config
        self._reader = reader
        self._throttle = throttle
        self._size_max = size_max
        self._writers: list[SegmentWriter] = []

    def rewrite(
        self,
        group: Sequence[LogSegment],
        segments: Sequence[LogSegment],
        cleaning: Round,
        transactions: CleanedTransactions,
        last_records: dict[ProducerId, LastRecord],
        stats: CleanerStats,
    ) -> list[LogSegment]:
        """The `.cleaned` segments, durable: one, or several if one cannot hold what is left.

        Raises CorruptRecordError; what was written is then left to `remove_output`.
        """
        self._writers = [self._writer(group[0].base_offset)]
        for index, segment in enumerate(group):
            following = index + 1
            end_offset = (
                group[following].base_offset
                if following < len(group)
                else segment.read_next_offset()
            )
            first = floor_index(segments, segment.base_offset)
            transactions.add_aborted(
                aborted_transactions(segments[first:], segment.base_offset, end_offset)
            )
            for chunk in self._reader.chunks(segment, 0):
                filtered = _filter(chunk, cleaning, transactions, last_records, stats)
                self._append(filtered, transactions)
        modified_ms = self._cache.fs.modified_ms(group[-1].log_path)
        return [writer.finish(modified_ms) for writer in self._writers]

    def remove_output(self) -> None:
        for writer in self._writers:
            writer.remove()

    def _append(self, filtered: FilteredBatches, transactions: CleanedTransactions) -> None:
        """`filtered` with the transactions whose markers it may hold."""
        aborted = transactions.take_retained()
        for part in self._parts(filtered):
            self._throttle(len(part.records))
            self._writers[-1].append(part)
            end_offset = int(part.batches["last_offset"][-1]) + 1
            ended = [each for each in aborted if each.last_offset < end_offset]
            self._writers[-1].append_aborted(ended)
            aborted = aborted[len(ended) :]

    def _parts(self, filtered: FilteredBatches) -> Iterator[FilteredBatches]:
        """Runs of batches that go to one segment each; begins a new one where one is full."""
        while len(filtered.batches):
            count = self._writers[-1].count_fitting(filtered.batches, self._size_max)
            if count == 0:
                base_offset = int(filtered.batches["base_offset"][0])
                self._writers.append(self._writer(base_offset))
                continue
            yield filtered.head(count)
            filtered = filtered.tail(count)

    def _writer(self, base_offset: Offset) -> SegmentWriter:
        return SegmentWriter(self._cache, self._directory, base_offset, self._config)


def _filter(
    chunk: Chunk,
    cleaning: Round,
    transactions: CleanedTransactions,
    last_records: dict[ProducerId, LastRecord],
    stats: CleanerStats,
) -> FilteredBatches:
    batches, offset_map = chunk.batches, cleaning.offset_map
    choice = _choose_batches(chunk, cleaning, transactions, last_records)
    batches["records_count"][choice.loses_all] = 0
    places = locate_records(chunk.data, chunk.unpacked, batches)
    hashes = offset_map.hash_keys(chunk.array, chunk.unpacked, batches, places)
    stats.invalid_messages_read += offset_map.choose_records(
        batches, places, hashes, now_ms=cleaning.now_ms, expiry_ms=_expiry_ms(chunk)
    )
    is_in_map = chunk.last_offsets <= offset_map.latest_offset
    outcomes = decide_outcomes(
        batches,
        places,
        chunk.records_count,
        kept_when_empty=choice.kept_when_empty,
        gets_horizon=choice.gets_horizon,
        # Kafka asks for no more than a tombstone. Where the map did not reach it, older records
        # of its key are still there, and a reader could meet them after the tombstone is gone.
        gets_horizon_with_tombstone=is_in_map,
        new_horizon_ms=cleaning.now_ms + cleaning.delete_retention_ms,
    )
    filtered = write_filtered(
        chunk.data,
        chunk.unpacked,
        batches,
        places,
        outcomes,
        is_verified=is_in_map & (batches["base_offset"] >= cleaning.first_dirty_offset),
    )
    is_read = ~choice.loses_all | choice.kept_when_empty
    stats.bytes_read += chunk.size
    stats.messages_read += int(chunk.records_count[is_read].sum())
    stats.bytes_written += len(filtered.records)
    stats.messages_written += int(outcomes["kept_count"].sum())
    return filtered


def _expiry_ms(chunk: Chunk) -> Int64Array:
    has_horizon = chunk.batches["attributes"] & DELETE_HORIZON_FLAG != 0
    return np.where(has_horizon, chunk.batches["base_timestamp"], _NEVER_MS)


def _choose_batches(
    chunk: Chunk,
    cleaning: Round,
    transactions: CleanedTransactions,
    last_records: dict[ProducerId, LastRecord],
) -> _BatchChoice:
    count = len(chunk.batches)
    choice = _BatchChoice(
        np.zeros(count, dtype=np.bool_),
        _keeps_last_offset(chunk, cleaning, last_records),
        np.zeros(count, dtype=np.bool_),
    )
    for row, header in chunk.transactional_headers():
        if not header.is_control:
            choice.loses_all[row] = transactions.on_data_batch(header)
            continue
        marker = chunk.control_record(row, header)
        has_served = transactions.on_control_batch(header, marker)
        horizon_has_come = header.has_delete_horizon and header.base_timestamp <= cleaning.now_ms
        choice.loses_all[row] = has_served and horizon_has_come
        choice.gets_horizon[row] = has_served
        if _is_last_marker(header, last_records):
            choice.kept_when_empty[row] = True
    return choice


def _keeps_last_offset(
    chunk: Chunk, cleaning: Round, last_records: dict[ProducerId, LastRecord]
) -> BoolArray:
    """Which batches hold the last data offset of an active producer, or end the round."""
    last_offsets = chunk.last_offsets
    kept: BoolArray = last_offsets + 1 == cleaning.upper_bound_offset
    owners = {
        last.data_offset: producer_id
        for producer_id, last in last_records.items()
        if last.data_offset is not None
    }
    if owners:
        producer_ids = chunk.batches["producer_id"]
        candidates = np.isin(last_offsets, np.fromiter(owners, dtype=np.int64, count=len(owners)))
        for row in np.flatnonzero(candidates).tolist():
            kept[row] |= owners[int(last_offsets[row])] == int(producer_ids[row])
    return kept


def _is_last_marker(header: BatchHeader, last_records: dict[ProducerId, LastRecord]) -> bool:
    """Whether this marker may be all that is left of an active producer, and has its epoch."""
    last = last_records.get(header.producer_id)
    return last is not None and last.data_offset is None and header.producer_epoch == last.epoch
