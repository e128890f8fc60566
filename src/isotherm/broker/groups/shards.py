"""The coordinator's state, in shards: one for each partition of `__consumer_offsets`.

Invariants
- A shard is the fold of its partition's records. A change is appended to the log before the shard
  shows it, so a restart restores the same offsets and generations.
- Shards are loaded on a worker thread and used on the event loop from then on. Requests to groups
  of a shard that is being loaded get COORDINATOR_LOAD_IN_PROGRESS. A shard that cannot be read
  stays unavailable; the others are served.

Source: Kafka CoordinatorRuntime, GroupCoordinatorShard.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from isotherm.broker.coordinator_partition import coordinator_partition
from isotherm.broker.groups import consumer_replay
from isotherm.broker.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.groups.group_records import (
    AnyGroupMetadataValue,
    GroupMetadataKey,
    GroupRecord,
    OffsetCommitKey,
)
from isotherm.broker.groups.group_snapshot import group_value, restore_group
from isotherm.broker.groups.offsets import GroupOffsets, offset_of_value
from isotherm.broker.groups.offsets_topic import (
    NO_PRODUCER,
    LoadedMarker,
    LoadedRecord,
    OffsetsTopic,
    Producer,
)
from isotherm.clock import Clock
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IsothermError,
)
from isotherm.types import NO_PRODUCER_ID, Offset, ProducerId, TimestampMs, TopicPartition

logger = logging.getLogger(__name__)

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup


class GroupShard:
    """The groups and offsets of one partition of `__consumer_offsets`."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self._open_transactions: dict[ProducerId, set[str]] = {}

    def find(self, group_id: str) -> AnyGroup | None:
        return self.groups.get(group_id) or self.consumer_groups.get(group_id)

    def all_groups(self) -> list[AnyGroup]:
        return [*self.groups.values(), *self.consumer_groups.values()]

    def replay_offset(
        self, record: GroupRecord, record_offset: Offset, producer_id: ProducerId = NO_PRODUCER_ID
    ) -> None:
        """Apply an offset record from the log."""
        group_id = record.key.group
        partition = TopicPartition(record.key.topic, record.key.partition)
        offsets = self.offsets.setdefault(group_id, GroupOffsets())
        if record.value is None:
            offsets.forget(partition)
            self._drop_if_empty(group_id)
            return
        committed = offset_of_value(record.value, record_offset)
        if producer_id == NO_PRODUCER_ID:
            offsets.commit(partition, committed)
        else:
            self._open_transactions.setdefault(producer_id, set()).add(group_id)
            offsets.add_pending(producer_id, partition, committed)

    def complete_transaction(self, producer_id: ProducerId, *, committed: bool) -> None:
        """Apply a transaction marker from the log."""
        for group_id in self._open_transactions.pop(producer_id, ()):
            if group_id in self.offsets:
                self.offsets[group_id].complete(producer_id, committed=committed)
                self._drop_if_empty(group_id)

    def _drop_if_empty(self, group_id: str) -> None:
        if self.offsets[group_id].is_empty:
            del self.offsets[group_id]


class ShardFold:
    """Builds a shard from its partition's records."""

    def __init__(
        self,
        index: int,
        settings: ClassicGroupSettings,
        consumer_settings: Callable[[str], ConsumerGroupSettings],
    ) -> None:
        self._settings = settings
        self._consumer_settings = consumer_settings
        self._shard = GroupShard(index)
        # The last record of each classic group. Only this one is decoded into a group.
        self._classic: dict[str, AnyGroupMetadataValue | None] = {}

    def add(self, loaded: LoadedRecord | LoadedMarker) -> None:
        if isinstance(loaded, LoadedMarker):
            self._shard.complete_transaction(loaded.producer_id, committed=loaded.committed)
            return
        key, value = loaded.record
        if isinstance(key, OffsetCommitKey):
            self._shard.replay_offset(loaded.record, loaded.offset, loaded.producer_id)
        elif isinstance(key, GroupMetadataKey):
            self._classic[key.group] = value
        else:
            consumer_replay.replay(self._consumer_group(key.group_id), loaded.record)

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        groups = self._shard.consumer_groups
        if group_id not in groups:
            groups[group_id] = ConsumerGroup(group_id, self._consumer_settings(group_id))
        return groups[group_id]

    def finish(self, *, now_ms: TimestampMs, wall_offset_ms: int) -> GroupShard:
        shard = self._shard
        for group_id, group in list(shard.consumer_groups.items()):
            group.resume(now_ms)
            # A group whose records are all tombstones ends with epoch 0.
            if group.group_epoch == 0:
                del shard.consumer_groups[group_id]
        for group_id, value in self._classic.items():
            if value is not None and group_id not in shard.consumer_groups:
                shard.groups[group_id] = restore_group(
                    group_id, value, self._settings, now_ms=now_ms, wall_offset_ms=wall_offset_ms
                )
        for group_id in shard.offsets:
            if shard.find(group_id) is None:
                # Offsets without members: clients that assign their own partitions.
                shard.groups[group_id] = ClassicGroup(group_id, self._settings, now_ms=now_ms)
        return shard


