"""Reads a whole metadata topic for jobs, from its brokers or from files of its log.

The driver calls `slices` and the tasks `read` them. Logs and slices are picklable. Runs have the
records' Kafka timestamps, because a past state is defined by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isotherm.clock import SystemClock
from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.topic.log_files import (
    RUN_MAX_BYTES,
    LogFile,
    OnDamage,
    metadata_columns,
    read_log_files,
)
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.file_names import live_partition
from isotherm.spark.reading.brokers import KafkaBrokers, RequestSettings
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    Offset,
    TimestampMs,
    uuid_to_text,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

_OFFSET_MAX = 2**63 - 1
_PLAIN_FILE = re.compile(r"\d{20}\.log")
_UPDATE = b"\x01"
_API_KEY_POSITION = 1


class RecordRun(NamedTuple):
    """Consecutive records of one metadata partition."""

    columns: MetadataColumns
    timestamp_ms: Int64Array


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Records [start_offset, end_offset) of a metadata partition. With None the slice ends where
    the log ends when a task reads it."""

    number: int
    start_offset: Offset
    end_offset: Offset | None = None
    files: tuple[LogFile, ...] = ()

    def since(self, offset: Offset) -> LogSlice:
        """The rest of the slice from `offset` on."""
        later = [index for index, file in enumerate(self.files) if file.base_offset <= offset]
        files = self.files[later[-1] :] if later else self.files
        return replace(self, start_offset=max(offset, self.start_offset), files=files)

    def until(self, offset: Offset | None) -> LogSlice:
        if offset is None:
            return self
        end = offset if self.end_offset is None else min(offset, self.end_offset)
        return replace(self, end_offset=max(end, self.start_offset))

    def by_file(self) -> list[LogSlice]:
        """The parts that tasks can read in parallel: one per file, or the slice itself if the log
        has no files."""
        return [replace(self, files=(file,)) for file in self.files] or [self]


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The known part of a metadata log's identity. Unknown fields are None and contradict
    nothing."""

    topic: str
    cluster_id: str | None = None
    topic_id: str | None = None

    def contradicts(self, other: LogIdentity) -> bool:
        mine, theirs = (self.cluster_id, self.topic_id), (other.cluster_id, other.topic_id)
        pairs = [pair for pair in zip(mine, theirs, strict=True) if None not in pair]
        return self.topic != other.topic or any(one != another for one, another in pairs)


class MetadataLog(Protocol):
    """A metadata topic that jobs read. Picklable. Its methods raise UnknownTopicOrPartitionError if
    there is no such topic."""

    @property
    def topic(self) -> str: ...

    def identity(self) -> LogIdentity: ...

    def slices(self) -> list[LogSlice]:
        """One slice for each existing partition, ascending by number."""

    def read(self, part: LogSlice, on_damage: OnDamage) -> Iterator[RecordRun]:
        """The records of the slice. Damage is reported to `on_damage` and skipped."""


@dataclass(frozen=True, slots=True)
class TopicMetadataLog:
    """`MetadataLog` over the brokers. `client_properties` have Kafka's or librdkafka's names."""

    # Not in the repr: they may contain passwords.
    client_properties: Mapping[str, Any] = field(repr=False)
    topic: str = REMOTE_LOG_METADATA_TOPIC

    def identity(self) -> LogIdentity:
        brokers = KafkaBrokers(
            self.client_properties,
            SystemClock(),
            RequestSettings(),
        )
        topic_id = brokers.partitions([self.topic])[0].topic_id
        return LogIdentity(self.topic, brokers.cluster_id(), uuid_to_text(topic_id))

    def slices(self) -> list[LogSlice]:
        with closing(self._open()) as topic:
            return [
                LogSlice(number, *topic.offsets(number)) for number in range(topic.partition_count)
            ]

    def read(self, part: LogSlice, on_damage: OnDamage) -> Iterator[RecordRun]:
        end = _OFFSET_MAX if part.end_offset is None else part.end_offset
        position = part.start_offset
        if position >= end:
            # Most metadata partitions of a small cluster are empty: ask no broker.
            return
        with closing(self._open()) as topic:
            while position < end:
                records = topic.read(part.number, position, RUN_MAX_BYTES)
                if not records:
                    return
                position = records[-1].offset + 1
                # A next offset beyond the slice would skip the records that are left out here.
                read = [record for record in records if record.offset < end]
                yield _run_of(read, min(position, end))

    def _open(self) -> KafkaMetadataTopic:
        return KafkaMetadataTopic(self.client_properties, topic=self.topic)


@dataclass(frozen=True, slots=True)
class DumpMetadataLog:
    """`MetadataLog` over files: log directories, or copies of them in folders or buckets.

    Finds `<topic>-<partition>/<offset>.log` at any depth. A store with `<offset>.log` files at its
    root is one partition. A broker may be running, because reading locks and changes nothing.
    """

    stores: tuple[ObjectStoreSettings, ...]
    topic: str = REMOTE_LOG_METADATA_TOPIC

    def identity(self) -> LogIdentity:
        """From `meta.properties` and `partition.metadata`, if the dump has them."""
        cluster_id = topic_id = None
        for settings in self.stores:
            client = open_for_reading(settings)
            for stored in client.list_objects(""):
                directory, _, name = stored.key.rpartition("/")
                if name == "meta.properties":
                    cluster_id = _property(client, stored.key, "=", "cluster.id") or cluster_id
                elif (
                    name == "partition.metadata"
                    and live_partition(directory.rpartition("/")[2], self.topic) is not None
                ):
                    topic_id = _property(client, stored.key, ":", "topic_id") or topic_id
        return LogIdentity(self.topic, cluster_id, topic_id)

    def slices(self) -> list[LogSlice]:
        partitions: dict[int, list[LogFile]] = {}
        for store, settings in enumerate(self.stores):
            for stored in open_for_reading(settings).list_objects(""):
                directory, _, name = stored.key.rpartition("/")
                if _PLAIN_FILE.fullmatch(name) is None:
                    continue
                place = directory or settings.url.rstrip("/")
                number = live_partition(place.rpartition("/")[2], self.topic)
                if number is None and not directory:
                    number = 0
                if number is not None:
                    files = partitions.setdefault(number, [])
                    files.append(LogFile(store, stored.key, stored.size))
        if not partitions:
            raise UnknownTopicOrPartitionError(
                f"no file of the topic's log was found topic={self.topic}"
                f" places={','.join(settings.url for settings in self.stores)}"
            )
        slices = []
        for number, files in sorted(partitions.items()):
            files.sort(key=lambda file: file.base_offset)
            slices.append(LogSlice(number, files[0].base_offset, None, tuple(files)))
        return slices

    def read(self, part: LogSlice, on_damage: OnDamage) -> Iterator[RecordRun]:
        end = _OFFSET_MAX if part.end_offset is None else part.end_offset
        stores = [open_for_reading(settings) for settings in self.stores]
        offsets = (part.start_offset, end)
        for decoded in read_log_files(stores, part.files, offsets, on_damage):
            assert decoded.timestamp_ms is not None
            yield RecordRun(metadata_columns(decoded), decoded.timestamp_ms)


def until_time(runs: Iterator[RecordRun], as_of_ms: TimestampMs | None) -> Iterator[RecordRun]:
    """The runs up to the first record that is newer than `as_of_ms`: the log at that time."""
    for run in runs:
        is_late = run.timestamp_ms > (_OFFSET_MAX if as_of_ms is None else as_of_ms)
        if not is_late.any():
            yield run
            continue
        # The first late record ends the log even before older ones: a past state is a prefix.
        count = int(np.argmax(is_late))
        columns = MetadataColumns(
            run.columns.offset[:count],
            run.columns.key.slice(0, count),
            run.columns.value.slice(0, count),
            int(run.columns.offset[count]),
        )
        yield RecordRun(columns, run.timestamp_ms[:count])
        return


def as_events(topic: str, run: RecordRun) -> RecordRun:
    """Convert records of the audit topic to those that the fold expects.

    Records of the audit topic have the keys of the states in the compacted topic. An update is not
    a state, so its key is dropped.
    """
    if topic != REMOTE_LOG_METADATA_AUDIT_TOPIC:
        return run
    columns = run.columns
    api_keys: Any = pc.binary_slice(columns.value, _API_KEY_POSITION, _API_KEY_POSITION + 1)
    is_update = pc.fill_null(pc.equal(api_keys, pa.scalar(_UPDATE)), False)
    keys: Any = pc.if_else(is_update, pa.scalar(None, pa.binary()), columns.key)
    return run._replace(
        columns=MetadataColumns(columns.offset, keys, columns.value, columns.next_offset)
    )


def _run_of(records: list[MetadataTopicRecord], next_offset: Offset) -> RecordRun:
    columns = replace(columns_of(records, next_offset), next_offset=next_offset)
    times = np.array([record.timestamp_ms for record in records], dtype=np.int64)
    return RecordRun(columns, times)


def _property(client: ObjectClient, key: str, separator: str, name: str) -> str | None:
    for line in client.get(key, 1 << 20).decode(errors="replace").splitlines():
        key_text, _, value = line.partition(separator)
        if key_text.strip() == name:
            return value.strip()
    return None
