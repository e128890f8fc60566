"""A scripted cluster for the console, without brokers: any number of segments, and any damage."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from isotherm.client.node_address import NodeAddress
from isotherm.errors import BrokerUnreachableError
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.storage_view.broker_release import BrokerRelease
from isotherm.storage_view.cluster_reader import BrokerState, PartitionState, TopicState
from isotherm.storage_view.cluster_storage import (
    ClusterStorage,
    Histories,
    MetadataTopicSize,
    PartitionStorage,
    TopicStorage,
)
from isotherm.storage_view.group_members import GroupMembers, GroupPlace
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.local_holds import TierSettings
from isotherm.storage_view.partition_storage import (
    LocalTier,
    Retention,
    added,
    last_tiered_offset,
    partition_sums,
)
from isotherm.storage_view.remote_segment_sources import MetadataEnds
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.storage_view.resource_settings import Setting
from isotherm.storage_view.segment_history import SegmentExtent, SegmentHistory
from isotherm.storage_view.share_deliveries import GroupDeliveries
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    Offset,
    TopicIdPartition,
    TopicPartition,
)

NOW_MS = 1_767_225_600_000
_STATE = RemoteLogSegmentState
_TOPIC_IDS = uuid.UUID(int=0x150)


class PastEvent(NamedTuple):
    """An event of segment `number`, so long ago."""

    number: int
    state: RemoteLogSegmentState
    age_ms: int
    extent: SegmentExtent | None = None


class ScriptedCluster:
    """A `Reader` and a `SegmentSource`. While `is_gone` is true, it does not answer."""

    def __init__(self) -> None:
        self.is_gone = False
        self.groups: list[GroupState] = []
        self.members: dict[str, GroupMembers] = {}
        self.deliveries: dict[str, GroupDeliveries] = {}
        self.brokers: tuple[BrokerState, ...] = ()
        self.histories: dict[TopicIdPartition, SegmentHistory] = {}
        self.settings: list[Setting] = [
            Setting("retention.ms", "-1", "DYNAMIC_TOPIC_CONFIG", "604800000", False, False),
            Setting("cleanup.policy", "delete", "DEFAULT_CONFIG", "delete", False, False),
        ]
        self._topics: dict[str, list[PartitionStorage]] = {}
        self._segments: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}

    @property
    def source(self) -> ScriptedCluster:
        return self

    def add(
        self,
        topic: str,
        segments: Sequence[RemoteLogSegmentMetadata],
        local: LocalTier,
        *,
        replicas: tuple[int, ...] = (1,),
        in_sync: tuple[int, ...] = (1,),
    ) -> None:
        """Add a partition with these segments; the owner in their metadata is ignored."""
        partitions = self._topics.setdefault(topic, [])
        owner = TopicIdPartition(uuid.uuid5(_TOPIC_IDS, topic), topic, len(partitions))
        columns = RemoteSegments.of_metadata(segments)
        state = PartitionState(owner, 1, replicas, in_sync, {1: local.size_in_bytes}, local, None)
        sums = partition_sums(
            local, columns, Retention(), NOW_MS, is_tiered=True, segment_bytes=1 << 20
        )
        partitions.append(PartitionStorage(state, columns, last_tiered_offset(columns), sums))
        self._segments[owner] = list(segments)

    def read(self) -> ClusterStorage:
        if self.is_gone:
            raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9: refused")
        topics = {name: _topic(name, partitions) for name, partitions in self._topics.items()}
        size = sum(topic.sums.local_bytes for topic in topics.values())
        return ClusterStorage(
            NOW_MS,
            "scripted-cluster-22-chr",
            1,
            self.brokers or (BrokerState(1, "127.0.0.1", 9, None, size, None),),
            topics,
            MetadataTopicSize(200_300, 32_000_000, 50, read_offsets=200_200, read_s=0.5),
        )

    def read_groups(self, brokers: Sequence[BrokerState]) -> list[GroupState]:
        if self.is_gone:
            raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9: refused")
        place = NodeAddress("127.0.0.1", 9)
        return [replace(group, coordinator=place) for group in self.groups]

    def read_broker_settings(self, broker_id: int, address: NodeAddress) -> list[Setting]:
        return self.settings

    def read_releases(self, brokers: Sequence[BrokerState]) -> dict[int, BrokerRelease]:
        return {
            broker.broker_id: BrokerRelease(30, 29) for broker in brokers if broker.error is None
        }

    def read_members(self, group: GroupPlace) -> GroupMembers:
        if self.is_gone:
            raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9: refused")
        return self.members.get(group.group_id, GroupMembers("", ()))

    def read_share_deliveries(
        self, group_id: str, places: Sequence[TopicPartition]
    ) -> GroupDeliveries:
        if self.is_gone:
            raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9: refused")
        return self.deliveries.get(group_id, GroupDeliveries())

    def read_topic_settings(self, topic: str) -> list[Setting]:
        if self.is_gone:
            raise BrokerUnreachableError("no broker is reachable at 127.0.0.1:9: refused")
        return self.settings

    def read_histories(
        self, storage: ClusterStorage, partitions: Sequence[TopicIdPartition]
    ) -> Histories:
        known = {
            partition: self.histories.get(partition, SegmentHistory()) for partition in partitions
        }
        return Histories(REMOTE_LOG_METADATA_AUDIT_TOPIC, known)

    def note(self, topic: str, partition: int, *events: PastEvent) -> None:
        """Add events of a partition's segments, the oldest first."""
        owner = self._topics[topic][partition].state.partition
        history = self.histories.setdefault(owner, SegmentHistory())
        for event in events:
            history.note(
                uuid.UUID(int=event.number).bytes, event.state, NOW_MS - event.age_ms, event.extent
            )

    def refresh(self, partitions: Iterable[TopicIdPartition], ends: MetadataEnds) -> None:
        raise NotImplementedError("nothing is new here")

    def segments(self, partition: TopicIdPartition) -> RemoteSegments:
        return RemoteSegments.of_metadata(self._segments[partition])

    def metadata(
        self, partition: TopicIdPartition, segment_id: uuid.UUID
    ) -> RemoteLogSegmentMetadata | None:
        found = (
            segment for segment in self._segments[partition] if segment.segment_id.id == segment_id
        )
        return next(found, None)

    def close(self) -> None:
        """Nothing is held open."""