class GroupShards:
    """All shards of this broker. Event loop thread only, where not stated otherwise."""

    def __init__(
        self,
        topic: OffsetsTopic,
        config: GroupConfig,
        clock: Clock,
        run_control: Callable[[Callable[[], None]], Awaitable[None]],
        texts_of_group: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`texts_of_group` returns a group's own settings. Any thread."""
        self.settings = ClassicGroupSettings(
            config.group_initial_rebalance_delay_ms, config.group_max_size
        )
        self._config = config
        self._texts_of_group = texts_of_group
        self._topic = topic
        self._clock = clock
        self._run_control = run_control
        self._shards: dict[int, GroupShard] = {}
        self._failed: set[int] = set()
        self._partition_count: int | None = None
        self._creating = asyncio.Lock()
        self._is_closed = False

    def consumer_settings(self, group_id: str) -> ConsumerGroupSettings:
        """The current settings of a consumer group. Any thread."""
        config = GroupLevelConfig.parse(self._texts_of_group(group_id), self._config)
        return ConsumerGroupSettings(
            config.consumer_session_timeout_ms,
            config.consumer_heartbeat_interval_ms,
            self._config.group_consumer_max_size,
        )

    def now_ms(self) -> TimestampMs:
        """Monotonic time for deadlines: it does not jump."""
        return int(self._clock.monotonic_s() * 1000)

    def wall_offset_ms(self) -> int:
        return self._clock.now_ms() - self.now_ms()

    def loaded(self) -> Iterator[GroupShard]:
        return iter(tuple(self._shards.values()))

    def index_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that has a group's records.

        Raises CoordinatorNotAvailableError without that topic; see `ensure_topic`.
        """
        if self._partition_count is None:
            raise CoordinatorNotAvailableError(f"there are no groups yet group_id={group_id}")
        return coordinator_partition(group_id, self._partition_count)

    def of_group(self, group_id: str) -> GroupShard:
        """Raises CoordinatorLoadInProgressError while the shard is being loaded; clients retry."""
        return self.at(self.index_of(group_id))

    def at(self, index: int) -> GroupShard:
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        if index in self._failed:
            raise CoordinatorNotAvailableError(f"groups could not be loaded partition={index}")
        raise CoordinatorLoadInProgressError(f"groups are being loaded partition={index}")

    def check_loaded(self) -> None:
        """Raises CoordinatorLoadInProgressError until every shard is loaded or has failed."""
        for index in range(self._partition_count or 0):
            if index not in self._failed:
                self.at(index)

    async def ensure_topic(self) -> None:
        """Create the topic unless it exists. The shards of a new topic are empty."""
        if self._partition_count is not None or self._is_closed:
            return
        async with self._creating:
            # A second request may have waited for the lock while the first created the topic.
            if self._partition_count is None:
                await self._run_control(self._topic.create)
                count = self._topic.partition_count or 0
                self._shards = {index: GroupShard(index) for index in range(count)}
                self._partition_count = count

    def close(self) -> None:
        """Find no group from now on. The log keeps its records."""
        self._is_closed = True
        self.forget()

    def forget(self) -> None:
        """The topic was deleted. The next group creates it again."""
        self._partition_count = None
        self._shards = {}
        self._failed = set()

    async def load(self) -> None:
        """Load every shard, if the topic exists. Called once, before any request."""
        count = self._topic.partition_count
        if count is None:
            return
        self._partition_count = count
        loop = asyncio.get_running_loop()
        for index in range(count):
            fold = functools.partial(self._fold, index)
            try:
                # In a thread: folding a long partition would block the event loop.
                self._shards[index] = await loop.run_in_executor(None, fold)
            except IsothermError as error:
                logger.error("groups cannot be loaded partition=%d: %s", index, error)  # noqa: TRY400
                self._failed.add(index)

    def _fold(self, index: int) -> GroupShard:
        fold = ShardFold(index, self.settings, self.consumer_settings)
        for loaded in self._topic.read(index):
            fold.add(loaded)
        return fold.finish(now_ms=self.now_ms(), wall_offset_ms=self.wall_offset_ms())

    # ---- changes: in the log first

    def append(self, shard: GroupShard, records: Sequence[GroupRecord]) -> None:
        """Append records. The caller applies them to the shard afterwards."""
        self._topic.append(shard.index, records)

    def write_offsets(
        self, shard: GroupShard, records: Sequence[GroupRecord], producer: Producer = NO_PRODUCER
    ) -> None:
        """Append offset records, including tombstones, and apply them."""
        first_offset = self._topic.append(shard.index, records, producer)
        for delta, record in enumerate(records):
            shard.replay_offset(record, first_offset + delta, producer.producer_id)

    def store(self, shard: GroupShard, group: ClassicGroup) -> None:
        value = group_value(group, wall_offset_ms=self.wall_offset_ms())
        self.append(shard, [GroupRecord(GroupMetadataKey(group=group.group_id), value)])
