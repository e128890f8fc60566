"""Durable state: the bucket, the two metadata topics, the local disk, the cluster's metadata.

Everything here is in memory but the local logs. Each access is a point of the schedule, before
anything is done, and may fail: before it is done, or after, as a lost reply.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from obstore.store import MemoryStore

from isotherm.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RequestTimedOutError,
)
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.remote.metadata.wire.events import MetadataChange, columns_of, decode_change
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent, decode_event
from isotherm.remote.storage.object_client import ObjectRange, StoredObject
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.offset_index import Buffer
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    LeaderEpoch,
    Offset,
    Position,
    TimestampMs,
    TopicIdPartition,
)
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.schedules.scheduler import Scheduler
from tests.support.tiered_partition import VolatileFileSystem

_DECODED_MAX = 4096
"""The number of decoded records that the oracle and the story keep.

The tasks decode on their own.
"""


class Lost(enum.Enum):
    """The lost part of an access.

    The error does not tell whether the request or the reply was lost.
    """

    NOTHING = "nothing"
    REQUEST = "request"
    REPLY = "reply"


class Faults:
    """Failures of the next accesses of a kind; `rng` chooses which of them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left: dict[str, int] = {}
        self._refused: set[str] = set()
        self.injected: Counter[str] = Counter()

    def begin(self, kind: str, count: int) -> None:
        self._left[kind] = count

    def fail_next(self, kind: str) -> None:
        """Let the next access of the kind fail without an effect."""
        self._refused.add(kind)

    def end(self) -> None:
        self._left.clear()

    def draw(self, kind: str) -> Lost:
        if kind in self._refused:
            self._refused.remove(kind)
            return Lost.REQUEST
        if not self._left.get(kind):
            return Lost.NOTHING
        self._left[kind] -= 1
        lost = self._rng.choice([Lost.NOTHING, Lost.REQUEST, Lost.REPLY])
        if lost is not Lost.NOTHING:
            self.injected[f"{kind} {lost.value}"] += 1
        return lost


class ScheduledTopic(MemoryMetadataTopic):
    def __init__(self, run: Scheduler, faults: Faults, name: str, partition_count: int) -> None:
        super().__init__(partition_count)
        self._run = run
        self._faults = faults
        self._name = name
        self.on_append: Callable[[], None] = lambda: None

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        self._run.point(f"append {self._name} {_kind_of(value)}")
        lost = self._faults.draw(f"append {self._name}")
        if lost is Lost.REQUEST:
            raise RequestTimedOutError(f"injected: not appended topic={self._name}")
        offset = super().append(partition, key, value, timestamp_ms)
        self._run.tell(f"{self._name} {number_of(key)} {_event_of(value)} {lost.value}")
        self.on_append()
        if lost is Lost.REPLY:
            raise RequestTimedOutError(f"injected: appended topic={self._name}")
        return offset

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        main = next((record for record in records if record.value is not None), records[0])
        self._run.point(f"append {self._name} {_kind_of(main.value)}")
        lost = self._faults.draw(f"append {self._name}")
        if lost is Lost.REQUEST:
            raise RequestTimedOutError(f"injected: not appended topic={self._name}")
        super().append_at(partition, end_offset, records)
        for record in records:
            self._run.tell(
                f"{self._name} {number_of(record.key)} {_event_of(record.value)} {lost.value}"
            )
            self.on_append()
        if lost is Lost.REPLY:
            raise RequestTimedOutError(f"injected: appended topic={self._name}")

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        self._run.point(f"read {self._name}")
        return super().read(partition, start_offset, max_bytes)

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return columns_of(self.read(partition, start_offset, max_bytes), start_offset)

    def roll(self, partition: int) -> None:
        """Do nothing:

        `compact` also cleans the newest records, as if they were in closed segments.
        """

    def values(self, partition: int) -> list[MetadataTopicRecord]:
        """The records of a partition, for the oracle: the access is no point of the schedule."""
        return self._partitions[partition]


@lru_cache(maxsize=_DECODED_MAX)
def decoded(key: bytes | None, value: bytes | None) -> MetadataChange:
    """Decode a record, with a cache: the oracle sees the same record in every schedule that
    begins alike.
    """
    return decode_change(key, value)


@lru_cache(maxsize=_DECODED_MAX)
def _decoded_event(value: bytes) -> RemoteLogMetadataEvent:
    return decode_event(value)


def _kind_of(value: bytes | None) -> str:
    if value is None:
        return "tombstone"
    event: Any = _decoded_event(value)
    return str(event.state.name)


def _event_of(value: bytes | None) -> str:
    event: Any = _decoded_event(value) if value is not None else None
    if event is None:
        return "tombstone"
    segment = getattr(event, "segment_id", None)
    name = str(segment.id)[:4] if segment is not None else "partition"
    start = getattr(event, "start_offset", "")
    end = getattr(event, "end_offset_inclusive", "")
    return f"{event.state.name} {name} {start}-{end}"


def number_of(key: bytes | None) -> str:
    """The key without its common prefix."""
    return key.decode()[18:] if key is not None else "-"