def local_tier(log_start: Offset, local_start: Offset, end: Offset, size: int) -> LocalTier:
    return LocalTier(
        log_start_offset=log_start,
        local_log_start_offset=local_start,
        last_stable_offset=end,
        high_watermark=end,
        size_in_bytes=size,
    )


def remote_segment(
    number: int,
    start: Offset,
    end_inclusive: Offset,
    state: RemoteLogSegmentState = _STATE.COPY_SEGMENT_FINISHED,
    *,
    size: int = 1 << 20,
    age_ms: int = 60_000,
    epoch: int = 0,
) -> RemoteLogSegmentMetadata:
    """A segment with `number` as its id. Its event and its newest record are `age_ms` old."""
    owner = TopicIdPartition(_TOPIC_IDS, "any", 0)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=number)),
        start_offset=start,
        end_offset_inclusive=end_inclusive,
        max_timestamp_ms=NOW_MS - age_ms,
        broker_id=1,
        event_timestamp_ms=NOW_MS - age_ms,
        segment_size_in_bytes=size,
        segment_leader_epochs={epoch: start},
        state=state,
    )


def damaged_cluster(history: int = 100_000) -> ScriptedCluster:
    """`orders` has every kind of span, in partition 1;

    `history` has this many segments, less one.
    """
    cluster = ScriptedCluster()
    mib = 1 << 20
    sound = [remote_segment(n + 1, n * 1000, n * 1000 + 999) for n in range(12)]
    cluster.add("orders", sound, local_tier(0, 9000, 12_700, 3 * mib + 700_000))
    damaged = [
        remote_segment(20, 0, 999, _STATE.DELETE_SEGMENT_STARTED),
        *(
            remote_segment(20 + n, n * 1000, n * 1000 + 999, epoch=n // 3)
            for n in (1, 2, 3, 4, 6, 7, 8, 9)
        ),
        remote_segment(40, 2000, 2999, _STATE.COPY_SEGMENT_STARTED),
        remote_segment(41, 10_000, 10_999, _STATE.COPY_SEGMENT_STARTED),
    ]
    cluster.add("orders", damaged, local_tier(1000, 8000, 11_400, 3 * mib + 400_000))
    _note_last_day(cluster)
    many = [
        remote_segment(n + 100, n * 100, n * 100 + 99, size=100_000)
        for n in range(history)
        if n != 61_234
    ]
    cluster.add("history", many, local_tier(0, 9_999_900, 10_000_050, 150_000))
    cluster.groups = [
        GroupState("backfill", "Stable", "classic", {TopicPartition("history", 0): 2_000_000}),
        GroupState(
            "billing",
            "Stable",
            "consumer",
            {TopicPartition("orders", 0): 12_500, TopicPartition("orders", 1): 11_400},
        ),
    ]
    cluster.add("quiet", [], local_tier(0, 0, 0, 0))
    return cluster


def busy_cluster(topics: int = 50) -> ScriptedCluster:
    """Topics whose names are as long as Kafka allows, one of whose copies fail, and a group that is
    far behind."""
    cluster = ScriptedCluster()
    gib = 1 << 30
    for number in range(topics):
        name = f"team-{number:02}.warehouse." + "long_name." * 24
        segments = [
            remote_segment(100 * number + n + 1, n * 1_000_000, n * 1_000_000 + 999_999, size=gib)
            for n in range(12)
        ]
        if number == 3:
            failed = _STATE.COPY_SEGMENT_STARTED
            segments += [
                remote_segment(90_000 + n, 12_000_000, 12_999_999, failed, age_ms=7_200_000)
                for n in range(3)
            ]
        local = local_tier(0, 11_000_000, 13_500_000 + number, (number + 1) * 777_777_777)
        cluster.add(name[:249], segments, local)
    first = f"team-00.warehouse.{'long_name.' * 24}"[:249]
    cluster.groups = [
        GroupState(f"reader-{n}-of-a-long-name" * 4, "Stable", "classic", {
            TopicPartition(first, 0): 1_000_000 * n
        })
        for n in range(12)
    ]  # fmt: skip
    return cluster


def _note_last_day(cluster: ScriptedCluster) -> None:
    """Add the history of `orders`: twelve segments, half an hour apart.

    In partition 1 one is being deleted now, one is deleted, and of a third only the deletion is
    known.
    """
    half_hour = 1_800_000
    for partition, first in ((0, 1), (1, 20)):
        for n in range(12):
            extent = SegmentExtent(n * 1000, n * 1000 + 999, 1 << 20, NOW_MS - (14 - n) * half_hour)
            age_ms = (13 - n) * half_hour
            if partition == 0 or n < 10:
                cluster.note(
                    "orders",
                    partition,
                    PastEvent(first + n, _STATE.COPY_SEGMENT_STARTED, age_ms, extent),
                    PastEvent(first + n, _STATE.COPY_SEGMENT_FINISHED, age_ms - 60_000),
                )
    cluster.note(
        "orders",
        1,
        PastEvent(25, _STATE.DELETE_SEGMENT_STARTED, 3 * half_hour),
        PastEvent(25, _STATE.DELETE_SEGMENT_FINISHED, 3 * half_hour - 1000),
        PastEvent(19, _STATE.DELETE_SEGMENT_FINISHED, 2 * half_hour),
        PastEvent(20, _STATE.DELETE_SEGMENT_STARTED, 60_000),
        PastEvent(
            41, _STATE.COPY_SEGMENT_STARTED, 60_000, SegmentExtent(10_000, 10_999, 1 << 20, 0)
        ),
    )


def _topic(name: str, partitions: list[PartitionStorage]) -> TopicStorage:
    states = tuple(partition.state for partition in partitions)
    settings = TierSettings(Retention(), 1 << 20, is_copy_disabled=False)
    state = TopicState(
        name, uuid.uuid5(_TOPIC_IDS, name), False, True, Retention(), states, settings
    )
    return TopicStorage(
        state,
        tuple(partitions),
        added(partition.sums for partition in partitions if partition.sums is not None),
    )
