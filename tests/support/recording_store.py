"""A RemoteStorageManager that records its calls.

    remote.log.storage.manager.class.name=tests.support.recording_store.RecordingStore

makes a broker use one; a test finds it by the URL it was configured with. The idea is that of
Kafka's LocalTieredStorageHistory.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self, TypeVar

from isotherm.remote.segment_metadata import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.types import Offset, Position, TopicPartition

Answer = TypeVar("Answer")
COPY, FETCH, DELETE = "copy", "fetch", "delete"


class StoreEvent(NamedTuple):
    """`kind` is copy, fetch, delete, or the name of the index that was fetched."""

    kind: str
    partition: TopicPartition
    start_offset: Offset
    end_offset_inclusive: Offset


class RecordingStore:
    """Thread-safe. Only calls that succeeded are recorded."""

    opened: Mapping[str, Self] = {}
    """The last store for each URL."""

    def __init__(self, inner: RemoteStorageManager) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._events: list[StoreEvent] = []

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Self:
        store = cls(ObjectStoreRemoteStorageManager.from_config(config))
        cls.opened = {**cls.opened, config["url"]: store}
        return store

    def events(self, kind: str, topic: str) -> list[StoreEvent]:
        with self._lock:
            return [
                event
                for event in self._events
                if event.kind == kind and event.partition.topic == topic
            ]

    def counts(self, topic: str) -> Counter[str]:
        """The number of events of each kind."""
        with self._lock:
            return Counter(event.kind for event in self._events if event.partition.topic == topic)

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        return self._recorded(
            COPY, metadata, lambda: self._inner.copy_log_segment_data(metadata, data)
        )

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        return self._recorded(
            FETCH,
            metadata,
            lambda: self._inner.fetch_log_segment(metadata, start_position, end_position_inclusive),
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return self._recorded(
            index_type.value, metadata, lambda: self._inner.fetch_index(metadata, index_type)
        )

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._recorded(DELETE, metadata, lambda: self._inner.delete_log_segment_data(metadata))

    def close(self) -> None:
        self._inner.close()

    def _recorded(
        self, kind: str, metadata: RemoteLogSegmentMetadata, perform: Callable[[], Answer]
    ) -> Answer:
        answer = perform()
        event = StoreEvent(
            kind,
            metadata.topic_id_partition.topic_partition,
            metadata.start_offset,
            metadata.end_offset_inclusive,
        )
        with self._lock:
            self._events.append(event)
        return answer
