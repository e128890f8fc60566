"""The coordinator of consumer groups (KIP-848). It applies requests to `ConsumerGroup`.

A request is applied to a copy of its group. The copy's records are appended as one batch, and then
the copy replaces the group. So a request that fails changes nothing.

A heartbeat, or a join by the classic protocol, whose step goes through many things is applied to
its copy in a thread. The copy replaces the group only if that is still the one that was copied;
otherwise the step is made again, with the group as it is now. Heartbeats that change the group, and
joins, wait for such a step, others do not. So is the upgrade of a classic group, which changes in
place: the thread reads its state, and it must have that state afterwards.

Event loop thread only, but for that step.
Source: Kafka GroupCoordinatorService, GroupMetadataManager.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import consumer_records, group_log, hosted_members
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup
from isotherm.broker.coordinators.groups.classic_protocol import (
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from isotherm.broker.coordinators.groups.consumer_group import (
    LOOP_STEP_THINGS_MAX,
    ConsumerGroup,
    ConsumerGroupSettings,
)
from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH
from isotherm.broker.coordinators.groups.group_migration import (
    ClassicState,
    MigrationPolicy,
    can_downgrade,
    can_upgrade,
    downgraded,
    upgraded,
)
from isotherm.broker.coordinators.groups.group_records import (
    EncodedRecord,
    GroupMetadataKey,
    GroupRecord,
    encoded_records,
)
from isotherm.broker.coordinators.groups.group_shard import GroupShard
from isotherm.broker.coordinators.groups.group_snapshot import group_value
from isotherm.broker.coordinators.groups.long_steps import STEP_THREADS, LongSteps
from isotherm.broker.coordinators.groups.member_heartbeat import (
    HeartbeatResult,
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.shards import GroupShards
from isotherm.broker.coordinators.groups.topic_catalog import NewestCatalog, TopicCatalog
from isotherm.broker.coordinators.groups.topic_selection import NO_SELECTIONS, TopicSelector, Viewer
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.errors import IsothermError
from isotherm.remote.outages import log_failure
from isotherm.types import TimestampMs, uuid_to_text

if TYPE_CHECKING:
    from isotherm.broker.metadata.access.authorizer import Authorizer

logger = logging.getLogger(__name__)

# The delay before an expiry whose records the log refused is retried.
EXPIRY_RETRY_MS = 1000
# The first member bumps it, so members start at epoch 2, as in Kafka 4.3.
FIRST_EPOCH = 1


class ClassicGroups(Protocol):
    """The part of the classic coordinator that a group needs to change its protocol."""

    def retire(self, shard: GroupShard, group: ClassicGroup) -> None:
        """Remove a classic group that was upgraded.

        Its waiting requests get REBALANCE_IN_PROGRESS.
        """

    def adopt(self, shard: GroupShard, group: ClassicGroup, *, rebalances: bool) -> None:
        """Take over a group that was downgraded. The log already has its record."""


class _Step(NamedTuple):
    """A heartbeat, and the copy of its group to which it is applied. `creation_records` come first
    if the group is new."""

    group: ConsumerGroup
    beat: MemberHeartbeat
    catalog: TopicCatalog
    now_ms: TimestampMs
    wall_ms: int
    creation_records: Sequence[GroupRecord]

    def apply(self) -> tuple[HeartbeatResult, list[EncodedRecord]]:
        """The answer and the records of the step, which is now applied to `group`. Any thread.

        Raises MemberRejectedError, and what `encoded_records` raises.
        """
        result, records = self.group.heartbeat(self.beat, self.catalog, self.now_ms, self.wall_ms)
        return result, encoded_records([*self.creation_records, *records])


class _Upgraded(NamedTuple):
    """A classic group as a consumer group, before and after the heartbeat that upgrades it. The
    records come with those that replace the classic group."""

    before: ConsumerGroup
    group: ConsumerGroup
    result: HeartbeatResult
    records: Sequence[EncodedRecord]


class _Upgrade(NamedTuple):
    """The heartbeat of a member that joins a classic group with members."""

    classic: ClassicState
    settings: ConsumerGroupSettings
    beat: MemberHeartbeat
    catalog: TopicCatalog
    now_ms: TimestampMs
    wall_ms: int

    def things(self) -> int:
        """How many things the step goes through, as `ConsumerGroup.things_of` counts them. A group
        with more bytes is not read for that. Raises MemberRejectedError."""
        size = self.classic.size_in_bytes
        if size > LOOP_STEP_THINGS_MAX:
            return size
        return self._consumer_group().things_of(self.beat, self.catalog)

    def apply(self) -> _Upgraded:
        """As `_Step.apply`."""
        before = self._consumer_group()
        group = before.copy()
        result, records = group.heartbeat(self.beat, self.catalog, self.now_ms, self.wall_ms)
        tombstone = GroupRecord(GroupMetadataKey(group=self.classic.group_id), None)
        stored = [tombstone, *before.all_records(self.wall_ms), *records]
        return _Upgraded(before, group, result, encoded_records(stored))

    def _consumer_group(self) -> ConsumerGroup:
        return upgraded(self.classic, self.settings, self.catalog, self.now_ms)


class _ClassicJoin(NamedTuple):
    """A join of the classic protocol, and the copy of its group to which it is applied."""

    group: ConsumerGroup
    request: JoinRequest
    catalog: TopicCatalog
    now_ms: TimestampMs
    wall_ms: int

    def apply(self) -> tuple[JoinResult, list[EncodedRecord]]:
        """As `_Step.apply`."""
        result, records = hosted_members.join(
            self.group, self.request, self.catalog, self.now_ms, self.wall_ms
        )
        return result, encoded_records(records)


class ConsumerGroupCoordinator:
    def __init__(
        self,
        shards: GroupShards,
        policy: MigrationPolicy,
        classic_groups: ClassicGroups,
        metadata: ClusterMetadata,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._shards = shards
        self._policy = policy
        self._classic_groups = classic_groups
        self._catalog = NewestCatalog(metadata)
        self._rng = rng
        self._loop = loop
        self._selector = TopicSelector(metadata)
        self._long_steps = LongSteps(ThreadPoolExecutor(STEP_THREADS, "isotherm-groups"))

    def close(self) -> None:
        self._selector.close()
        self._long_steps.close()

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._shards.consumer_settings(group_id).heartbeat_interval_ms

    async def with_selections(
        self,
        group_id: str,
        beat: MemberHeartbeat,
        viewer: Viewer,
        authorizer: Authorizer | None,
    ) -> MemberHeartbeat:
        """The heartbeat with the topics that patterns of the group's members select by now.

        Raises InvalidRegularExpressionError, and what `of_group` raises.
        """
        group = self._shards.of_group(group_id).consumer_groups.get(group_id)
        pattern, selections = beat.topic_regex, NO_SELECTIONS
        if group is not None:
            selections = group.selections
            if pattern is None:
                pattern = group.pattern_of(beat)
        if not pattern:
            return beat
        selected = await self._selector.select(
            beat.member_id, pattern, viewer, selections, authorizer
        )
        return beat._replace(selections=selected)

    async def heartbeat(self, group_id: str, beat: MemberHeartbeat) -> HeartbeatResult:
        """Apply a heartbeat. Raises MemberRejectedError, and what `of_group` raises."""
        while True:
            shard = self._shards.of_group(group_id)
            group = shard.consumer_groups.get(group_id)
            catalog = self._catalog.get()
            if group is not None:
                # Read at each heartbeat, so a changed setting of the group holds from the next on.
                group.settings = self._shards.consumer_settings(group_id)
                unchanged = group.keep_alive(beat, catalog, self._shards.now_ms())
                if unchanged is not None:
                    self._schedule(shard, group)
                    return unchanged
            if await self._long_steps.waited_for(group_id):
                continue
            classic = shard.groups.get(group_id)
            if group is None and classic is not None and not classic.is_empty:
                result = await self._upgrade(shard, classic, beat, catalog)
            else:
                result = await self._beat(shard, group_id, beat, catalog)
            if result is not None:
                return result

    async def _beat(
        self, shard: GroupShard, group_id: str, beat: MemberHeartbeat, catalog: TopicCatalog
    ) -> HeartbeatResult | None:
        """Apply a heartbeat to a consumer group, which may be new. None if the group has changed
        meanwhile: the heartbeat must begin again. Raises as `heartbeat`."""
        before = group = shard.consumer_groups.get(group_id)
        is_unused = before is None and shard.groups.get(group_id) is None
        creation_records: list[GroupRecord] = []
        if group is None:
            group, creation_records = self._new_group(shard, group_id, beat)
        step = _Step(group.copy(), beat, catalog, *self._now(), creation_records)
        if group.things_of(beat, catalog) <= LOOP_STEP_THINGS_MAX:
            result, records = step.apply()
            self._replace(shard, group, step.group, records)
            return result
        result, records = await self._long_steps.applied(group_id, step)
        if self._has_changed(shard, group_id, before) or (
            before is None and not _is_free(shard.groups.get(group_id))
        ):
            return None
        if is_unused:
            self._shards.check_room(group_id)
        step.group.keep_sessions_of(group)
        self._replace(shard, group, step.group, records)
        return result

    def _new_group(
        self, shard: GroupShard, group_id: str, beat: MemberHeartbeat
    ) -> tuple[ConsumerGroup, list[GroupRecord]]:
        """A new group for a joining member, and the records that create it.

        It replaces an empty classic group with the same id.
        """
        if beat.epoch != JOIN_EPOCH or shard.is_taken(group_id):
            raise _no_such_group(group_id)
        group = ConsumerGroup(group_id, self._shards.consumer_settings(group_id))
        group.group_epoch = FIRST_EPOCH
        if shard.groups.get(group_id) is None:
            self._shards.check_room(group_id)
            return group, []
        return group, [GroupRecord(GroupMetadataKey(group=group_id), None)]

    async def _upgrade(
        self, shard: GroupShard, classic: ClassicGroup, beat: MemberHeartbeat, catalog: TopicCatalog
    ) -> HeartbeatResult | None:
        """Upgrade a classic group with members for a joining member. None if the group has changed
        meanwhile: the heartbeat must begin again. Raises as `heartbeat`.
        """
        group_id, settings = classic.group_id, self._shards.consumer_settings(classic.group_id)
        is_served = not shard.is_taken(group_id) and can_upgrade(classic, self._policy, settings)
        if beat.epoch != JOIN_EPOCH or not is_served:
            raise _no_such_group(group_id)
        # The classic group changes in place, so the thread has what an upgrade reads of it.
        state = ClassicState.of(classic)
        step = _Upgrade(state, settings, beat, catalog, *self._now())
        if step.things() <= LOOP_STEP_THINGS_MAX:
            done = step.apply()
        else:
            done = await self._long_steps.applied(group_id, step)
            if (
                self._has_changed(shard, group_id, None)
                or shard.groups.get(group_id) is not classic
                or ClassicState.of(classic) != state
            ):
                return None
            # Heartbeats of the classic group came meanwhile.
            done.group.resume(self._shards.now_ms())
        self._replace(shard, done.before, done.group, done.records)
        return done.result

    def leave(
        self, group_id: str, member_id: str, instance_id: str | None, epoch: int
    ) -> HeartbeatResult:
        shard = self._shards.of_group(group_id)
        group = self.find(group_id)
        changed = group.copy()
        result, records = changed.leave(member_id, instance_id, epoch)
        self._replace(shard, group, changed, encoded_records(records))
        return result

    # ---- members that use the classic protocol

    def hosts(self, shard: GroupShard, group_id: str) -> bool:
        """Whether this coordinator serves classic requests of the group: it is a consumer group
        with members.
        """
        group = shard.consumer_groups.get(group_id)
        return group is not None and not group.is_empty

    async def join_classic(
        self, shard: GroupShard, group_id: str, request: JoinRequest
    ) -> JoinResult | None:
        """Apply a join to a group that is hosted now. None if it has changed meanwhile: the request
        must begin again. Raises what `encoded_records` raises.
        """
        if await self._long_steps.waited_for(group_id):
            return None
        group = shard.consumer_groups[group_id]
        catalog = self._catalog.get()
        step = _ClassicJoin(group.copy(), request, catalog, *self._now())
        try:
            if hosted_members.things_of_join(group, request, catalog) <= LOOP_STEP_THINGS_MAX:
                result, records = step.apply()
            else:
                result, records = await self._long_steps.applied(group_id, step)
                if self._has_changed(shard, group_id, group):
                    return None
                step.group.keep_sessions_of(group)
        except MemberRejectedError as error:
            return JoinResult(error.code, request.member_id)
        self._replace(shard, group, step.group, records)
        return result

    def _has_changed(self, shard: GroupShard, group_id: str, before: ConsumerGroup | None) -> bool:
        """Raises what `of_group` raises."""
        return (
            self._shards.of_group(group_id) is not shard
            or shard.consumer_groups.get(group_id) is not before
        )

    def sync_classic(self, shard: GroupShard, group_id: str, request: SyncRequest) -> SyncResult:
        group = shard.consumer_groups[group_id]
        changed = group.copy()
        catalog = self._catalog.get()
        try:
            result = hosted_members.sync(changed, request, catalog, self._shards.now_ms())
        except MemberRejectedError as error:
            return SyncResult(error.code)
        self._replace(shard, group, changed, [])
        return result

    def heartbeat_classic(
        self,
        shard: GroupShard,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
    ) -> ErrorCode:
        group = shard.consumer_groups[group_id]
        changed = group.copy()
        now_ms = self._shards.now_ms()
        try:
            code = hosted_members.heartbeat(
                changed, member_id, group_instance_id, generation_id, now_ms
            )
        except MemberRejectedError as error:
            return error.code
        self._replace(shard, group, changed, [])
        return code

    def leave_classic(
        self, shard: GroupShard, group_id: str, members: Iterable[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        group = shard.consumer_groups[group_id]
        changed = group.copy()
        codes, records = hosted_members.leave(changed, members)
        self._replace(shard, group, changed, encoded_records(records))
        return codes

    # ---- groups

    def find(self, group_id: str) -> ConsumerGroup:
        """The consumer group. Raises MemberRejectedError (GROUP_ID_NOT_FOUND) if there is none."""
        group = self._shards.of_group(group_id).consumer_groups.get(group_id)
        if group is None:
            raise _no_such_group(group_id)
        return group

    def forget_if_empty(self, shard: GroupShard, group_id: str) -> None:
        """Remove an empty consumer group, so that a classic group can use its id."""
        group = shard.consumer_groups.get(group_id)
        if group is not None and group.is_empty:
            self.forget(shard, group)

    def forget(self, shard: GroupShard, group: ConsumerGroup) -> None:
        """Delete an empty group from the log and from memory. Its offsets stay."""
        self._shards.append(shard, consumer_records.group_tombstones(group.group_id, group.members))
        del shard.consumer_groups[group.group_id]

    def new_member_id(self) -> str:
        """A member id for clients that do not generate one (version 0)."""
        return uuid_to_text(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _now(self) -> tuple[TimestampMs, int]:
        """Monotonic time for deadlines, and wall-clock time for records, in ms."""
        now_ms = self._shards.now_ms()
        return now_ms, now_ms + self._shards.wall_offset_ms()

    def _replace(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        changed: ConsumerGroup,
        records: Sequence[EncodedRecord],
    ) -> None:
        settings = self._shards.settings
        if not group.is_classic and can_downgrade(changed, self._policy, settings):
            # The classic members get the partitions of a member that left by a rebalance.
            has_fewer = len(changed.members) < len(group.members)
            self._downgrade(shard, changed, records, rebalances=has_fewer)
            return
        if records:
            self._shards.append_encoded(shard, records)
            group_log.consumer_group_changed(group, changed)
        classic = shard.groups.get(changed.group_id)
        shard.consumer_groups[changed.group_id] = changed
        if classic is not None:
            # Retired only now that the log has the consumer group's records: a failed append must
            # leave the classic group as it was.
            self._classic_groups.retire(shard, classic)
        self._schedule(shard, changed)

    def _downgrade(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        records: Sequence[EncodedRecord],
        *,
        rebalances: bool,
    ) -> None:
        classic = downgraded(
            group, self._shards.settings, self._catalog.get(), self._shards.now_ms()
        )
        value = group_value(classic, wall_offset_ms=self._shards.wall_offset_ms())
        stored = GroupRecord(GroupMetadataKey(group=classic.group_id), value)
        tombstones = consumer_records.group_tombstones(group.group_id, group.members)
        # In one batch, since a crash between the tombstones and the new record would lose the
        # group.
        encoded = encoded_records([*tombstones, stored])
        self._shards.append_encoded(shard, [*records, *encoded])
        shard.consumer_groups.pop(group.group_id, None)
        self._classic_groups.adopt(shard, classic, rebalances=rebalances)

    # ---- time

    def resume(self, shard: GroupShard) -> None:
        for group in shard.consumer_groups.values():
            self._schedule(shard, group)

    def _schedule(self, shard: GroupShard, group: ConsumerGroup) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._wake_by(shard, group.group_id, deadline_ms)

    def _wake_by(self, shard: GroupShard, group_id: str, deadline_ms: TimestampMs) -> None:
        now_ms = self._shards.now_ms()
        shard.wake_by(
            shard.consumer_timers, group_id, deadline_ms, now_ms, self._loop, self._expire
        )

    def _expire(self, shard: GroupShard, group_id: str) -> None:
        del shard.consumer_timers[group_id]
        group = shard.consumer_groups.get(group_id)
        if group is None:
            return
        changed = group.copy()
        now_ms = self._shards.now_ms()
        records = changed.expire(now_ms)
        try:
            self._replace(shard, group, changed, encoded_records(records))
        except IsothermError as error:
            log_failure(logger, error, f"expired members are not removed yet group_id={group_id}")
            self._wake_by(shard, group_id, now_ms + EXPIRY_RETRY_MS)


def _is_free(classic: ClassicGroup | None) -> bool:
    """Whether a consumer group may take the id, without members of the classic group."""
    return classic is None or classic.is_empty


def _no_such_group(group_id: str) -> MemberRejectedError:
    return MemberRejectedError(
        ErrorCode.group_id_not_found, f"no such consumer group group_id={group_id}"
    )
