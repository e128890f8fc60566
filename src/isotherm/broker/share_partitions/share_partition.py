"""A partition as one share group consumes it, at the partition's leader (Kafka: SharePartition).

    load ──> is_active ──> begin_fetch ─read─> acquire ──> acknowledge ─write─> the start moves
                 └─ fence: another leader, a deleted topic, or a newer state epoch

One fetch at a time reads a share partition. A state that this broker alone keeps is written in the
step that changes it. Otherwise one write at a time is under way: what is acknowledged meanwhile
goes together in the next one, so that the state's start offset never moves back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from isotherm.broker.coordinators.shares.share_state import BATCHES_PER_WRITE_MAX, StateWrite
from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.share_partitions.acknowledgement import (
    Acknowledgement,
    acknowledge,
    end_transition,
    expire_locks,
    release,
)
from isotherm.broker.share_partitions.acquisition import (
    Acquired,
    Acquisition,
    acquire,
    without_aborted,
)
from isotherm.broker.share_partitions.delivery_settings import DeliverySettings
from isotherm.broker.share_partitions.fetched_batches import (
    FetchedBatch,
    Piece,
    aborted_batches,
    log_batches,
)
from isotherm.broker.share_partitions.in_flight import Transition
from isotherm.broker.share_partitions.state_requests import ReadState, WriteState
from isotherm.broker.share_partitions.window import Window
from isotherm.broker.shared_futures import shared
from isotherm.clock import Clock
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    IsothermError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    ShareStateError,
    UnknownTopicOrPartitionError,
)
from isotherm.metrics.tally import Tally
from isotherm.types import Offset, ProducerId, TimestampMs

logger = logging.getLogger(__name__)

FIRST_READ_SIZE_MAX = 1024 * 1024
READ_SIZE_MIN = 64 * 1024


class StateWriter(Protocol):
    """The part of the persister that a share partition uses."""

    def write_at_once(self, request: WriteState) -> bool: ...

    async def write(
        self, requests: Sequence[WriteState]
    ) -> dict[SharePartitionKey, IsothermError | None]: ...


class Member(NamedTuple):
    """A member's fetch: how many records it takes at most. See `Acquisition`."""

    member_id: str
    batch_size: int
    is_record_limit: bool


class _Write(NamedTuple):
    """Batches that are to be written. `transition` ends with the write; None for records whose
    locks have ended, which are available already. `done` has the error of the write."""

    batches: Sequence[StateBatch]
    transition: Transition | None
    settings: DeliverySettings
    done: asyncio.Future[None]


@dataclass(slots=True)
class FetchTimes:
    """How long fetches hold a share partition, in milliseconds, and which percentage of the time
    since the one before (Kafka: FetchLockTimeMs, FetchLockRatio)."""

    held_ms: Tally = field(default_factory=Tally)
    held_percentage: Tally = field(default_factory=Tally)
    _begin_ms: TimestampMs = 0
    _end_ms: TimestampMs | None = None

    def begin(self, now_ms: TimestampMs) -> None:
        self._begin_ms = now_ms

    def end(self, now_ms: TimestampMs) -> None:
        held_ms = max(0, now_ms - self._begin_ms)
        idle_ms = 0 if self._end_ms is None else max(0, self._begin_ms - self._end_ms)
        if held_ms + idle_ms == 0:
            share = 1.0
        elif held_ms == 0:
            share = 1.0 / idle_ms
        else:
            share = held_ms / (held_ms + idle_ms)
        self._end_ms = now_ms
        self.held_ms.add(held_ms)
        self.held_percentage.add(int(share * 100))


class _Read(NamedTuple):
    """What a fetch has read: its size is in bytes."""

    batch_count: int
    offset_count: int
    size: int


