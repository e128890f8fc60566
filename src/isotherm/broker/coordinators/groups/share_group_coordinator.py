"""The coordinator of share groups (KIP-932). It applies requests to `ShareGroup`.

A request is applied to a copy of its group. The copy's records are appended as one batch, and then
the copy replaces the group. So a request that fails changes nothing. A heartbeat whose step goes
through many things is applied to its copy in a thread. The copy replaces the group only if that is
still the one that was copied; otherwise the step is made again, with the group as it is now.

The states of a group's partitions are the share coordinator's, which may be another broker: the
caller of `heartbeat` has them initialized, and says how that went.

Event loop thread only, but for that step.
Source: Kafka GroupCoordinatorService, GroupMetadataManager.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import group_log, share_group_records
from isotherm.broker.coordinators.groups.consumer_group import LOOP_STEP_THINGS_MAX
from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH
from isotherm.broker.coordinators.groups.group_records import (
    EncodedRecord,
    GroupRecord,
    encoded_records,
)
from isotherm.broker.coordinators.groups.group_shard import GroupShard
from isotherm.broker.coordinators.groups.long_steps import STEP_THREADS, LongSteps
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.shards import GroupShards
from isotherm.broker.coordinators.groups.share_group import ShareGroup
from isotherm.broker.coordinators.groups.share_member import (
    ShareHeartbeat,
    ShareHeartbeatResult,
    TopicPartitions,
)
from isotherm.broker.coordinators.groups.topic_catalog import NewestCatalog, TopicCatalog
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.errors import IsothermError
from isotherm.remote.outages import log_failure
from isotherm.types import TimestampMs

logger = logging.getLogger(__name__)

# The delay before an expiry whose records the log refused is retried.
EXPIRY_RETRY_MS = 1000


class _Change(NamedTuple):
    """A group, the copy of it that is changed, and the metadata and the time of the change."""

    group: ShareGroup
    changed: ShareGroup
    time: tuple[TopicCatalog, TimestampMs]


class _Step(NamedTuple):
    """A heartbeat, and the copy of its group to which it is applied."""

    group: ShareGroup
    beat: ShareHeartbeat
    catalog: TopicCatalog
    now_ms: TimestampMs
    wall_ms: TimestampMs

    def apply(self) -> tuple[ShareHeartbeatResult, list[EncodedRecord]]:
        """The answer and the records of the step, which is now applied to `group`. Any thread.

        Raises MemberRejectedError, and what `encoded_records` raises.
        """
        result, records = self.group.heartbeat(self.beat, self.catalog, self.now_ms, self.wall_ms)
        return result, encoded_records(records)


class ShareGroupCoordinator:
    def __init__(
        self, shards: GroupShards, metadata: ClusterMetadata, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._catalog = NewestCatalog(metadata)
        self._loop = loop
        # New epochs since the start.
        self.rebalance_count = 0
        self._long_steps = LongSteps(ThreadPoolExecutor(STEP_THREADS, "isotherm-shares"))

    def close(self) -> None:
        self._long_steps.close()

    def find(self, group_id: str) -> ShareGroup:
        """The share group. Raises MemberRejectedError (GROUP_ID_NOT_FOUND) if there is none, and
        what `of_group` raises."""
        group = self._shards.of_group(group_id).share_groups.get(group_id)
        if group is None:
            raise _no_such_group(group_id)
        return group

    # ---- members

    async def heartbeat(self, group_id: str, beat: ShareHeartbeat) -> ShareHeartbeatResult:
        """Apply a heartbeat. Raises MemberRejectedError, and what `of_group` raises."""
        while True:
            shard = self._shards.of_group(group_id)
            group = shard.share_groups.get(group_id)
            catalog = self._catalog.get()
            if group is not None:
                # Read at each heartbeat, so a changed setting of the group holds from the next on.
                group.settings = self._shards.share_settings(group_id)
                unchanged = group.keep_alive(beat, catalog, self._shards.now_ms())
                if unchanged is not None:
                    self._schedule(shard, group)
                    return unchanged
            if await self._long_steps.waited_for(group_id):
                continue
            result = await self._beat(shard, group_id, beat, catalog)
            if result is not None:
                return result

    async def _beat(
        self, shard: GroupShard, group_id: str, beat: ShareHeartbeat, catalog: TopicCatalog
    ) -> ShareHeartbeatResult | None:
        """None if the group has changed meanwhile: the heartbeat must begin again. Raises as
        `heartbeat`."""
        before = shard.share_groups.get(group_id)
        group = before or self._new_group(shard, group_id, beat)
        now_ms = self._shards.now_ms()
        step = _Step(group.copy(), beat, catalog, now_ms, now_ms + self._shards.wall_offset_ms())
        if group.things_of(beat, catalog) <= LOOP_STEP_THINGS_MAX:
            result, records = step.apply()
        else:
            result, records = await self._long_steps.applied(group_id, step)
            if self._shards.of_group(group_id) is not shard:
                return None
            if shard.share_groups.get(group_id) is not before:
                return None
            if before is None:
                # The id, or the room for it, may have gone.
                self._new_group(shard, group_id, beat)
            step.group.keep_sessions_of(group)
        self._replace(shard, group, step.group, records)
        return result

    def _new_group(self, shard: GroupShard, group_id: str, beat: ShareHeartbeat) -> ShareGroup:
        """A new group for a joining member. As in Kafka, it replaces no group of another type, not
        even an empty one."""
        if beat.epoch != JOIN_EPOCH:
            raise _no_such_group(group_id)
        return self._empty_group(shard, group_id)

    def _empty_group(self, shard: GroupShard, group_id: str) -> ShareGroup:
        if shard.find(group_id) is not None or shard.is_taken(group_id):
            raise _no_such_group(group_id)
        self._shards.check_room(group_id)
        return ShareGroup(group_id, self._shards.share_settings(group_id))

    def leave(self, group_id: str, member_id: str) -> None:
        """Remove a member. Raises MemberRejectedError, and what `of_group` raises."""
        change = self._change_of(self.find(group_id))
        self._apply(change, change.changed.leave(member_id, *change.time))

    # ---- the states of partitions

    def note_initialized(
        self, group_id: str, partitions: Mapping[uuid.UUID, Collection[int]]
    ) -> None:
        """The states of these partitions are initialized; a later heartbeat assigns them.

        Raises what `find` and `GroupShards.append` raise.
        """
        change = self._change_of(self.find(group_id))
        self._apply(change, change.changed.initialized(partitions, *change.time))

    def note_failed(self, group_id: str, partitions: Mapping[uuid.UUID, Collection[int]]) -> None:
        """The states of these partitions could not be initialized; a later heartbeat has them in
        its answer again. Raises as `note_initialized`."""
        change = self._change_of(self.find(group_id))
        self._apply(change, change.changed.uninitialized(partitions, *change.time))

    def begin_alteration(
        self, group_id: str, partitions: Mapping[str, Collection[int]]
    ) -> tuple[int, dict[uuid.UUID, TopicPartitions]]:
        """Begin to move the start offsets of partitions, by topic; a missing group is created.

        Returns the group's epoch and the partitions that exist. The caller has their states begun
        anew with that epoch once the records are committed, and then calls `note_initialized`.
        Raises MemberRejectedError for a group with members and for one of another type, and what
        `of_group` and `check_room` raise.
        """
        shard = self._shards.of_group(group_id)
        group = shard.share_groups.get(group_id) or self._empty_group(shard, group_id)
        change = self._change_of(group)
        altered, records = change.changed.begin_alteration(partitions, *change.time)
        self._apply(change, records)
        return change.changed.group_epoch, altered

    def begin_offset_deletion(
        self, group_id: str, names: Collection[str]
    ) -> dict[uuid.UUID, frozenset[int]]:
        """Begin to delete the states of topics. The caller has the states of the returned
        partitions deleted, and then calls `end_offset_deletion`.

        Raises MemberRejectedError if there is no such group or it has members, and what `of_group`
        raises.
        """
        change = self._change_of(self.find(group_id))
        partitions, records = change.changed.begin_offset_deletion(names, *change.time)
        self._apply(change, records)
        return partitions

    def end_offset_deletion(self, group_id: str, topic_ids: Collection[uuid.UUID]) -> None:
        """The states of these topics are deleted. Raises as `note_initialized`."""
        change = self._change_of(self.find(group_id))
        self._apply(change, change.changed.end_offset_deletion(topic_ids, *change.time))

    def begin_deletion(self, group_id: str) -> dict[uuid.UUID, frozenset[int]]:
        """Begin to delete a group. The caller has the states of the returned partitions deleted,
        and then calls `delete`. Raises as `begin_offset_deletion`."""
        change = self._change_of(self.find(group_id))
        partitions, records = change.changed.begin_deletion(*change.time)
        self._apply(change, records)
        return partitions

    def delete(self, group_id: str) -> None:
        """Delete a group without members.

        Raises MemberRejectedError (NON_EMPTY_GROUP) if a member has joined since `begin_deletion`,
        and as `note_initialized`.
        """
        group = self.find(group_id)
        group.check_empty()
        shard = self._shards.of_group(group_id)
        self._shards.append(shard, share_group_records.group_tombstones(group_id))
        del shard.share_groups[group_id]

    def topics_deleted(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Forget the states of deleted topics."""
        for shard in self._shards.loaded():
            for group in tuple(shard.share_groups.values()):
                change = self._change_of(group)
                try:
                    self._apply(change, change.changed.topics_deleted(topic_ids, *change.time))
                except IsothermError as error:
                    # The states are gone. A group that keeps their topics assigns none of them.
                    log_failure(
                        logger,
                        error,
                        f"states of deleted topics are not deleted yet group_id={group.group_id}",
                    )

    # ---- changes: in the log first

    def _change_of(self, group: ShareGroup) -> _Change:
        time = self._catalog.get(), self._shards.now_ms()
        return _Change(group, group.copy(), time)

    def _apply(self, change: _Change, records: Sequence[GroupRecord]) -> None:
        """Without records nothing has changed."""
        if records:
            shard = self._shards.of_group(change.group.group_id)
            self._replace(shard, change.group, change.changed, encoded_records(records))

    def _replace(
        self,
        shard: GroupShard,
        group: ShareGroup,
        changed: ShareGroup,
        records: Sequence[EncodedRecord],
    ) -> None:
        if records:
            self._shards.append_encoded(shard, records)
            group_log.share_group_changed(group, changed)
            self.rebalance_count += changed.group_epoch - group.group_epoch
        shard.share_groups[changed.group_id] = changed
        self._schedule(shard, changed)

    # ---- time

    def resume(self, shard: GroupShard) -> None:
        """Let sessions end in a shard that was loaded."""
        for group in shard.share_groups.values():
            self._schedule(shard, group)

    def _schedule(self, shard: GroupShard, group: ShareGroup) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._wake_by(shard, group.group_id, deadline_ms)

    def _wake_by(self, shard: GroupShard, group_id: str, deadline_ms: TimestampMs) -> None:
        now_ms = self._shards.now_ms()
        shard.wake_by(shard.share_timers, group_id, deadline_ms, now_ms, self._loop, self._expire)

    def _expire(self, shard: GroupShard, group_id: str) -> None:
        del shard.share_timers[group_id]
        group = shard.share_groups.get(group_id)
        if group is None:
            return
        changed = group.copy()
        now_ms = self._shards.now_ms()
        # One member. The timer for the next one is set with the change.
        records = changed.expire(self._catalog.get(), now_ms)
        try:
            self._replace(shard, group, changed, encoded_records(records))
        except IsothermError as error:
            log_failure(logger, error, f"expired members are not removed yet group_id={group_id}")
            self._wake_by(shard, group_id, now_ms + EXPIRY_RETRY_MS)


def _no_such_group(group_id: str) -> MemberRejectedError:
    return MemberRejectedError(
        ErrorCode.group_id_not_found, f"no such share group group_id={group_id}"
    )
