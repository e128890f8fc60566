"""Reads the state of both tiers of a cluster at one time, from its brokers and its remote
segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.clock import Clock
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.storage_view.broker_release import BrokerRelease, read_release
from isotherm.storage_view.cluster_reader import (
    BrokerState,
    ClusterState,
    PartitionState,
    TopicState,
    list_topic_names,
    read_cluster,
)
from isotherm.storage_view.event_source import EventSource
from isotherm.storage_view.group_members import GroupMembers, GroupPlace, read_members
from isotherm.storage_view.group_reader import GroupState, read_groups
from isotherm.storage_view.partition_storage import (
    StorageSums,
    added,
    last_tiered_offset,
    partition_sums,
)
from isotherm.storage_view.remote_segment_sources import MetadataTopicSource, SegmentSource
from isotherm.storage_view.remote_segments import NO_SEGMENTS, RemoteSegments
from isotherm.storage_view.resource_settings import ResourceType, Setting, read_settings
from isotherm.storage_view.segment_history import SegmentHistory
from isotherm.storage_view.share_deliveries import GroupDeliveries, read_share_deliveries
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    BrokerId,
    Offset,
    TimestampMs,
    TopicIdPartition,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class PartitionStorage:
    """The storage of a partition. `sums` is None if `state.local` is None."""

    state: PartitionState
    segments: RemoteSegments
    last_tiered_offset: Offset
    sums: StorageSums | None


@dataclass(frozen=True, slots=True)
class TopicStorage:
    """The storage of a topic. `sums` leaves out partitions whose leader does not answer."""

    state: TopicState
    partitions: tuple[PartitionStorage, ...]
    sums: StorageSums


@dataclass(frozen=True, slots=True)
class MetadataTopicSize:
    """The size of the metadata topic. `records` counts offsets, some of which compaction leaves
    without a record. This reader has folded `read_offsets` of them in `read_s` seconds. Both are 0
    if it reads the bucket."""

    records: int
    size_in_bytes: int
    partitions: int
    read_offsets: int = 0
    read_s: float = 0.0

    @property
    def restart_s(self) -> float | None:
        """Estimated seconds to read the whole topic on this machine. None if nothing was read."""
        return self.read_s * self.records / self.read_offsets if self.read_offsets else None


@dataclass(frozen=True, slots=True)
class ClusterStorage:
    """The state of a cluster. Without a metadata topic `metadata_topic` is None, and no remote
    segments are known. `topics` includes internal topics if the caller asked for them."""

    read_at_ms: TimestampMs
    cluster_id: str
    controller_id: BrokerId
    brokers: tuple[BrokerState, ...]
    topics: Mapping[str, TopicStorage]
    metadata_topic: MetadataTopicSize | None

    @property
    def remote_bytes(self) -> int:
        """The bytes in finished remote segments of all topics."""
        return sum(topic.sums.remote_bytes for topic in self.topics.values())


@dataclass(frozen=True, slots=True)
class Histories:
    """The history of each partition's segments, from the events in `topic`."""

    topic: str
    by_partition: Mapping[TopicIdPartition, SegmentHistory]


