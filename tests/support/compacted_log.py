"""A compacted log in a directory, and its cleaner: for tests of the result of compaction."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.choice import plan_log_to_clean
from isotherm.log.cleaner.chunk_reader import Throttle
from isotherm.log.cleaner.cleaned_log import CleanedLog
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.cleaner.segment_writer import SEGMENT_SIZE_MAX
from isotherm.log.fs import FileSystem
from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    Header,
    Record,
    build_batch,
    read_batch_header,
    read_records,
)
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.testing.sim_clock import SimClock
from isotherm.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Offset, TimestampMs
from tests.support.local_log import open_local_log

CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    index_interval_bytes=1,
    segment_index_bytes=12_000,
    delete_retention_ms=1000,
)


class StoredBatch(NamedTuple):
    segment_base: Offset
    header: BatchHeader
    records: list[Record]


class CompactedLog:
    """A compacted log with one writer.

    The test moves `clock`; appends take their timestamps from it by default.
    """

    def __init__(
        self,
        directory: Path,
        *,
        config: TopicConfig = CONFIG,
        fs: FileSystem | None = None,
        clock: SimClock | None = None,
        map_slots: int = 1000,
        load_factor: float = 0.9,
        read_size: int = 1024 * 1024,
        segment_size_max: int = SEGMENT_SIZE_MAX,
        checkpoints: LogCheckpoints | None = None,
    ) -> None:
        """`map_slots` is the size of the offset map, `read_size` the bytes of one read."""
        self.directory = directory
        self.clock = clock or SimClock()
        self.log = open_local_log(
            directory, config=config, clock=self.clock, fs=fs, checkpoints=checkpoints
        )
        self.log.update_high_watermark(self.log.log_end_offset)
        self.cleaner = Cleaner(
            replace(
                CleanerConfig(),
                log_cleaner_io_buffer_size=2 * read_size,
                log_cleaner_io_buffer_load_factor=load_factor,
            ),
            self.clock,
            random.Random(0),  # keys the map's hashes only
            map_size=24 * map_slots,
            segment_size_max=segment_size_max,
        )
        self.first_dirty_offset = self.log.log_start_offset
        self._sequences: dict[tuple[int, int], int] = {}

    def append(
        self,
        *records: tuple[str | None, str | None],
        timestamps: Sequence[TimestampMs] | None = None,
        headers: Sequence[Header] = (),
        compression: CompressionType = CompressionType.NONE,
        producer: tuple[int, int] | None = None,
        sequence: int | None = None,
        is_transactional: bool = False,
        leader_epoch: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Offset:
        """Append one batch of (key, value), all with the same headers; return its first offset.

        `producer` is (id, epoch); its sequences count up by themselves.
        """
        if timestamps is None:
            timestamps = [self.clock.now_ms()] * len(records)
        producer_id, producer_epoch = producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        if producer is None:
            sequence = NO_SEQUENCE
        elif sequence is None:
            sequence = self._sequences.get(producer, 0)
        self._sequences[producer_id, producer_epoch] = sequence + len(records)
        batch = build_batch(
            [
                (timestamp, _encoded(key), _encoded(value), headers)
                for timestamp, (key, value) in zip(timestamps, records, strict=True)
            ],
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        return self.append_batch(batch, leader_epoch=leader_epoch, origin=origin)

    def append_batch(
        self,
        batch: bytearray,
        *,
        leader_epoch: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Offset:
        if leader_epoch is None:
            latest = self.log.leader_epochs.latest
            leader_epoch = 0 if latest is None else latest.epoch
        # The policy changes for this append: records without a key are allowed only before a topic
        # is compacted.
        config = self.log.config
        self.log.update_config(replace(config, cleanup_policy=("delete",)))
        info = self.log.append_as_leader(
            batch, leader_epoch, now_ms=self.clock.now_ms(), origin=origin
        )
        self.log.update_config(config)
        self.log.update_high_watermark(self.log.log_end_offset)
        return info.first_offset

    def transact(
        self, *records: tuple[str | None, str | None], producer: tuple[int, int]
    ) -> Offset:
        return self.append(*records, producer=producer, is_transactional=True)

    def commit(self, producer: tuple[int, int], *, coordinator_epoch: int = 0) -> Offset:
        return self._end(ControlRecordType.COMMIT, producer, coordinator_epoch)

    def abort(self, producer: tuple[int, int], *, coordinator_epoch: int = 0) -> Offset:
        return self._end(ControlRecordType.ABORT, producer, coordinator_epoch)

    def _end(
        self, kind: ControlRecordType, producer: tuple[int, int], coordinator_epoch: int
    ) -> Offset:
        marker = build_end_transaction_marker(
            kind,
            producer_id=producer[0],
            producer_epoch=producer[1],
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.clock.now_ms(),
        )
        return self.append_batch(marker, origin=AppendOrigin.COORDINATOR)

    def clean(
        self,
        *,
        first_dirty_offset: Offset | None = None,
        throttle: Throttle = lambda size: None,
    ) -> CleanedLog:
        """Clean the dirty section up to the active segment (after `log.roll`) in one round."""
        first_dirty = self.first_dirty_offset if first_dirty_offset is None else first_dirty_offset
        to_clean = plan_log_to_clean(
            self.log.view(), first_dirty, self.log.config, self.clock.now_ms()
        )
        cleaned = self.cleaner.clean(
            self.log, to_clean, throttle=throttle, check_abort=lambda: None
        )
        self.first_dirty_offset = max(first_dirty, cleaned.end_offset)
        return cleaned

    def batches(self) -> Iterator[StoredBatch]:
        """The present records of the segments."""
        return self.batches_from(0)

    def batches_from(self, offset: Offset) -> Iterator[StoredBatch]:
        """The records from `offset` on."""
        for segment in self.log.segments():
            for position, header in segment.read_headers(offset):
                batch = segment.read_batch(position, header)
                assert read_batch_header(batch) == header
                yield StoredBatch(segment.base_offset, header, read_records(batch, 0, header))

    def records(self) -> list[Record]:
        """All records, control records included."""
        return [record for batch in self.batches() for record in batch.records]

    def offsets(self) -> list[Offset]:
        return [record.offset for record in self.records()]

    def last_offsets(self) -> list[Offset]:
        """The last offset of each batch, also of empty ones."""
        return [batch.header.last_offset for batch in self.batches()]


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
