"""Caches the state of a cluster for all open pages.

Without an open page no request is sent to the cluster.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from isotherm.client.node_address import NodeAddress
from isotherm.clock import Clock
from isotherm.errors import IsothermError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.storage_view.broker_release import BrokerRelease
from isotherm.storage_view.cluster_reader import BrokerState
from isotherm.storage_view.cluster_storage import (
    ClusterStorage,
    Histories,
    PartitionStorage,
    StorageReader,
)
from isotherm.storage_view.group_members import GroupMembers, GroupPlace
from isotherm.storage_view.group_progress import GroupProgress
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.resource_settings import Setting
from isotherm.storage_view.share_deliveries import GroupDeliveries
from isotherm.types import BrokerId, TopicIdPartition, TopicPartition

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
DETAILS_KEPT = 64
"""The most topics, groups or brokers whose details are cached."""
DELIVERIES_INTERVAL_S = 30.0
"""The least time between two reads of what became of a share group's records: each may read
`__share_group_state` for seconds."""


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """`content` is that of the last successful read, None before the first. `error` is the reason
    if a later read failed."""

    content: T | None
    error: str | None


class Newest(Generic[T]):
    """The newest result of `read`, which runs at most once per `interval_s`, in one thread at a
    time. Meanwhile other threads get the last result. Thread-safe."""

    def __init__(
        self, read: Callable[[], T], lock: threading.Lock, clock: Clock, interval_s: float
    ) -> None:
        self._read = read
        self._lock = lock
        self._clock = clock
        self._interval_s = interval_s
        self.last: Look[T] = Look(None, None)
        self._read_at_s: float | None = None

    def look(self) -> Look[T]:
        if not self._is_due():
            return self.last
        # Wait for another thread's read only if there is no result yet. Otherwise an old result is
        # better than a wait.
        if not self._lock.acquire(blocking=self._read_at_s is None):
            return self.last
        try:
            if self._is_due():
                with suppress(IsothermError):  # `last` has the reason
                    self.renew()
        finally:
            self._lock.release()
        return self.last

    def _is_due(self) -> bool:
        return (
            self._read_at_s is None
            or self._clock.monotonic_s() - self._read_at_s >= self._interval_s
        )

    def renew(self) -> None:
        """Read now. The caller has the lock. Raises as `read`."""
        try:
            self.last = Look(self._read(), None)
        except IsothermError as error:
            self.last = Look(self.last.content, str(error))
            self._read_at_s = self._clock.monotonic_s()
            raise
        self._read_at_s = self._clock.monotonic_s()


class NewestByKey(Generic[K, T]):
    """The newest result of `read` for each of the last DETAILS_KEPT keys. Thread-safe."""

    def __init__(
        self, read: Callable[[K], T], lock: threading.Lock, clock: Clock, interval_s: float
    ) -> None:
        self._read = read
        self._lock = lock
        self._clock = clock
        self._interval_s = interval_s
        self._kept: OrderedDict[K, Newest[T]] = OrderedDict()
        self._choosing = threading.Lock()  # guards `_kept`

    def look(self, key: K) -> Look[T]:
        return self._newest(key).look()

    def _newest(self, key: K) -> Newest[T]:
        with self._choosing:
            if key not in self._kept:
                self._kept[key] = Newest(
                    lambda: self._read(key), self._lock, self._clock, self._interval_s
                )
            self._kept.move_to_end(key)
            while len(self._kept) > DETAILS_KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]


class WatchedCluster:
    """The newest state of a cluster. Thread-safe. `look` blocks while it reads the cluster itself,
    and, before the first result, while another thread reads it.

    Details (configurations, releases and members) have a reader and connections of their own, so
    that they do not wait for a look at the whole cluster. One is read at a time.
    """

    def __init__(
        self, open_reader: Callable[[], StorageReader], clock: Clock, interval_s: float
    ) -> None:
        self._open_reader = open_reader
        self._reader: StorageReader | None = None
        self._detail_reader: StorageReader | None = None  # never reads segments
        self._clock = clock
        self._reading = threading.Lock()  # guards the reader and its source
        self._reading_details = threading.Lock()  # guards the reader of details
        self.progress = GroupProgress()
        self._storage = Newest(self._read_storage, self._reading, clock, interval_s)
        self._groups = Newest(self._read_groups, self._reading, clock, interval_s)
        details = self._reading_details
        self._topic_settings = NewestByKey(self._read_topic_settings, details, clock, interval_s)
        self._broker_settings = NewestByKey(self._read_broker_settings, details, clock, interval_s)
        self._releases = Newest(self._read_releases, details, clock, interval_s)
        self._members = NewestByKey(self._read_members, details, clock, interval_s)
        self._deliveries = NewestByKey(
            self._read_deliveries, details, clock, max(interval_s, DELIVERIES_INTERVAL_S)
        )

    def look(self) -> Look[ClusterStorage]:
        return self._storage.look()

    def groups(self) -> Look[list[GroupState]]:
        """The groups that the brokers coordinate. Looks at the cluster first, to know its brokers,
        and again after the groups. So a later `look` has ends of logs that are as new as the
        commits."""
        self.look()
        return self._groups.look()

    def topic_settings(self, topic: str) -> Look[list[Setting]]:
        """The configuration of a topic."""
        return self._topic_settings.look(topic)

    def broker_settings(self, broker: BrokerState) -> Look[list[Setting]]:
        """The configuration of a broker, from the broker itself."""
        address = NodeAddress(broker.host, broker.port)
        return self._broker_settings.look((broker.broker_id, address))

    def releases(self) -> Look[dict[BrokerId, BrokerRelease]]:
        """The releases of the brokers that answered the last look."""
        return self._releases.look()

    def members(self, group: GroupState) -> Look[GroupMembers]:
        """The members of a group that `groups` has listed."""
        assert group.coordinator is not None, "a broker has listed it"
        return self._members.look(GroupPlace(group.group_id, group.kind, group.coordinator))

    def deliveries(self, group: GroupState) -> Look[GroupDeliveries]:
        """What became of the records of a share group that `groups` has listed. Reads them at most
        every DELIVERIES_INTERVAL_S."""
        places = tuple(
            place
            for place, offset in (group.share or {}).items()
            if offset.start_offset is not None
        )
        return self._deliveries.look((group.group_id, places))

    def metadata(
        self, partition: TopicIdPartition, segment_id: uuid.UUID
    ) -> RemoteLogSegmentMetadata | None:
        """The metadata of a segment at the last read. None if it is unknown."""
        with self._reading:
            source = self._reader.source if self._reader is not None else None
            return None if source is None else source.metadata(partition, segment_id)

    def segment_metadata(
        self, partition: PartitionStorage, segment_id: bytes
    ) -> RemoteLogSegmentMetadata | None:
        """As `metadata`."""
        return self.metadata(partition.state.partition, uuid.UUID(bytes=segment_id))

    def histories(
        self, storage: ClusterStorage, partitions: Sequence[TopicIdPartition]
    ) -> Histories | None:
        """As StorageReader.read_histories. Blocks while the events since the last call are read."""
        with self._reading:
            return self._opened().read_histories(storage, partitions)

    def close(self) -> None:
        with self._reading, self._reading_details:
            for reader in (self._reader, self._detail_reader):
                if reader is not None:
                    reader.close()

    def _opened(self) -> StorageReader:
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader

    def _opened_for_details(self) -> StorageReader:
        if self._detail_reader is None:
            self._detail_reader = self._open_reader()
        return self._detail_reader

    def _read_storage(self) -> ClusterStorage:
        return self._opened().read()

    def _read_topic_settings(self, topic: str) -> list[Setting]:
        return self._opened_for_details().read_topic_settings(topic)

    def _read_broker_settings(self, broker: tuple[BrokerId, NodeAddress]) -> list[Setting]:
        return self._opened_for_details().read_broker_settings(*broker)

    def _read_releases(self) -> dict[BrokerId, BrokerRelease]:
        storage = self._storage.last.content
        return self._opened_for_details().read_releases(() if storage is None else storage.brokers)

    def _read_members(self, group: GroupPlace) -> GroupMembers:
        return self._opened_for_details().read_members(group)

    def _read_deliveries(self, group: tuple[str, tuple[TopicPartition, ...]]) -> GroupDeliveries:
        return self._opened_for_details().read_share_deliveries(*group)

    def _read_groups(self) -> list[GroupState]:
        if self._storage.last.content is None:
            # The brokers are not known, and without them there would seem to be no group.
            self._storage.renew()
        storage = self._storage.last.content
        assert storage is not None
        groups = self._opened().read_groups(storage.brokers)
        self.progress.note(groups, self._clock.now_ms())
        # Only an end that is read after a commit tells whether the commit is beyond it. If this
        # read fails, the commits before stay, which are older than the ends that are known.
        self._storage.renew()
        return groups
