"""A partition's history in a bucket, with an independent list of its rows.

The log is real: batches of random sizes and codecs, unordered times, idempotent and transactional
producers, several leader epochs. Its closed segments are copied to a folder in the Aiven layout.
`rows` reads them as Spark's tasks do, in this process and without a session.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from isotherm.config.topic import TopicConfig
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import CompressionType, NewRecord, build_batch, iterate_batches
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.copy import segment_data
from isotherm.remote.tasks.copy_plan import CandidateSegment
from isotherm.segment.leader_epochs import epochs_within
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_codec import decode_task, encode_task
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tier.open_log import open_segment_source
from isotherm.spark.tier.tier_settings import tier_settings
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import Offset, ProducerId, TopicIdPartition, uuid_to_text
from tests.support.local_log import open_local_log

TOPIC = "a"
START_MS = 1_700_000_000_000
_SCHEMA = arrow_schema(schema_of(["offset", "timestamp", "value"]))
_TRANSACTIONAL = (11, 12, 13)
_IDEMPOTENT = 21


class Row(NamedTuple):
    offset: Offset
    timestamp_ms: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a history: upper bounds of random sizes and counts."""

    segments: int = 4
    batches_per_segment: int = 14
    records_per_batch: int = 6
    transactions: bool = True
    epochs: tuple[int, ...] = (0, 0, 1, 3)
    # Settings of the storage manager that copies, and options of a query that reads the copies.
    storage: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, str] = field(default_factory=dict)
    partition: int = 0
    codecs: tuple[CompressionType, ...] = tuple(CompressionType)
    # Whether every other batch outside transactions is of an idempotent producer.
    idempotent: bool = False
    # Histories that differ in this alone have other values and times, and equal sizes without a
    # codec.
    twin: int = 0


class ModelHistory:
    """A random history.

    `written` are all rows; `aborted` are the offsets that no read_committed consumer may get. Every
    transaction ends below the end of `segments[-1]`.
    """

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
        self.segments = self._copy(self.log)

    @property
    def reading(self) -> Mapping[str, str]:
        """Options that every query of the history needs."""
        return self._shape.reading

    @property
    def end(self) -> Offset:
        return self.segments[-1].end_offset_inclusive + 1

    def objects(self, segment: RemoteLogSegmentMetadata) -> dict[str, Path]:
        """The files of a segment by their suffix."""
        name = f"{segment.start_offset:020d}-{uuid_to_text(segment.segment_id.id)}"
        found = self.folder.rglob(f"{name}.*")
        return {path.name.rpartition(".")[2]: path for path in found}

    def committed(self) -> list[Row]:
        return [row for row in self.written if row.offset not in self.aborted]

    def by_isolation(self) -> dict[str, list[Row]]:
        """The rows of a query, by its isolationLevel."""
        return {"read_uncommitted": self.written, "read_committed": self.committed()}

    def first_not_before(self, timestamp_ms: int) -> Offset:
        """The first offset of a record or marker at or after a time; the end if there is none."""
        times = [(row.offset, row.timestamp_ms) for row in self.written] + self.markers
        young = [offset for offset, time in times if time >= timestamp_ms]
        return min(young, default=self.end)

    def _write_segment(self, epoch: int) -> None:
        for _ in range(self._shape.batches_per_segment):
            kind = self._rng.random() if self._shape.transactions else 0.0
            if kind < 0.5:
                is_idempotent = self._shape.idempotent and self._rng.random() < 0.5
                self._append_records(epoch, _IDEMPOTENT if is_idempotent else None)
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
                START_MS
                + 10 * (start + number)
                + self._rng.choice([0, 0, 0, 37, -55])
                - self._shape.twin,
                b"%06d%c" % (start + number, b"-"[0] + self._shape.twin)
                + self._rng.randbytes(self._rng.randint(0, 90)),
            )
            for number in range(count)
        ]
        codec = self._rng.choice(self._shape.codecs)
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
                is_transactional=producer in _TRANSACTIONAL,
            )
            self._sequences[producer] = self._sequences.get(producer, 0) + count
            if producer in _TRANSACTIONAL:
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
            timestamp_ms=START_MS + 10 * at - self._shape.twin,
        )
        self._append(marker, epoch, AppendOrigin.COORDINATOR)
        self.markers.append((at, START_MS + 10 * at - self._shape.twin))
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

    def copy_of_another_replica(self, directory: Path) -> list[RemoteLogSegmentMetadata]:
        """Copy the same batches in segments with other borders, beside the existing ones.

        A change of leader between two copies leaves such segments.
        """
        log = open_local_log(directory / f"{TOPIC}-0", config=self.log.config)
        for segment in self.log.segments()[:-1]:
            content = segment.log_path.read_bytes()
            for position, header in iterate_batches(content):
                batch = memoryview(content)[position : position + header.size_in_bytes]
                log.append_as_follower(batch, header.partition_leader_epoch)
                log.update_high_watermark(log.log_end_offset)
                if self._rng.random() < 1 / self._shape.batches_per_segment:
                    log.roll()
        log.roll()
        return self._copy(log)

    def _copy(self, log: PartitionLog) -> list[RemoteLogSegmentMetadata]:
        url = {"url": self.folder.as_uri(), **self._shape.storage}
        storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(url))
        topic_id = uuid.UUID(int=0xF11 + self._shape.twin)
        owner = TopicIdPartition(topic_id, TOPIC, self._shape.partition)
        copied = []
        for segment, after in pairwise(log.segments()):
            metadata = describe_segment(log, segment, after.base_offset, owner, self._rng)
            candidate = CandidateSegment(segment, after.base_offset)
            storage.copy_log_segment_data(metadata, segment_data(log, candidate))
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
    """The rows of a query with these options: planned and read as by Spark, without any state of
    other queries."""
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
                when_missing=WhenMissing(
                    read_again=log.read_again,
                    read_elsewhere=log.read_elsewhere,
                    fail_on_data_loss=options.fail_on_data_loss,
                ),
            )
            found += (row for batch in batches for row in _rows_of(batch))
    return found


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    for row in batch.to_pylist():
        yield Row(row["offset"], round(row["timestamp"].timestamp() * 1000), row["value"])


@contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """Replace or delete the object within the block."""
    before = path.read_bytes() if path.exists() else None
    try:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