class StorageReader:
    """Reads a cluster repeatedly. Only one thread may use it at a time, except that any thread may
    call `close`."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        clock: Clock,
        *,
        wants_topic: Callable[[str], bool] = lambda _: True,
        source: SegmentSource | None = None,
    ) -> None:
        """Without a `source` remote segments come from the cluster's metadata topic, if it has one.

        Raises BrokerUnreachableError if no broker answers.
        """
        self._properties = properties
        self._clock = clock
        self._wants_topic = wants_topic
        self._client = ClusterClient(properties, client_id="isotherm-storage-view")
        self._source = source
        self._events: EventSource | None = None
        self._closing = ExitStack()
        self._closing.callback(self._client.close)

    def read(self) -> ClusterStorage:
        """Read the current state. Raises BrokerUnreachableError, RemoteStorageError and
        RequestTimedOutError if the cluster does not answer, and CorruptMetadataError for a metadata
        record that cannot be applied."""
        state = read_cluster(
            self._client,
            lambda name: name == REMOTE_LOG_METADATA_TOPIC or self._wants_topic(name),
        )
        metadata_topic = next(
            (t for t in state.topics if t.name == REMOTE_LOG_METADATA_TOPIC), None
        )
        source = self._source_of(metadata_topic)
        if source is not None:
            source.refresh(_own_partitions(state), _ends(metadata_topic))
        now_ms = self._clock.now_ms()
        return ClusterStorage(
            now_ms,
            state.cluster_id,
            state.controller_id,
            state.brokers,
            {
                topic.name: _topic_storage(topic, source, now_ms)
                for topic in state.topics
                if self._wants_topic(topic.name)
            },
            None if metadata_topic is None else _metadata_topic_size(metadata_topic, source),
        )

    def topic_names(self) -> list[str]:
        """The names of all topics of the cluster. Raises BrokerUnreachableError."""
        return list_topic_names(self._client)

    def read_groups(self, brokers: Sequence[BrokerState]) -> list[GroupState]:
        """The groups that these brokers coordinate.

        Brokers that did not answer `read` are skipped.
        """
        addresses = [
            NodeAddress(broker.host, broker.port) for broker in brokers if broker.error is None
        ]
        return read_groups(self._client, addresses)

    def read_topic_settings(self, topic: str) -> list[Setting]:
        """The configuration of a topic. Raises as `read_settings`."""
        return read_settings(self._client, ResourceType.TOPIC, topic)

    def read_broker_settings(self, broker_id: BrokerId, address: NodeAddress) -> list[Setting]:
        """The configuration of a broker. Raises as `read_settings`."""
        return read_settings(self._client, ResourceType.BROKER, str(broker_id), address)

    def read_releases(self, brokers: Sequence[BrokerState]) -> dict[BrokerId, BrokerRelease]:
        """The releases of these brokers, without those that did not answer `read`."""
        return {
            broker.broker_id: read_release(self._client, NodeAddress(broker.host, broker.port))
            for broker in brokers
            if broker.error is None
        }

    def read_members(self, group: GroupPlace) -> GroupMembers:
        """The members of a group. Raises as `group_members.read_members`."""
        return read_members(self._client, group)

    def read_share_deliveries(
        self, group_id: str, places: Sequence[TopicPartition]
    ) -> GroupDeliveries:
        """Raises as `share_deliveries.read_share_deliveries`."""
        return read_share_deliveries(self._client, self._clock, group_id, places)

    @property
    def source(self) -> SegmentSource | None:
        """The source of remote segments.

        None before the first read, and without a metadata topic.
        """
        return self._source

    def read_histories(
        self, storage: ClusterStorage, partitions: Sequence[TopicIdPartition]
    ) -> Histories | None:
        """The events of these partitions' segments, up to the time of `storage`. None if no topic
        has them. Raises as `read`."""
        kept = [REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC]
        ends = {name: _ends_of(storage.topics[name]) for name in kept if name in storage.topics}
        name = next(
            (name for name, ends_by_kind in ends.items() if any(ends_by_kind.values())), None
        )
        if name is None:
            return None
        if self._events is None or self._events.name != name:
            topic = KafkaMetadataTopic(self._properties, topic=name)
            self._closing.callback(topic.close)
            self._events = EventSource(topic, name)
        return Histories(name, self._events.histories(partitions, ends[name]))

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _source_of(self, metadata_topic: TopicState | None) -> SegmentSource | None:
        if self._source is None and metadata_topic is not None:
            topic = KafkaMetadataTopic(self._properties)
            self._closing.callback(topic.close)
            self._source = MetadataTopicSource(topic, self._wants_topic, self._clock)
        return self._source


def _own_partitions(state: ClusterState) -> list[TopicIdPartition]:
    """The partitions of all topics that users created, whatever their `remote.storage.enable`: a
    topic that is no longer tiered may still have remote segments."""
    return [
        partition.partition
        for topic in state.topics
        if not topic.is_internal and topic.name != REMOTE_LOG_METADATA_TOPIC
        for partition in topic.partitions
    ]


def _ends(metadata_topic: TopicState | None) -> dict[int, Offset]:
    return _ends_of_partitions(() if metadata_topic is None else metadata_topic.partitions)


def _ends_of(topic: TopicStorage) -> dict[int, Offset]:
    return _ends_of_partitions(topic.state.partitions)


def _ends_of_partitions(partitions: Iterable[PartitionState]) -> dict[int, Offset]:
    return {
        partition.partition.partition: partition.local.high_watermark
        for partition in partitions
        if partition.local is not None
    }


def _topic_storage(
    topic: TopicState, source: SegmentSource | None, now_ms: TimestampMs
) -> TopicStorage:
    partitions = tuple(
        _partition_storage(topic, partition, source, now_ms) for partition in topic.partitions
    )
    return TopicStorage(
        topic,
        partitions,
        added(partition.sums for partition in partitions if partition.sums is not None),
    )


def _partition_storage(
    topic: TopicState, state: PartitionState, source: SegmentSource | None, now_ms: TimestampMs
) -> PartitionStorage:
    if topic.is_tiered and source is not None:
        unread = source.unread_metadata(state.partition)
        if unread is not None:
            # Without its remote segments, what the leader says would look like lost records.
            place = f"{REMOTE_LOG_METADATA_TOPIC}-{unread}"
            error = f"its remote segments are unknown: {place} has no leader"
            state = replace(state, local=None, error=state.error or error)
    segments = NO_SEGMENTS if source is None else source.segments(state.partition)
    sums = (
        None
        if state.local is None
        else partition_sums(
            state.local,
            segments,
            topic.retention,
            now_ms,
            is_tiered=topic.is_tiered,
            segment_bytes=topic.tier_settings.segment_bytes,
        )
    )
    return PartitionStorage(state, segments, last_tiered_offset(segments), sums)


def _metadata_topic_size(topic: TopicState, source: SegmentSource | None) -> MetadataTopicSize:
    local = [partition.local for partition in topic.partitions if partition.local is not None]
    return MetadataTopicSize(
        sum(tier.high_watermark - tier.log_start_offset for tier in local),
        sum(tier.size_in_bytes for tier in local),
        len(topic.partitions),
        *(
            (source.folded_offsets, source.fold_s)
            if isinstance(source, MetadataTopicSource)
            else ()
        ),
    )
