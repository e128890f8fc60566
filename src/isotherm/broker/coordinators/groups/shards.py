"""The group coordinator's shards: one for each partition of `__consumer_offsets` that this broker
leads.

A change is appended to the log before the shard shows it. So another broker that loads the log has
the same offsets and generations (`isotherm.broker.coordinators.coordinator_shards`).
Source: Kafka CoordinatorRuntime, GroupCoordinatorShard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.broker.coordinators.coordinator_shards import Election
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroupSettings
from isotherm.broker.coordinators.groups.group_records import (
    EncodedRecord,
    GroupMetadataKey,
    GroupRecord,
    encoded_records,
)
from isotherm.broker.coordinators.groups.group_shard import GroupShard, ShardFold
from isotherm.broker.coordinators.groups.group_snapshot import group_value
from isotherm.broker.coordinators.groups.offset_reader import CommittedOffset
from isotherm.broker.coordinators.groups.offsets_topic import (
    NO_PRODUCER,
    OffsetsTopic,
    Producer,
)
from isotherm.broker.coordinators.groups.share_group import ShareGroupSettings
from isotherm.broker.coordinators.groups.stored_offset import stored_offset
from isotherm.broker.coordinators.topic_coordinator import TopicCoordinator
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.metadata.metadata_records import GROUP_RESOURCE
from isotherm.clock import Clock
from isotherm.config.groups import GroupConfig
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    PolicyViolationError,
)
from isotherm.types import TimestampMs, TopicPartition

# Kafka: group.share.initialize.retry.interval.ms, which is internal.
INITIALIZE_RETRY_INTERVAL_MS = 30_000


class GroupShards(TopicCoordinator[GroupShard]):
    """Event loop thread only, unless a method says otherwise."""

    def __init__(
        self,
        topic: OffsetsTopic,
        config: GroupConfig,
        clock: Clock,
        metadata: ClusterMetadata,
        *,
        opened: Callable[[GroupShard], None],
    ) -> None:
        """`metadata` has the groups' own settings. `opened` gets each shard once it is loaded."""
        super().__init__(topic.partitions)
        self.settings = ClassicGroupSettings(
            config.group_initial_rebalance_delay_ms, config.group_max_size
        )
        self._config = config
        self._metadata = metadata
        self._topic = topic
        self._clock = clock
        self._opened = opened

    def consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        """The current settings of a consumer group. Any thread."""
        config = self._metadata.group_config(group_id)
        return ConsumerGroupSettings(
            config.consumer_session_timeout_ms,
            config.consumer_heartbeat_interval_ms,
            self._config.group_consumer_max_size,
        )

    def share_settings(self, group_id: str) -> ShareGroupSettings:
        """The current settings of a share group. Any thread."""
        texts = self._metadata.texts_of(ConfigResource(GROUP_RESOURCE, group_id))
        config = self._metadata.group_config(group_id)
        # A group that sets none has the broker's, although Kafka's default is shown for it. The
        # broker's can be changed while it runs.
        assignment_interval_ms = config.share_assignment_interval_ms
        if "share.assignment.interval.ms" not in texts:
            broker = self._metadata.broker_config.groups
            assignment_interval_ms = broker.group_share_assignment_interval_ms
        return ShareGroupSettings(
            config.share_session_timeout_ms,
            config.share_heartbeat_interval_ms,
            assignment_interval_ms,
            INITIALIZE_RETRY_INTERVAL_MS,
            self._config.group_share_max_size,
        )

    @property
    def count(self) -> int:
        """Groups of all types that this broker coordinates. Any thread."""
        return sum(
            len(shard.groups) + len(shard.consumer_groups) + len(shard.share_groups)
            for shard in self.loaded()
        )

    def share_group_states(self) -> Counter[str]:
        """How many share groups are in each state, by the name that ListGroups shows. Any
        thread."""
        return Counter(
            group.shown_state
            for shard in self.loaded()
            for group in list(shard.share_groups.values())
        )

    def check_room(self, group_id: str) -> None:
        """To be called before a group is created.

        Raises PolicyViolationError if there are as many as group.coordinator.groups.max.
        """
        count = self.count
        if count >= self._config.group_coordinator_groups_max:
            raise PolicyViolationError(
                f"this broker has its maximum of groups group_id={group_id} count={count}"
                " key=group.coordinator.groups.max"
            )

    def now_ms(self) -> TimestampMs:
        """Monotonic time for deadlines. It does not jump."""
        return int(self._clock.monotonic_s() * 1000)

    def wall_offset_ms(self) -> int:
        return self._clock.now_ms() - self.now_ms()

    def loaded(self) -> Iterator[GroupShard]:
        return self._shards.active()

    def index_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that has a group's records.

        Raises CoordinatorNotAvailableError if the topic does not exist; see `ensure_topic`.
        """
        count = self._partitions.partition_count
        if count is None:
            raise CoordinatorNotAvailableError(f"there are no groups yet group_id={group_id}")
        return coordinator_partition(group_id, count)

    def of_group(self, group_id: str) -> GroupShard:
        """The group's shard.

        Raises CoordinatorLoadInProgressError while the shard is being loaded, and
        NotCoordinatorError if another broker has it or it could not be loaded.
        """
        return self._shards.at(self.index_of(group_id))

    def at(self, index: int) -> GroupShard:
        """The shard of a partition. Raises what `of_group` raises."""
        return self._shards.at(index)

    def find(self, group_id: str) -> GroupShard | None:
        """The group's shard; None if it is not active here."""
        count = self._partitions.partition_count
        return None if count is None else self._shards.find(coordinator_partition(group_id, count))

    def check_loaded(self) -> None:
        """Raise CoordinatorLoadInProgressError while a shard is being loaded."""
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("groups are being loaded")

    def _empty_shard(self, index: int) -> GroupShard:
        return GroupShard(index)

    def _fold(self, index: int, election: Election) -> GroupShard:
        fold = ShardFold(index, self.settings, self.consumer_settings, self.share_settings)
        for loaded in self._topic.read(index, election):
            fold.add(loaded)
        return fold.finish(now_ms=self.now_ms(), wall_offset_ms=self.wall_offset_ms())

    def _resume(self, shard: GroupShard) -> None:
        self._opened(shard)

    # ---- changes: in the log first

    def append(self, shard: GroupShard, records: Sequence[GroupRecord]) -> None:
        """Append records. The caller applies them to the shard afterwards."""
        self.append_encoded(shard, encoded_records(records))

    def append_encoded(self, shard: GroupShard, records: Sequence[EncodedRecord]) -> None:
        self._topic.append(shard, records)

    def write_offsets(
        self, shard: GroupShard, records: Sequence[GroupRecord], producer: Producer = NO_PRODUCER
    ) -> None:
        """Append offset records, including tombstones, and apply them."""
        encoded = encoded_records(records)
        first_offset = self._topic.append(shard, encoded, producer)
        for index, (key, _) in enumerate(records):
            _, value = encoded[index]
            stored = None if value is None else stored_offset(value, first_offset + index)
            partition = TopicPartition(key.topic, key.partition)
            # Applied by the code of a load, so the shard stays the fold of its log.
            shard.replay_offset(CommittedOffset(key.group, partition, stored, producer.producer_id))

    def store(self, shard: GroupShard, group: ClassicGroup) -> None:
        value = group_value(group, wall_offset_ms=self.wall_offset_ms())
        self.append(shard, [GroupRecord(GroupMetadataKey(group=group.group_id), value)])