class SharePartition:
    """Event loop thread only."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        writer: StateWriter,
        clock: Clock,
        changed: Callable[[SharePartition], None],
    ) -> None:
        """`changed` is called when more may have become acquirable, or a lock may end earlier, and
        when the share partition is fenced."""
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self._term = partition.term
        self._state_epoch = -1
        self._window: Window | None = None
        self._writer = writer
        self._clock = clock
        self._changed = changed
        self._is_fenced = False
        self._is_being_fetched = False
        # Bounded by the records in flight, each of which is in one transition, and by the requests
        # that wait for their answers.
        self._unwritten: list[_Write] = []
        self._writing: asyncio.Task[None] | None = None
        # Of the last read that had any; None before.
        self._last_read: _Read | None = None
        # Why it could not be loaded.
        self.load_error: IsothermError | None = None
        self.lock_timeout_count = 0
        """Records whose locks have ended without an acknowledgement."""
        self.fetch_times = FetchTimes()

    # ---- its life

    def load(self, state: ReadState, start_offset: Offset) -> None:
        """Begin with the state that its coordinator has. Raises CorruptMetadataError."""
        self._window = Window.load(start_offset, state.batches)
        self._state_epoch = state.state_epoch
        self._changed(self)

    def fail_to_load(self, error: IsothermError) -> None:
        self.load_error = error
        self.fence()

    def fence(self) -> None:
        """Nothing is acquired from here on; writes that are under way end."""
        self._is_fenced = True
        self._changed(self)

    @property
    def is_led(self) -> bool:
        """Whether this broker has led the partition since the share partition began."""
        partition = self.partition
        return partition.is_leader and not partition.is_gone and partition.term == self._term

    @property
    def is_fenced(self) -> bool:
        return self._is_fenced

    @property
    def is_loading(self) -> bool:
        return self._window is None and not self._is_fenced

    @property
    def is_active(self) -> bool:
        return self._window is not None and not self._is_fenced

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    @property
    def window(self) -> Window:
        assert self._window is not None, "it is loaded"
        return self._window

    async def written(self) -> None:
        """Return when no write is under way. Its errors are those of the requests."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))

    def stop(self) -> None:
        """End a write that is under way: the broker stops."""
        if self._writing is not None:
            self._writing.cancel()

    # ---- fetches

    def begin_fetch(self, settings: DeliverySettings) -> Offset | None:
        """`next_fetch_offset`, for a fetch that calls `end_fetch` later unless it is None."""
        offset = self.next_fetch_offset(settings)
        if offset is not None:
            self._is_being_fetched = True
            self.fetch_times.begin(self._clock.now_ms())
        return offset

    def end_fetch(self) -> None:
        self._is_being_fetched = False
        self.fetch_times.end(self._clock.now_ms())
        self._changed(self)

    def next_fetch_offset(self, settings: DeliverySettings) -> Offset | None:
        """The offset at which a fetch would acquire records. None if there is nothing to acquire,
        or another fetch reads."""
        if not self.is_active or self._is_being_fetched:
            return None
        window = self.window
        return window.next_fetch_offset() if window.can_acquire(settings.record_locks_max) else None

    def read_size_max(self, record_count_max: int) -> int:
        """How many bytes a fetch reads for that many records, judged by the last read. A fetch
        that reads too few has fewer records, and the next one reads more."""
        last = self._last_read
        if last is None:
            return FIRST_READ_SIZE_MAX
        batch_count = -(-record_count_max * last.batch_count // last.offset_count)
        # One more, since batches differ. A first batch that is larger is read whole.
        if batch_count > 1:
            batch_count += 1
        return max(READ_SIZE_MIN, batch_count * last.size // last.batch_count)

    def acquire(
        self,
        member: Member,
        record_count_max: int,
        fetch_offset: Offset,
        batches: Sequence[FetchedBatch],
        settings: DeliverySettings,
    ) -> list[Acquired]:
        """Acquire records of the batches that a fetch has read. See `without_aborted`, too."""
        if not self.is_active:
            return []
        if batches:
            self._last_read = _Read(
                len(batches),
                batches[-1].header.last_offset + 1 - batches[0].header.base_offset,
                batches[-1].end_position,
            )
        acquisition = Acquisition(
            member.member_id,
            record_count_max,
            member.batch_size,
            member.is_record_limit,
            self._clock.now_ms() + settings.record_lock_duration_ms,
            settings.delivery_count_max,
            settings.record_locks_max,
        )
        return acquire(self.window, acquisition, fetch_offset, log_batches(batches))

    def without_aborted(
        self,
        acquired: Sequence[Acquired],
        pieces: Sequence[Piece],
        batches: Sequence[FetchedBatch],
        transactions: Sequence[tuple[ProducerId, Offset]],
    ) -> list[Acquired]:
        """The acquired records without those of aborted transactions, which are archived."""
        aborted = aborted_batches(pieces, batches, transactions)
        return without_aborted(self.window, acquired, aborted)

    def move_start(self, log_start_offset: Offset) -> None:
        """The log has lost what is below `log_start_offset`."""
        if self.is_active:
            self.window.move_start(log_start_offset)

    # ---- acknowledgements

    def begin_acknowledgement(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        settings: DeliverySettings,
    ) -> Transition:
        """Acknowledge records. The caller calls `write` before its step of the event loop ends.

        Raises InvalidRecordStateError and InvalidRequestError; then nothing but renewals of locks
        has changed.
        """
        now_ms = self._clock.now_ms()
        deliveries = settings.deliveries(now_ms)
        try:
            return acknowledge(self.window, member_id, acknowledgements, deliveries, now_ms)
        except IsothermError:
            self._changed(self)
            raise

    def write(
        self, transition: Transition, settings: DeliverySettings
    ) -> asyncio.Future[None] | None:
        """Write what has been acknowledged. The future is done when it is written; None if it is.

        The future has the error of the write, after which the member has the records again.
        """
        return self._write(transition.batches, transition, settings)

    def release(self, member_id: str, settings: DeliverySettings) -> None:
        """Release what a member has acquired. The error of the write is logged."""
        transition = release(self.window, member_id, settings.deliveries(self._clock.now_ms()))
        self._write(transition.batches, transition, settings)

    def expire_locks(self, settings: DeliverySettings) -> None:
        """Make records available whose locks have ended."""
        now_ms = self._clock.now_ms()
        expired = expire_locks(self.window, settings.deliveries(now_ms), now_ms)
        if expired:
            self.lock_timeout_count += sum(
                batch.last_offset_inclusive - batch.first_offset + 1 for batch in expired
            )
        # The records are available whatever becomes of the write; its error is logged.
        self._write(expired, None, settings)

    # ---- writes

    def _write(
        self,
        batches: Sequence[StateBatch],
        transition: Transition | None,
        settings: DeliverySettings,
    ) -> asyncio.Future[None] | None:
        """Write batches of a change that has begun. The future has the outcome; None if they are
        written."""
        done: asyncio.Future[None] | None = None
        if not batches:
            pass
        elif self._writing is None and self._writer.write_at_once(self._state_of(batches)):
            self._end_write(transition, settings, self._clock.now_ms(), is_committed=True)
        else:
            # Shared: who asked for it may have gone.
            done = shared(asyncio.get_running_loop().create_future())
            self._unwritten.append(_Write(batches, transition, settings, done))
            if self._writing is None:
                self._begin_writing()
        self._changed(self)
        return done

    async def _write_all(self) -> None:
        while self._unwritten:
            writes = self._next_writes()
            error: IsothermError | None = self._cut_off()
            try:
                error = await self._write_state(writes)
            finally:
                self._end_writes(writes, error)

    def _begin_writing(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_all())
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if task.cancelled():
            # A task that is cancelled before its first step runs none of its code.
            writes, self._unwritten = self._unwritten, []
            self._end_writes(writes, self._cut_off())
        elif self._unwritten:
            self._begin_writing()

    def _cut_off(self) -> CoordinatorNotAvailableError:
        """The error of a write that is cut off: the member has the records until their locks
        end."""
        return CoordinatorNotAvailableError(
            f"the write of a share partition's state was cut off {self._place}"
        )

    def _next_writes(self) -> list[_Write]:
        """The first of the writes that wait, as many as one request takes."""
        count = size = 0
        for write in self._unwritten:
            size += len(write.batches)
            if count and size > BATCHES_PER_WRITE_MAX:
                break
            count += 1
        writes = self._unwritten[:count]
        del self._unwritten[:count]
        return writes

    async def _write_state(self, writes: Sequence[_Write]) -> IsothermError | None:
        """The error for the members; None if the state is written."""
        state = self._state_of([batch for write in writes for batch in write.batches])
        error = (await self._writer.write([state]))[self.key]
        if error is None:
            return None
        error = state_error(error)
        logger.warning("the state of a share partition is not written %s: %s", self._place, error)
        if isinstance(error, NotLeaderOrFollowerError | UnknownTopicOrPartitionError):
            self.fence()
        return error

    def _state_of(self, batches: Sequence[StateBatch]) -> WriteState:
        window = self.window
        return WriteState(
            self.key,
            StateWrite(
                self._state_epoch,
                self.leader_epoch,
                window.start_offset,
                window.delivery_complete_count,
                tuple(batches),
            ),
        )

    def _end_writes(self, writes: Sequence[_Write], error: IsothermError | None) -> None:
        now_ms = self._clock.now_ms()
        for write in writes:
            self._end_write(write.transition, write.settings, now_ms, is_committed=error is None)
            if write.done.done():
                continue
            if error is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(error)
        self._changed(self)

    def _end_write(
        self,
        transition: Transition | None,
        settings: DeliverySettings,
        now_ms: TimestampMs,
        *,
        is_committed: bool,
    ) -> None:
        if transition is None:
            self.window.advance_start()
        else:
            deliveries = settings.deliveries(now_ms)
            end_transition(self.window, transition, deliveries, now_ms, is_committed=is_committed)

    @property
    def _place(self) -> str:
        return f"group_id={self.key.group_id} partition={self.partition.topic_partition}"


def state_error(error: IsothermError) -> IsothermError:
    """What members are told of an error of a state's coordinator. Source: Kafka
    SharePartition.fetchPersisterError."""
    if isinstance(
        error, NotCoordinatorError | CoordinatorNotAvailableError | CoordinatorLoadInProgressError
    ):
        answered: IsothermError = CoordinatorNotAvailableError(str(error))
    elif isinstance(error, FencedLeaderEpochError | FencedStateEpochError):
        answered = NotLeaderOrFollowerError(str(error))
    elif isinstance(error, UnknownTopicOrPartitionError):
        return error
    else:
        answered = ShareStateError(str(error))
    answered.__cause__ = error
    return answered
