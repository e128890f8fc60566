"""The group coordinator. It coordinates classic groups (`ClassicGroup`) itself.

Each request is one step of its group's state machine. The step's effects are applied before the
next request: the record is appended first, then the answers are sent. A request that has to wait
gets a future, which a later step completes. A group has at most one timer on the event loop, for
its earliest deadline. Event loop thread only.

Source: Kafka GroupCoordinatorService, GroupMetadataManager.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup
from isotherm.broker.coordinators.groups.classic_protocol import (
    NO_MEMBER_ID,
    Answer,
    Effect,
    JoinRequest,
    JoinResult,
    Protocol,
    Reply,
    SyncRequest,
    SyncResult,
)
from isotherm.broker.coordinators.groups.consumer_coordinator import ConsumerGroupCoordinator
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup
from isotherm.broker.coordinators.groups.group_migration import MigrationPolicy
from isotherm.broker.coordinators.groups.group_records import GroupMetadataKey, GroupRecord
from isotherm.broker.coordinators.groups.group_shard import AnyGroup, GroupShard, GroupTimer
from isotherm.broker.coordinators.groups.offset_coordinator import Committer, OffsetCoordinator
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.offsets_topic import OffsetsTopic, Producer
from isotherm.broker.coordinators.groups.shards import GroupShards
from isotherm.broker.coordinators.groups.share_group import ShareGroup
from isotherm.broker.coordinators.groups.share_group_coordinator import ShareGroupCoordinator
from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.image import TopicImage
from isotherm.clock import Clock
from isotherm.config.groups import GroupConfig
from isotherm.errors import InvalidGroupIdError, InvalidRequestError, IsothermError
from isotherm.remote.outages import log_failure
from isotherm.types import LeaderEpoch, ProducerId, TopicPartition

logger = logging.getLogger(__name__)

# The longest string, in bytes, in versions that are not flexible (before KIP-482).
TEXT_SIZE_MAX = 2**15 - 1


class Joining(NamedTuple):
    """A JoinGroup request, with the properties that follow from its version and connection."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_known_member_id: bool
    supports_skipping_assignment: bool


