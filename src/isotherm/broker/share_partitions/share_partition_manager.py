"""The share partitions whose partitions this broker leads, and the sessions of their members.

A share partition begins with the first fetch of a group's member: its state is read from its
coordinator. It ends when this broker leads the partition no more, when the topic is deleted, when
a newer leader or state is told by the coordinator, and when the last member of its group has left
this broker; the next fetch then begins it again.

Source: Kafka SharePartitionManager.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.coordinators.shares.state_batches import NO_START_OFFSET
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata, MetadataChange
from isotherm.broker.partitions.offset_lookup import (
    FoundOffset,
    LocalSearch,
    SpecialTimestamp,
    find_offset,
)
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.share_partitions.acknowledgement import Acknowledgement
from isotherm.broker.share_partitions.delivery_settings import (
    EARLIEST,
    LATEST,
    DeliverySettings,
    reset_timestamp_ms,
)
from isotherm.broker.share_partitions.in_flight import Transition
from isotherm.broker.share_partitions.persister import Persister
from isotherm.broker.share_partitions.share_fetch import ShareFetch
from isotherm.broker.share_partitions.share_partition import SharePartition, state_error
from isotherm.broker.share_partitions.share_sessions import MemberKey, ShareSessionCache
from isotherm.broker.share_partitions.state_requests import ReadByLeader, ReadState
from isotherm.clock import Clock
from isotherm.config.groups import GroupLevelConfig
from isotherm.errors import (
    CoordinatorNotAvailableError,
    InvalidRecordStateError,
    IsothermError,
    NotEnoughMemoryError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.metrics.tally import Tally
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.remote.reading.reader_pool import RemoteReaderPool

logger = logging.getLogger(__name__)

# Share partitions of this broker. Those of members without records take about a kilobyte; the
# records in flight are bounded by group.share.partition.max.record.locks for each.
SHARE_PARTITIONS_MAX = 100_000


class ResetLookUp(NamedTuple):
    """How start offsets by `share.auto.offset.reset` are found, in both tiers."""

    readers: RemoteReaderPool | None
    executor: Executor
    timeout_s: float


@dataclass(slots=True)
class _SettingsOf:
    """The settings of a group, made of this configuration."""

    config: GroupLevelConfig
    settings: DeliverySettings


@dataclass(slots=True)
class FetchMarks:
    """Of the fetches of a group: the percentage of their partitions that they could read, and the
    time that they waited for that."""

    read_percentage: Tally = field(default_factory=Tally)
    wait_ms: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class ShareMarks:
    """Counts since the start, for metrics. `acknowledged` has the records by type, `fetches` those
    of groups with members here. `expired_fetches` have waited to the end of their time."""

    acknowledged: Counter[int] = field(default_factory=Counter)
    load_times_ms: Tally = field(default_factory=Tally)
    fetches: dict[str, FetchMarks] = field(default_factory=dict)
    expired_fetches: int = 0

    def mark_acknowledged(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        for first_offset, last_offset_inclusive, types in acknowledgements:
            if len(types) == 1:
                self.acknowledged[types[0]] += last_offset_inclusive - first_offset + 1
            else:
                self.acknowledged.update(types)


class BegunAcknowledgement(NamedTuple):
    """What a member has acknowledged of a partition, and has to be written."""

    share_partition: SharePartition
    transition: Transition
    acknowledgements: Sequence[Acknowledgement]
    settings: DeliverySettings


class SharePartitionManager:
    """Event loop thread only. Call `stop` at the end."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        persister: Persister,
        metadata: ClusterMetadata,
        sessions: ShareSessionCache,
        look_up: ResetLookUp,
        clock: Clock,
    ) -> None:
        self.sessions = sessions
        self.marks = ShareMarks()
        self._replica_manager = replica_manager
        self._purgatory: Purgatory[Hashable] = replica_manager.purgatory
        self._persister = persister
        self._metadata = metadata
        self._look_up = look_up
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._share_partitions: dict[SharePartitionKey, SharePartition] = {}
        self._of_groups: dict[str, set[SharePartitionKey]] = {}
        self._settings: dict[str, _SettingsOf] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # The ends of locks: at most one entry counts for each share partition, its earliest.
        self._lock_ends: list[tuple[TimestampMs, int, SharePartitionKey]] = []
        self._next_lock_ends: dict[SharePartitionKey, TimestampMs] = {}
        self._entry_numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float = math.inf
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._share_partitions)

    def share_partitions(self) -> Sequence[SharePartition]:
        """All share partitions. Any thread."""
        return tuple(self._share_partitions.values())

    async def stop(self) -> None:
        """Ends writes that are under way; members' locks end at the next leader."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        for share_partition in tuple(self._share_partitions.values()):
            share_partition.stop()
        await asyncio.gather(
            *self._tasks,
            *(share_partition.written() for share_partition in self._share_partitions.values()),
            return_exceptions=True,
        )

    # ---- settings

    def settings_of(self, group_id: str) -> DeliverySettings:
        """The current settings of a group."""
        config = self._metadata.group_config(group_id)
        cached = self._settings.get(group_id)
        if cached is not None and cached.config is config:
            return cached.settings
        settings = DeliverySettings.of(config)
        # Kept for groups with members alone, so sessions bound them.
        if self.sessions.has_members(group_id):
            self._settings[group_id] = _SettingsOf(config, settings)
        return settings

    # ---- share partitions

    def get(self, key: SharePartitionKey) -> SharePartition:
        """Raises UnknownTopicOrPartitionError if no member has fetched from it, or it has ended."""
        share_partition = self._share_partitions.get(key)
        if share_partition is not None and not share_partition.is_led:
            self._drop(share_partition)
            share_partition = None
        if share_partition is None or share_partition.is_fenced:
            raise UnknownTopicOrPartitionError(
                "the records of this partition are not acquired here"
                f" group_id={key.group_id} topic_id={key.topic_id} partition={key.partition}"
            )
        return share_partition

    def get_or_begin(self, key: SharePartitionKey) -> SharePartition:
        """The share partition, which may be loading.

        Raises NotLeaderOrFollowerError, UnknownTopicOrPartitionError and LogDirFailedError if this
        broker does not lead the partition, and NotEnoughMemoryError.
        """
        share_partition = self._share_partitions.get(key)
        if share_partition is not None:
            if share_partition.is_led and not share_partition.is_fenced:
                return share_partition
            self._drop(share_partition)
        partition = self._replica_manager.find_partition(None, key.topic_id, key.partition)
        partition.check_is_leader()
        if len(self._share_partitions) >= SHARE_PARTITIONS_MAX:
            raise NotEnoughMemoryError(
                f"this broker has its maximum of share partitions max={SHARE_PARTITIONS_MAX}"
            )
        share_partition = SharePartition(
            key, partition, self._persister, self._clock, self._on_changed
        )
        self._share_partitions[key] = share_partition
        self._of_groups.setdefault(key.group_id, set()).add(key)
        self._start(self._load(share_partition))
        return share_partition

    async def _load(self, share_partition: SharePartition) -> None:
        key = share_partition.key
        start_ms = self._clock.now_ms()
        error: IsothermError = CoordinatorNotAvailableError("the broker stops")
        try:
            request = ReadByLeader(key, share_partition.leader_epoch)
            state = (await self._persister.read([request]))[key]
            if isinstance(state, IsothermError):
                raise state_error(state)
            start_offset = await self._start_offset(share_partition.partition, key, state)
            share_partition.load(state, start_offset)
        except IsothermError as caught:
            error = caught
            logger.warning(
                "a share partition is not loaded group_id=%s partition=%s: %s",
                key.group_id,
                share_partition.partition.topic_partition,
                error,
            )
        finally:
            self.marks.load_times_ms.add(self._clock.now_ms() - start_ms)
            if share_partition.is_loading:
                share_partition.fail_to_load(error)

    async def _start_offset(
        self, partition: Partition, key: SharePartitionKey, state: ReadState
    ) -> Offset:
        if state.start_offset != NO_START_OFFSET:
            return state.start_offset
        reset = self.settings_of(key.group_id).auto_offset_reset
        if reset == EARLIEST:
            return await self._offset_at(partition, SpecialTimestamp.EARLIEST)
        if reset != LATEST:
            timestamp_ms = reset_timestamp_ms(reset, self._clock.now_ms())
            offset = await self._offset_at(partition, timestamp_ms)
            if offset >= 0:
                return offset
            # No record is that young: the group begins with the next one. Kafka answers
            # OFFSET_NOT_AVAILABLE until there is one.
        return await self._offset_at(partition, SpecialTimestamp.LATEST)

    async def _offset_at(self, partition: Partition, timestamp_ms: TimestampMs) -> Offset:
        look_up = self._look_up
        offset = find_offset(
            partition,
            timestamp_ms,
            FetchIsolation.HIGH_WATERMARK,
            look_up.readers,
            LocalSearch(look_up.executor, asyncio.Semaphore()),
            look_up.timeout_s,
        )
        return (offset if isinstance(offset, FoundOffset) else await offset).offset

    def _drop(self, share_partition: SharePartition) -> None:
        key = share_partition.key
        if self._share_partitions.get(key) is share_partition:
            del self._share_partitions[key]
            of_group = self._of_groups[key.group_id]
            of_group.discard(key)
            if not of_group:
                del self._of_groups[key.group_id]
            self._next_lock_ends.pop(key, None)
        if not share_partition.is_fenced:
            share_partition.fence()

    def follow(self, change: MetadataChange) -> None:
        """End the share partitions whose partitions are deleted or led elsewhere. Any thread."""
        if change.deleted or change.moved:
            topic_ids = {topic.topic_id for topic in (*change.deleted, *change.moved)}
            self._loop.call_soon_threadsafe(self._drop_lost, topic_ids)

    def _drop_lost(self, topic_ids: set[Any]) -> None:
        for share_partition in tuple(self._share_partitions.values()):
            if share_partition.key.topic_id in topic_ids and not share_partition.is_led:
                self._drop(share_partition)

    # ---- changes, and the ends of locks

    def _on_changed(self, share_partition: SharePartition) -> None:
        key = share_partition.key
        if share_partition.is_fenced:
            self._drop(share_partition)
        else:
            self._note_lock_end(share_partition)
        self._purgatory.notify(key)

    def _note_lock_end(self, share_partition: SharePartition) -> None:
        if not share_partition.is_active:
            return
        end_ms, key = share_partition.window.next_lock_end_ms, share_partition.key
        if end_ms is None or self._share_partitions.get(key) is not share_partition:
            return
        noted_ms = self._next_lock_ends.get(key)
        if noted_ms is not None and noted_ms <= end_ms:
            return
        self._next_lock_ends[key] = end_ms
        heapq.heappush(self._lock_ends, (end_ms, next(self._entry_numbers), key))
        self._set_timer()

    def _set_timer(self) -> None:
        if not self._lock_ends or self._lock_ends[0][0] >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = self._lock_ends[0][0]
        wait_s = max(0.0, (self._timer_ms - self._clock.now_ms()) / 1000)
        self._timer = self._loop.call_later(wait_s, self.expire_locks)

    def expire_locks(self) -> None:
        """Release the records whose locks have ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, math.inf
        now_ms = self._clock.now_ms()
        while self._lock_ends and self._lock_ends[0][0] <= now_ms:
            end_ms, _, key = heapq.heappop(self._lock_ends)
            if self._next_lock_ends.get(key) != end_ms:
                continue
            del self._next_lock_ends[key]
            share_partition = self._share_partitions.get(key)
            if share_partition is not None and share_partition.is_active:
                share_partition.expire_locks(self.settings_of(key.group_id))
        self._set_timer()

    # ---- members

    def begin_acknowledgement(
        self,
        member: MemberKey,
        key: SharePartitionKey,
        acknowledgements: Sequence[Acknowledgement],
        settings: DeliverySettings,
    ) -> BegunAcknowledgement:
        """Acknowledge records of a partition. The caller calls `write` before its step of the event
        loop ends; until then released records are not available.

        Raises UnknownTopicOrPartitionError, InvalidRecordStateError and InvalidRequestError.
        """
        share_partition = self.get(key)
        if not share_partition.is_active:
            raise InvalidRecordStateError(
                "nobody has acquired records of this partition yet"
                f" group_id={key.group_id} topic_id={key.topic_id} partition={key.partition}"
            )
        transition = share_partition.begin_acknowledgement(
            member.member_id, acknowledgements, settings
        )
        return BegunAcknowledgement(share_partition, transition, acknowledgements, settings)

    def write(self, begun: BegunAcknowledgement) -> asyncio.Future[None] | None:
        """See `SharePartition.write`."""
        write = begun.share_partition.write(begun.transition, begun.settings)
        if write is None:
            self.marks.mark_acknowledged(begun.acknowledgements)
            return None

        def mark(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.marks.mark_acknowledged(begun.acknowledgements)

        write.add_done_callback(mark)
        return write

    def note_fetch(self, group_id: str, fetch: ShareFetch, wait_ms: float) -> None:
        """Count a fetch that is answered."""
        marks = self.marks
        marks.expired_fetches += fetch.has_expired
        of_group = marks.fetches.get(group_id)
        if of_group is None:
            if not self.sessions.has_members(group_id):
                return  # nobody would remove it
            of_group = marks.fetches[group_id] = FetchMarks()
        of_group.read_percentage.add(fetch.read_percentage)
        of_group.wait_ms.add(wait_ms)

    def end_session(self, member: MemberKey) -> None:
        """End a member's session, and release what it has acquired."""
        partitions = self.sessions.remove(member)
        settings = self.settings_of(member.group_id)
        for key in partitions:
            share_partition = self._share_partitions.get(key)
            if share_partition is not None and share_partition.is_active:
                share_partition.release(member.member_id, settings)

    def connection_closed(self, connection: Hashable) -> None:
        """End the sessions that a connection has begun. A group without members here has no share
        partitions here: another member may have its offsets altered before it comes back."""
        if self._is_stopped:
            return
        for member in self.sessions.of_connection(connection):
            self.sessions.eviction_count += 1
            self.end_session(member)
        self._drop_groups_without_members()

    def _drop_groups_without_members(self) -> None:
        for group_id in tuple(self._of_groups):
            if not self.sessions.has_members(group_id):
                self._settings.pop(group_id, None)
                self.marks.fetches.pop(group_id, None)
                self._start(self._drop_group(group_id))

    async def _drop_group(self, group_id: str) -> None:
        """After the writes, so that who comes next reads what they have written."""
        keys = self._of_groups.get(group_id, ())
        share_partitions = [self._share_partitions[key] for key in keys]
        for share_partition in share_partitions:
            await share_partition.written()
        if not self.sessions.has_members(group_id):
            for share_partition in share_partitions:
                self._drop(share_partition)

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
