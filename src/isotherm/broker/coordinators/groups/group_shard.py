"""One shard of the group coordinator: the groups and offsets of a partition of
`__consumer_offsets`.

A shard is the fold of its partition's records. Source: Kafka GroupCoordinatorShard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard
from isotherm.broker.coordinators.groups import consumer_replay
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.classic_protocol import JoinResult, SyncResult
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.group_offsets import GroupOffsets
from isotherm.broker.coordinators.groups.group_records import (
    AnyGroupMetadataValue,
    GroupMetadataKey,
    GroupRecord,
)
from isotherm.broker.coordinators.groups.group_snapshot import restore_group
from isotherm.broker.coordinators.groups.offset_reader import CommittedOffset
from isotherm.broker.coordinators.groups.offsets_topic import (
    Loaded,
    LoadedMarker,
    LoadedUnserved,
)
from isotherm.broker.coordinators.groups.share_group import ShareGroup, ShareGroupSettings
from isotherm.broker.coordinators.groups.share_group_records import (
    SHARE_KEYS,
    ShareGroupMetadataKey,
)
from isotherm.types import NO_PRODUCER_ID, ProducerId, TimestampMs

# The groups that commit offsets.
AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup


class GroupTimer(NamedTuple):
    """A group's timer on the event loop, set for its earliest deadline."""

    deadline_ms: TimestampMs
    handle: asyncio.TimerHandle


class GroupShard(CoordinatorShard):
    """The groups and offsets of one partition, with state that ends with this broker's leadership:
    timers, and requests that wait for a rebalance, each with the answer that it gets then."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.classic_timers: dict[str, GroupTimer] = {}
        self.consumer_timers: dict[str, GroupTimer] = {}
        self.share_timers: dict[str, GroupTimer] = {}
        self.waiting: dict[asyncio.Future[Any], JoinResult | SyncResult] = {}
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.share_groups: dict[str, ShareGroup] = {}
        # Streams groups.
        self.unserved: set[str] = set()
        self._open_transactions: dict[ProducerId, set[str]] = {}

    def find(self, group_id: str) -> AnyGroup | None:
        return self.groups.get(group_id) or self.consumer_groups.get(group_id)

    def all_groups(self) -> list[AnyGroup]:
        return [*self.groups.values(), *self.consumer_groups.values()]

    def is_taken(self, group_id: str) -> bool:
        """Whether a share or streams group has the id. No other group may use it, or a broker of
        Apache Kafka could no longer load the partition."""
        return group_id in self.share_groups or group_id in self.unserved

    def close(self) -> None:
        super().close()
        for timers in (self.classic_timers, self.consumer_timers, self.share_timers):
            for timer in timers.values():
                timer.handle.cancel()
            timers.clear()
        for future, result in tuple(self.waiting.items()):
            if not future.done():
                future.set_result(result)

    def wake_by(
        self,
        timers: dict[str, GroupTimer],
        group_id: str,
        deadline_ms: TimestampMs,
        now_ms: TimestampMs,
        loop: asyncio.AbstractEventLoop,
        expire: Callable[[GroupShard, str], None],
    ) -> None:
        """Reset the group's timer in `timers` only if it would fire too late. A timer that fires
        early does no harm and costs nothing per heartbeat. `expire` gets the group by id, because
        each request replaces the group's object."""
        timer = timers.get(group_id)
        if timer is not None:
            if timer.deadline_ms <= deadline_ms:
                return
            timer.handle.cancel()
        # One ms late, since the deadline must have passed when the timer fires.
        delay_s = max(0, deadline_ms - now_ms + 1) / 1000
        timers[group_id] = GroupTimer(deadline_ms, loop.call_later(delay_s, expire, self, group_id))

    def replay_offset(self, offset: CommittedOffset) -> None:
        """Apply an offset record from the log."""
        group_id, partition, stored, producer_id = offset
        offsets = self.offsets.get(group_id)
        if offsets is None:
            offsets = self.offsets[group_id] = GroupOffsets()
        if stored is None:
            offsets.forget(partition)
            self._drop_if_empty(group_id)
        elif producer_id == NO_PRODUCER_ID:
            offsets.commit(partition, stored)
        else:
            self._open_transactions.setdefault(producer_id, set()).add(group_id)
            offsets.add_pending(producer_id, partition, stored)

    def complete_transaction(self, producer_id: ProducerId, *, committed: bool) -> None:
        """Apply a transaction marker from the log."""
        for group_id in self._open_transactions.pop(producer_id, ()):
            # Tombstones may have dropped the group's offsets, pending ones
            # too, since they were written.
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
        share_settings: Callable[[str], ShareGroupSettings],
    ) -> None:
        self._settings = settings
        self._consumer_settings = consumer_settings
        self._share_settings = share_settings
        self._shard = GroupShard(index)
        # The last record of each classic group. Only that record becomes a group.
        self._classic: dict[str, AnyGroupMetadataValue | None] = {}

    def add(self, loaded: Loaded) -> None:
        if isinstance(loaded, CommittedOffset):
            self._shard.replay_offset(loaded)
            return
        if isinstance(loaded, LoadedUnserved):
            if loaded.exists:
                self._shard.unserved.add(loaded.group_id)
            else:
                self._shard.unserved.discard(loaded.group_id)
            return
        if isinstance(loaded, LoadedMarker):
            self._shard.complete_transaction(loaded.producer_id, committed=loaded.committed)
            return
        key, value = loaded.record
        if isinstance(key, GroupMetadataKey):
            self._classic[key.group] = value
        elif isinstance(key, SHARE_KEYS):
            self._replay_share(key, loaded.record)
        else:
            consumer_replay.replay(self._consumer_group(key.group_id), loaded.record)

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        groups = self._shard.consumer_groups
        if group_id not in groups:
            groups[group_id] = ConsumerGroup(group_id, self._consumer_settings(group_id))
        return groups[group_id]

    def _replay_share(self, key: Any, record: GroupRecord) -> None:
        """A tombstone without its group is left from one that was deleted."""
        groups, group_id = self._shard.share_groups, key.group_id
        if record.value is None and isinstance(key, ShareGroupMetadataKey):
            groups.pop(group_id, None)
            return
        if group_id not in groups:
            if record.value is None:
                return
            groups[group_id] = ShareGroup(group_id, self._share_settings(group_id))
        # Times of records begin when the shard is loaded.
        groups[group_id].apply(record, 0)

    def finish(self, *, now_ms: TimestampMs, wall_offset_ms: int) -> GroupShard:
        shard = self._shard
        for share_group in shard.share_groups.values():
            share_group.resume(now_ms)
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
            if shard.find(group_id) is None and not shard.is_taken(group_id):
                # Offsets without members are those of consumers with a manual assignment.
                shard.groups[group_id] = ClassicGroup(group_id, self._settings, now_ms=now_ms)
        return shard