class GroupCoordinator:
    def __init__(
        self,
        config: GroupConfig,
        topic: OffsetsTopic,
        metadata: ClusterMetadata,
        clock: Clock,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        shards = GroupShards(topic, config, clock, metadata, opened=self._resume)
        self.shards = shards
        self.offsets = OffsetCoordinator(config, shards, self._forget_group)
        policy = MigrationPolicy(config.group_consumer_migration_policy)
        self.consumer = ConsumerGroupCoordinator(shards, policy, self, metadata, rng, loop)
        self.share = ShareGroupCoordinator(shards, metadata, loop)
        self._config = config
        self._rng = rng
        self._loop = loop
        self._commit_timeout_s = config.offsets_commit_timeout_ms / 1000
        self._expiry: asyncio.TimerHandle | None = None
        self._schedule_expiry()

    # ---- leadership (coordinators.Elected)

    def on_election(self, index: int, leader_epoch: LeaderEpoch) -> None:
        """Load a partition of `__consumer_offsets` that this broker now leads."""
        self.shards.on_election(index, leader_epoch)

    def on_resignation(self, index: int, leader_epoch: LeaderEpoch | None) -> None:
        """Drop a partition that this broker no longer leads, or, if `leader_epoch` is None, no
        longer hosts.
        """
        self.shards.on_resignation(index, leader_epoch)

    def _resume(self, shard: GroupShard) -> None:
        for group in shard.groups.values():
            self._schedule(shard, group)
        self.consumer.resume(shard)
        self.share.resume(shard)

    async def wait_until_loaded(self) -> None:
        """Return when no shard is being loaded."""
        await self.shards.wait_until_loaded()

    async def stop(self) -> None:
        """Answer all waiting requests. Groups keep their state in the log."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.consumer.close()
        self.share.close()
        await self.shards.stop()

    def uncommitted(self, group_id: str) -> Awaitable[None] | None:
        """The wait before an answer about the group may be sent, until its records are committed;
        None if they are.

        To be called right after the answer was made. The wait raises what
        `CoordinatorShard.wait_committed` raises, and the client then gets that error instead of the
        answer.
        """
        shard = self.shards.find(group_id)
        if shard is None or shard.is_committed:
            return None
        return shard.wait_committed(self._commit_timeout_s)

    def topics_deleted(self, topics: Collection[TopicImage]) -> None:
        """Delete the topics' offsets, and what share groups have of the topics."""
        ids_by_name: dict[str, set[uuid.UUID]] = {}
        for topic in topics:
            ids_by_name.setdefault(topic.name, set()).add(topic.topic_id)
        for shard in self.shards.loaded():
            try:
                # One shard that cannot append must not keep the others' offsets. Its
                # own expire like any others.
                self.offsets.delete_topics(shard, ids_by_name)
            except IsothermError as error:
                names = ",".join(ids_by_name)
                log_failure(
                    logger, error, f"offsets are not deleted topics={names} partition={shard.index}"
                )
        self.share.topics_deleted({topic.topic_id for topic in topics})

    def offsets_partition(self, group_id: str) -> int:
        """See `GroupShards.index_of`."""
        return self.shards.index_of(group_id)

    async def ensure_topic(self) -> None:
        """See `GroupShards.ensure_topic`."""
        await self.shards.ensure_topic()

    # ---- members

    async def join(self, joining: Joining) -> JoinResult:
        """Join a classic group.

        Raises InvalidGroupIdError, InvalidRequestError, and what `of_group` raises.
        """
        _check_group_id(joining.group_id)
        result = None
        while result is None:
            shard = self.shards.of_group(joining.group_id)
            result = await self._join(shard, joining)
        # Waits on the shard object that made the answer. A shard that was loaded later has other
        # records.
        if not shard.is_committed:
            await shard.wait_committed(self._commit_timeout_s)
        return result

    async def _join(self, shard: GroupShard, joining: Joining) -> JoinResult | None:
        """None if its group has changed meanwhile, and the request must begin again."""
        future: asyncio.Future[JoinResult] = self._loop.create_future()
        error = self._session_timeout_error(joining.session_timeout_ms)
        if shard.is_taken(joining.group_id):
            error = ErrorCode.inconsistent_group_protocol
        request = _join_request(joining, future, self._new_member_id(joining))
        # Before the step: a record without room for an id would fail the
        # generation of all members.
        _check_member(request)
        if error is ErrorCode.none and self.consumer.hosts(shard, joining.group_id):
            return await self.consumer.join_classic(shard, joining.group_id, request)
        if error is ErrorCode.none:
            # Before the classic group is stored: a fold that finds records of both
            # keeps the consumer group.
            self.consumer.forget_if_empty(shard, joining.group_id)
        group = shard.groups.get(joining.group_id)
        # As in Kafka, the group is looked up before the protocols are compared.
        if error is ErrorCode.none and group is None and joining.member_id != NO_MEMBER_ID:
            error = ErrorCode.unknown_member_id
        if error is not ErrorCode.none:
            return JoinResult(error, joining.member_id)
        if group is None:
            group = self._new_group(shard, joining.group_id)
        _wait(shard, future, JoinResult(ErrorCode.not_coordinator, joining.member_id))
        self._carry_out(shard, group, group.join(request, self.shards.now_ms()))
        return await future

    def _session_timeout_error(self, timeout_ms: int) -> ErrorCode:
        low = self._config.group_min_session_timeout_ms
        high = self._config.group_max_session_timeout_ms
        return ErrorCode.none if low <= timeout_ms <= high else ErrorCode.invalid_session_timeout

    def _new_member_id(self, joining: Joining) -> str:
        prefix = joining.group_instance_id or joining.client_id
        return f"{prefix}-{uuid.UUID(int=self._rng.getrandbits(128), version=4)}"

    def _new_group(self, shard: GroupShard, group_id: str) -> ClassicGroup:
        self.shards.check_room(group_id)
        group = ClassicGroup(group_id, self.shards.settings, now_ms=self.shards.now_ms())
        shard.groups[group_id] = group
        return group

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResult:
        """Sync with a classic group. Raises what `join` raises."""
        _check_group_id(group_id)
        shard = self.shards.of_group(group_id)
        result = await self._sync(shard, group_id, request)
        if not shard.is_committed:
            await shard.wait_committed(self._commit_timeout_s)
        return result

    def _sync(
        self, shard: GroupShard, group_id: str, request: SyncRequest
    ) -> asyncio.Future[SyncResult]:
        future: asyncio.Future[SyncResult] = self._loop.create_future()
        request = request._replace(reply=future)
        if self.consumer.hosts(shard, group_id):
            future.set_result(self.consumer.sync_classic(shard, group_id, request))
            return future
        group = shard.groups.get(group_id)
        if group is None:
            future.set_result(SyncResult(ErrorCode.unknown_member_id))
            return future
        _wait(shard, future, SyncResult(ErrorCode.not_coordinator))
        self._carry_out(shard, group, group.sync(request, self.shards.now_ms()))
        return future

    def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        _check_group_id(group_id)
        shard = self.shards.of_group(group_id)
        if self.consumer.hosts(shard, group_id):
            return self.consumer.heartbeat_classic(
                shard, group_id, member_id, group_instance_id, generation_id
            )
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        # The timer is not reset: a reset at each heartbeat would cost more than a timer that fires
        # early.
        now_ms = self.shards.now_ms()
        return group.heartbeat(member_id, group_instance_id, generation_id, now_ms)

    def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, given as (member id, group instance id); returns an error code for
        each, in order.
        """
        _check_group_id(group_id)
        shard = self.shards.of_group(group_id)
        if self.consumer.hosts(shard, group_id):
            return self.consumer.leave_classic(shard, group_id, members)
        group = shard.groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id for _ in members]
        codes, effects = group.leave(members, self.shards.now_ms())
        self._carry_out(shard, group, effects)
        return codes

    # ---- groups that change their protocol (consumer_coordinator.ClassicGroups)

    def retire(self, shard: GroupShard, group: ClassicGroup) -> None:
        self._carry_out(shard, group, group.die(ErrorCode.rebalance_in_progress))
        shard.groups.pop(group.group_id, None)

    def adopt(self, shard: GroupShard, group: ClassicGroup, *, rebalances: bool) -> None:
        shard.groups[group.group_id] = group
        effects = group.rebalance(self.shards.now_ms()) if rebalances else []
        self._carry_out(shard, group, effects)

    # ---- groups

    def find(self, group_id: str) -> ClassicGroup | None:
        """The classic group of that id, if there is one."""
        return self.shards.of_group(group_id).groups.get(group_id)

    def is_share_group(self, group_id: str) -> bool:
        """Whether there is a share group of that id. Raises what `of_group` raises."""
        return group_id in self.shards.of_group(group_id).share_groups

    def all_groups(self) -> Iterator[AnyGroup | ShareGroup]:
        """All groups. Raises CoordinatorLoadInProgressError while shards are being loaded."""
        self.shards.check_loaded()
        for shard in self.shards.loaded():
            yield from shard.all_groups()
            yield from shard.share_groups.values()

    def delete_group(self, group_id: str) -> ErrorCode:
        """Delete an empty group and its offsets, and return the error code."""
        shard = self.shards.of_group(group_id)
        group = shard.find(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if not group.is_empty:
            return ErrorCode.non_empty_group
        # Offsets are deleted first. A crash in between leaves an empty group, which expires by
        # itself.
        self.offsets.delete_all(shard, group_id)
        self._forget_group(shard, group)
        return ErrorCode.none

    def _forget_group(self, shard: GroupShard, group: AnyGroup) -> None:
        """Delete an empty group from the log and from memory."""
        if isinstance(group, ConsumerGroup):
            self.consumer.forget(shard, group)
            return
        tombstone = GroupRecord(GroupMetadataKey(group=group.group_id), None)
        self.shards.append(shard, [tombstone])
        self._carry_out(shard, group, group.die())

    # ---- offsets in transactions

    def commit_transactional_offsets(
        self,
        group_id: str,
        producer: Producer,
        committer: Committer,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Commit offsets that become visible when the producer's transaction commits.

        Returns an error code for each partition. Raises what `OffsetCoordinator.commit` raises.
        """
        _check_group_id(group_id)
        now_ms = self.shards.now_ms() + self.shards.wall_offset_ms()
        stamped = {
            partition: offset._replace(commit_timestamp_ms=now_ms)
            for partition, offset in offsets.items()
        }
        codes = self.offsets.commit(group_id, committer, stamped, producer)
        # TxnOffsetCommit has neither of these errors. Kafka returns ILLEGAL_GENERATION for both.
        translated = {
            ErrorCode.group_id_not_found: ErrorCode.illegal_generation,
            ErrorCode.stale_member_epoch: ErrorCode.illegal_generation,
        }
        return {partition: translated.get(code, code) for partition, code in codes.items()}

    def check_active(self, offsets_partition: int) -> None:
        """Check that a marker in that partition can be applied. Raises what `of_group` raises."""
        self.shards.at(offsets_partition)

    def complete_transaction(
        self,
        offsets_partition: int,
        producer_id: ProducerId,
        *,
        committed: bool,
        appended: asyncio.Future[None] | None,
    ) -> None:
        """Apply a transaction marker in `__consumer_offsets`: commit or drop pending offsets.

        `appended` is done when the marker is committed; None if it already is.
        """
        shard = self.shards.at(offsets_partition)
        # An answer that shows the marker's effect waits until the marker is committed.
        shard.note_append(appended)
        shard.complete_transaction(producer_id, committed=committed)

    # ---- effects and time

    def _carry_out(self, shard: GroupShard, group: ClassicGroup, effects: list[Effect]) -> None:
        # Answers after a failed append have its error, because a member must not act on a
        # generation that is unknown after a restart.
        failure = ErrorCode.none
        for effect in effects:
            if isinstance(effect, Answer):
                _answer(effect, failure)
                continue
            try:
                self.shards.store(shard, group)
            except IsothermError as error:
                log_failure(logger, error, f"group is not stored group_id={group.group_id}")
                failure = error_code(error)
        if failure is not ErrorCode.none and group.state is GroupState.STABLE:
            # The log lacks this generation's assignment, so the members must not get it later.
            # No member of a stable group has joined again: this rebalance stores nothing, and the
            # recursion ends.
            self._carry_out(shard, group, group.rebalance(self.shards.now_ms()))
            return
        # A group that never had a member is not in the log, and must not stay in memory either.
        if group.is_unused and group.group_id not in shard.offsets:
            shard.groups.pop(group.group_id, None)
        self._schedule(shard, group)

    def _schedule(self, shard: GroupShard, group: ClassicGroup) -> None:
        deadline_ms = group.next_deadline_ms()
        timer = shard.classic_timers.get(group.group_id)
        if timer is not None:
            if timer.deadline_ms == deadline_ms:
                return
            timer.handle.cancel()
            del shard.classic_timers[group.group_id]
        if deadline_ms is not None:
            # One ms late, since `expire` must find the deadline passed when the timer fires.
            delay_s = max(0, deadline_ms - self.shards.now_ms() + 1) / 1000
            handle = self._loop.call_later(delay_s, self._expire, shard, group)
            shard.classic_timers[group.group_id] = GroupTimer(deadline_ms, handle)

    def _expire(self, shard: GroupShard, group: ClassicGroup) -> None:
        # First: `_schedule` must not take a timer that has fired for one that will.
        del shard.classic_timers[group.group_id]
        self._carry_out(shard, group, group.expire(self.shards.now_ms()))

    def _schedule_expiry(self) -> None:
        delay_s = self._config.offsets_retention_check_interval_ms / 1000
        self._expiry = self._loop.call_later(delay_s, self._expire_offsets)

    def _expire_offsets(self) -> None:
        for shard in self.shards.loaded():
            try:
                self.offsets.expire(shard)
            except IsothermError as error:
                log_failure(logger, error, f"offsets are not expired partition={shard.index}")
        self._schedule_expiry()


def _wait(
    shard: GroupShard, future: asyncio.Future[Any], if_resigned: JoinResult | SyncResult
) -> None:
    # A client that disconnects cancels its future, so the callback removes its entry too.
    shard.waiting[future] = if_resigned
    future.add_done_callback(shard.waiting.__delitem__)


def _answer(answer: Answer, failure: ErrorCode) -> None:
    future = answer.reply
    assert isinstance(future, asyncio.Future)
    result = answer.result
    if failure is not ErrorCode.none:
        result = (
            JoinResult(failure, result.member_id)
            if isinstance(result, JoinResult)
            else SyncResult(failure)
        )
    # The future is done already when its client has disconnected.
    if not future.done():
        future.set_result(result)


def _join_request(joining: Joining, reply: Reply, new_member_id: str) -> JoinRequest:
    return JoinRequest(reply, *joining[1:], new_member_id)


def _check_group_id(group_id: str) -> None:
    """Raise InvalidGroupIdError for an empty id, or for one that does not fit into the key of a
    record.
    """
    if not group_id:
        raise InvalidGroupIdError("the group id is empty")
    size = len(group_id.encode())
    if size > TEXT_SIZE_MAX:
        raise InvalidGroupIdError(
            f"a group's name is too long size={size} size_max={TEXT_SIZE_MAX}"
        )


def _check_member(request: JoinRequest) -> None:
    """Raise InvalidRequestError for ids that do not fit into a record or an older response.
    Flexible versions allow them."""
    for text in (request.member_id, request.new_member_id, request.group_instance_id or ""):
        size = len(text.encode())
        if size > TEXT_SIZE_MAX:
            raise InvalidRequestError(
                f"a member's id is too long size={size} size_max={TEXT_SIZE_MAX}"
            )
