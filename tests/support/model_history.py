"""A partition's history in a bucket, with the list of its rows that the test knows by itself.

The log is a real one: batches of random sizes and codecs, times out of order, idempotent and
transactional producers, several leader epochs. Its closed segments are copied to a folder in the
Aiven layout. `rows` read it as Spark's tasks do, in this process and without a session.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from isotherm.config.topic import TopicConfig
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.tasks.copy import epochs_within, segment_data
from isotherm.remote.tasks.copy_plan import CandidateSegment
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.driver.tiered_log import TieredLog
from isotherm.spark.driver.tiers import open_segment_source, tier_settings
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_codec import decode_task, encode_task
from isotherm.spark.reading.task_reading import read_task
from isotherm.spark.rows import arrow_schema, schema_of
from isotherm.types import Offset, ProducerId, TopicIdPartition
from tests.support.local_log import open_local_log

TOPIC = "a"
START_MS = 1_700_000_000_000
_SCHEMA = arrow_schema(schema_of(["offset", "timestamp", "value"]))
_TRANSACTIONAL = (11, 12, 13)


class Row(NamedTuple):
    offset: Offset
    timestamp_ms: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """What a history is made of; sizes and counts are drawn up to these."""

    segments: int = 4
    batches_per_segment: int = 14
    records_per_batch: int = 6
    transactions: bool = True
    epochs: tuple[int, ...] = (0, 0, 1, 3)


class ModelHistory:
    """`written` are all rows, `aborted` the offsets of those that no read_committed consumer is
    given. Below `segments[-1]`'s end every transaction has ended."""

    def __init__(self, directory: Path, seed: int, shape: Shape = Shape()) -> None:
        self._rng = random.Random(seed)
        self._shape = shape
        self._sequences: dict[ProducerId, int] = {}
        self._open: dict[ProducerId, list[Offset]] = {}
        self.folder = directory / "bucket"
        self.folder.mkdir(parents=True)
        self.written: list[Row] = []
        self.markers: list[tuple[Offset, int]] = []
        self.aborted: set[Offset] = set()
        config = TopicConfig(remote_storage_enable=True, index_interval_bytes=200, retention_ms=-1)
        self.log = open_local_log(directory / "local" / f"{TOPIC}-0", config=config)
        for number in range(shape.segments):
            self._write_segment(shape.epochs[number % len(shape.epochs)])
            if number == shape.segments - 1:
                self._end_all()
            self.log.roll()
        self.segments = self._copy()

    @property
    def end(self) -> Offset:
        return self.segments[-1].end_offset_inclusive + 1

    def objects(self, segment: RemoteLogSegmentMetadata) -> dict[str, Path]:
        """The files of a segment by their suffix."""
        found = self.folder.rglob(f"{segment.start_offset:020d}-*")
        return {path.name.rpartition(".")[2]: path for path in found}

    def committed(self) -> list[Row]:
        return [row for row in self.written if row.offset not in self.aborted]

    def first_not_before(self, timestamp_ms: int) -> Offset:
        """Of records and markers; the end when none is."""
        times = [(row.offset, row.timestamp_ms) for row in self.written] + self.markers
        young = [offset for offset, time in times if time >= timestamp_ms]
        return min(young, default=self.end)

    def _write_segment(self, epoch: int) -> None:
        for _ in range(self._shape.batches_per_segment):
            kind = self._rng.random() if self._shape.transactions else 0.0
            if kind < 0.5:
                self._append_records(epoch, None)
            elif kind < 0.8:
                self._append_records(epoch, self._rng.choice(_TRANSACTIONAL))
            elif self._open:
                self._end(epoch, self._rng.choice(sorted(self._open)))
        self._epoch = epoch

    def _append_records(self, epoch: int, producer: ProducerId | None) -> None:
        start = self.log.log_end_offset
        count = self._rng.randint(1, self._shape.records_per_batch)
        rows = [
            Row(
                start + number,
                START_MS + 10 * (start + number) + self._rng.choice([0, 0, 0, 37, -55]),
                b"%06d-" % (start + number) + self._rng.randbytes(self._rng.randint(0, 90)),
            )
            for number in range(count)
        ]
        codec = self._rng.choice(list(CompressionType))
        records = [NewRecord(row.timestamp_ms, b"k", row.value) for row in rows]
        if producer is None:
            batch = build_batch(records, compression=codec)
        else:
            batch = build_batch(
                records,
                compression=codec,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=self._sequences.get(producer, 0),
                is_transactional=True,
            )
            self._sequences[producer] = self._sequences.get(producer, 0) + count
            self._open.setdefault(producer, []).extend(row.offset for row in rows)
        self._append(batch, epoch)
        self.written += rows

    def _end(self, epoch: int, producer: ProducerId) -> None:
        is_abort = self._rng.random() < 0.5
        at = self.log.log_end_offset
        marker = build_end_transaction_marker(
            ControlRecordType.ABORT if is_abort else ControlRecordType.COMMIT,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=START_MS + 10 * at,
        )
        self._append(marker, epoch, AppendOrigin.COORDINATOR)
        self.markers.append((at, START_MS + 10 * at))
        offsets = self._open.pop(producer)
        if is_abort:
            self.aborted.update(offsets)

    def _end_all(self) -> None:
        for producer in sorted(self._open):
            self._end(self._epoch, producer)

    def _append(
        self, batch: bytearray, epoch: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> None:
        self.log.append_as_leader(batch, epoch, now_ms=START_MS, origin=origin)
        self.log.update_high_watermark(self.log.log_end_offset)

    def _copy(self) -> list[RemoteLogSegmentMetadata]:
        storage = open_bucket(self.folder)
        owner = TopicIdPartition(uuid.UUID(int=0xF11), TOPIC, 0)
        copied = []
        for segment, after in pairwise(self.log.segments()):
            metadata = describe_segment(self.log, segment, after.base_offset, owner, self._rng)
            candidate = CandidateSegment(segment, after.base_offset)
            storage.copy_log_segment_data(metadata, segment_data(self.log, candidate))
            copied.append(replace(metadata, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
        return copied


def describe_segment(
    log: PartitionLog, segment: object, end: Offset, owner: TopicIdPartition, rng: random.Random
) -> RemoteLogSegmentMetadata:
    base = segment.base_offset  # type: ignore[attr-defined]
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(bytes=rng.randbytes(16))),
        start_offset=base,
        end_offset_inclusive=end - 1,
        max_timestamp_ms=segment.largest_timestamp_ms,  # type: ignore[attr-defined]
        broker_id=1,
        event_timestamp_ms=START_MS,
        segment_size_in_bytes=segment.size_in_bytes,  # type: ignore[attr-defined]
        segment_leader_epochs=epochs_within(log.leader_epochs.entries, base, end),
        txn_index_empty=not segment.aborted_transactions(),  # type: ignore[attr-defined]
    )


def open_bucket(folder: Path) -> ObjectStoreRemoteStorageManager:
    options = parse_options({"path": str(folder), "subscribe": TOPIC, "layout": "aiven"})
    return ObjectStoreRemoteStorageManager(tier_settings(options))


def rows(folder: Path, given: Mapping[str, object]) -> list[Row]:
    """What a query with these options gives: planned and read as Spark would, with nothing
    remembered from another query."""
    texts = {name: str(value) for name, value in given.items()}
    options = parse_options({"path": str(folder), "subscribe": TOPIC, "layout": "aiven"} | texts)
    settings = tier_settings(options)
    storage = ObjectStoreRemoteStorageManager(settings)
    with open_segment_source(options, settings, by_name=options.plans_by_name) as segments:
        log = TieredLog(options, storage, segments, None)
        tasks = [encode_task(task) for task in BatchQuery(options, log).plan()]
    found: list[Row] = []
    with open_segment_source(options, settings) as segments:
        log = TieredLog(options, storage, segments, None)
        for task in tasks:
            batches = read_task(
                decode_task(task),
                ObjectStoreRemoteStorageManager(settings),
                _SCHEMA,
                settings=ReadSettings(
                    options.fetch_bytes,
                    options.fetch_ahead,
                    options.batch_bytes,
                    options.gaps,
                ),
                read_tail=lambda read: iter(()),
                read_again=log.read_again,
                read_elsewhere=log.read_elsewhere,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            found += (row for batch in batches for row in _rows_of(batch))
    return found


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    for row in batch.to_pylist():
        yield Row(row["offset"], round(row["timestamp"].timestamp() * 1000), row["value"])


@contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """The object has this content, or is not there, for as long as the block runs."""
    before = path.read_bytes()
    try:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        yield
    finally:
        path.write_bytes(before)