class ScheduledObjects:
    """`isotherm.remote.storage.object_client.ObjectClient` on a dict."""

    def __init__(self, run: Scheduler, faults: Faults) -> None:
        self._run = run
        self._faults = faults
        self.objects: dict[str, bytes] = {}
        self._modified_ms: dict[str, TimestampMs] = {}
        self.on_change: Callable[[], None] = lambda: None

    def put(self, key: str, content: Path | bytes | Iterable[bytes]) -> None:
        stored = _bytes_of(content)

        def do() -> None:
            self.objects[key] = stored
            self._modified_ms[key] = self._run.start_ms + int(self._run.now_ms)

        self._perform("put", key, do)

    def delete(self, key: str) -> None:
        def do() -> None:
            self.objects.pop(key, None)
            self.on_change()

        self._perform("delete", key, do)

    def _perform(self, kind: str, key: str, do: Callable[[], None]) -> None:
        self._run.point(f"{kind} {key.rpartition('.')[2]}")
        lost = self._faults.draw(kind)
        if lost is not Lost.REQUEST:
            do()
            self._run.tell(f"{kind} {key[-46:]} {lost.value}")
        if lost is not Lost.NOTHING:
            raise RemoteStorageError(f"injected: lost {lost.value} kind={kind} object={key}")

    def _find(self, key: str) -> bytes:
        self._run.point(f"get {key.rpartition('.')[2]}")
        if self._faults.draw("get") is not Lost.NOTHING:
            raise RemoteStorageError(f"injected: object={key}")
        try:
            return self.objects[key]
        except KeyError:
            raise RemoteResourceNotFoundError(f"object does not exist object={key}") from None

    def get(self, key: str, size_max: int) -> bytes:
        found = self._find(key)
        assert len(found) <= size_max
        return found

    def get_range(self, key: str, start: Position, end: Position) -> ObjectRange:
        found = self._find(key)
        return ObjectRange(memoryview(found[start:end]), len(found))

    def fill(
        self,
        key: str,
        start: Position,
        buffer: memoryview,
        object_size: int,
        on_filled: Callable[[int], None],
    ) -> int | None:
        found = self._find(key)
        if len(found) != object_size:
            return len(found)
        buffer[:] = found[start : start + len(buffer)]
        on_filled(len(buffer))
        return None

    def object_size(self, key: str) -> int:
        return len(self._find(key))

    def list_objects(self, directory: str) -> Iterator[StoredObject]:
        self._run.point("list")
        if self._faults.draw("list") is not Lost.NOTHING:
            raise RemoteStorageError(f"injected: folder={directory}")
        for key in sorted(self.objects):
            if key.startswith(directory):
                yield StoredObject(key, len(self.objects[key]), self._modified_ms[key])


def _bytes_of(content: Path | bytes | Iterable[bytes]) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, Path):
        return content.read_bytes()
    return b"".join(bytes(each) for each in content)


class ScheduledStorage(ObjectStoreRemoteStorageManager):
    """The real storage manager, on `objects`."""

    def __init__(self, objects: ScheduledObjects) -> None:
        super().__init__(_SETTINGS, store=_NO_STORE)
        client: Any = objects
        self._client = client

    def keys_of(self, metadata: Any) -> tuple[str, ...]:
        return self._layout.object_keys(metadata)


_SETTINGS = ObjectStoreSettings(url="memory:///")
_NO_STORE = MemoryStore()


class ScheduledFileSystem(VolatileFileSystem):
    """Local files with points at changes of names and at checkpoints.

    Appends of records are no points: they survive a crash of the process.
    """

    def __init__(self, run: Scheduler) -> None:
        self._run = run

    def write_atomically(self, path: Path, data: Buffer) -> None:
        self._run.point(f"write {path.name}")
        super().write_atomically(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._run.point(f"rename {source.suffix}")
        if source.suffix == ".log":
            self._run.tell(f"local delete {source.parent.name} {source.name}")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._run.point(f"remove {path.suffix}")
        super().remove(path)


@dataclass(slots=True)
class HostedPartition:
    """A partition in the cluster's metadata and in the checkpoints of its log directory."""

    id: TopicIdPartition
    config: Any
    leader_epoch: LeaderEpoch = 0
    recovery_point: Offset = 0
    log_start_offset: Offset = 0
    cleaned_to: Offset = 0
    is_clean: bool = False


@dataclass(slots=True)
class Cluster:
    """The controller's state. The metadata upgrade uses it as a Controller."""

    partitions: dict[TopicIdPartition, HostedPartition] = field(default_factory=dict)
    removed_last: list[TopicIdPartition] = field(default_factory=list)
    feature_level: int = 0
    is_compacted: bool = False
    metadata_partitions: int = 1

    @property
    def image(self) -> SimpleNamespace:
        topic = SimpleNamespace(partitions=[None] * self.metadata_partitions)
        names = (REMOTE_LOG_METADATA_TOPIC, REMOTE_LOG_METADATA_AUDIT_TOPIC)
        return SimpleNamespace(
            features={"remote.log.metadata.compaction": self.feature_level},
            topics_by_name=dict.fromkeys(names, topic),
        )

    def topic_config(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(compacts=self.is_compacted)

    def alter_topic_config(self, name: str, changes: object) -> None:
        self.is_compacted = True

    def leader_epoch(self, partition: TopicIdPartition) -> LeaderEpoch | None:
        found = self.partitions.get(partition)
        return found.leader_epoch if found is not None else None
