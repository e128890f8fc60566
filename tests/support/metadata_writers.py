"""Several brokers write to one metadata partition, in an order that a seed chooses.

Each broker is a real metadata manager over its own view of two shared logs. An append may be lost,
lose its answer, or land much later. A broker may die before or after an append, and start again.
Its replica may lag, and the leader that it asks may be a deposed one with an older log end. Threads
switch at every read, append and lock, and may be delayed there.

Each append is checked: the decision behind an audited event was made on the state that the audit
log had then; no event is audited before the previous one is applied; and the keyed state never goes
back. The folds are the oracle's own (tests/support/schedules/oracle.py).
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isotherm.errors import (
    IsothermError,
    LogEndMovedError,
    RemoteResourceNotFoundError,
    RequestTimedOutError,
    SegmentKeyTakenError,
)
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import LeaderEpoch, Offset, TimestampMs, TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.schedules.cooperative import ScheduledClock, cooperative_threading
from tests.support.schedules.oracle import FoldedTopic, Violation
from tests.support.schedules.scheduler import Decision, Scheduler, SimulatedThread

State = RemoteLogSegmentState
NEXT = {
    State.COPY_SEGMENT_STARTED: (State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED),
    State.COPY_SEGMENT_FINISHED: (State.DELETE_SEGMENT_STARTED,),
    State.DELETE_SEGMENT_STARTED: (State.DELETE_SEGMENT_FINISHED,),
}
PARTITIONS = [TopicIdPartition(uuid.UUID(int=7), "t", number) for number in range(3)]
BROKERS = 3
STEPS = 14
SETTLED_POLLS = 3


class BrokerDied(BaseException):
    """The broker died; its current work ends."""


class HeldUp:
    """A strategy that may delay any thread at any point, for a long time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._chance = rng.choice([0.05, 0.2, 0.5])

    def at_point(self, scheduler: Scheduler, me: SimulatedThread, label: str) -> Decision:
        others = [each for each in scheduler.ready() if each is not me and not each.outside]
        if not others or self._rng.random() >= self._chance:
            return None
        me.held_until_ms = scheduler.now_ms + self._rng.choice([0, 0, 1, 1000])
        return self._rng.choice(others)

    def next_thread(
        self, scheduler: Scheduler, ready: list[SimulatedThread], label: str
    ) -> SimulatedThread:
        return self._rng.choice(ready)


class Logs:
    """The leaders' copies of the two logs; every record is committed."""

    def __init__(self) -> None:
        self.metadata, self.audit = MemoryMetadataTopic(1), MemoryMetadataTopic(1)
        self.ends: dict[MemoryMetadataTopic, list[Offset]] = {self.metadata: [0], self.audit: [0]}
        """The end offsets after each batch: a broker has a batch as a whole or not at all."""
        self.audited, self.stored = FoldedTopic(), FoldedTopic()
        self.before_last: dict[RemoteLogSegmentId, State] = {}
        self.decided_on: dict[tuple[RemoteLogSegmentId, State, int], State | None] = {}
        """Segment, target state and broker -> the state on which the broker decided."""
        self.late: list[Callable[[], None]] = []

    def append(
        self, topic: MemoryMetadataTopic, end: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        """Append the record, and check the invariants on the result."""
        topic.append_at(0, end, records)
        self.ends[topic].append(end + len(records))
        # Read back: the invariants need the records with their offsets.
        last = topic.read(0, end, 1 << 20)[-len(records) :]
        if topic is self.audit:
            (record,) = last
            self._check_decision(record)
            if self.states(self.stored) != self.states(self.audited):
                raise Violation("an event is audited before the last one is applied")
            self.audited.fold_audited(record)
        else:
            before = self.states(self.stored)
            self.stored.fold(last)
            for segment, state in self.states(self.stored).items():
                if segment in before and state < before[segment]:
                    raise Violation(f"a state goes back segment={segment} to={state.name}")
                if segment not in self.audited.segments:
                    raise Violation(f"a segment comes back segment={segment} state={state.name}")

    def _check_decision(self, record: MetadataTopicRecord) -> None:
        event = decode_event(record.value or b"")
        if not isinstance(event, RemoteLogSegmentMetadataUpdate):
            return
        seen = self.decided_on[event.segment_id, event.state, event.broker_id]
        now = self.audited.segments.get(event.segment_id)
        if (now.state if now else None) is not seen:
            raise Violation(
                f"decided on a state that is over segment={event.segment_id}"
                f" to={event.state.name} seen={seen} now={now}"
            )

    def states(self, folded: FoldedTopic) -> dict[RemoteLogSegmentId, State]:
        return {segment: each.state for segment, each in folded.segments.items()}


class BrokersTopic:
    """A `ConditionalMetadataTopic`: one broker's view of one log."""

    def __init__(self, world: World, log: MemoryMetadataTopic) -> None:
        self._world = world
        self._log = log
        self._replica_end: Offset = 0

    partition_count = 1

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        raise AssertionError("an append without a condition")

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        raise AssertionError("an append without a condition")

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        world = self._world
        world.run.point("append")
        fate = world.draw()

        def land() -> None:
            ends = self._log.offsets(0)[1]
            world.logs.append(self._log, end_offset if world.has_conditions else ends, records)

        match fate:
            case "dies before":
                raise BrokerDied
            case "request lost":
                raise RequestTimedOutError("injected: nothing is appended")
            case "late":
                # It may land after the broker has retried; the condition on the end offset must
                # then refuse it.
                world.logs.late.append(land)
                raise RequestTimedOutError("injected: appended later")
        land()
        if fate == "dies after":
            raise BrokerDied
        if fate == "answer lost":
            raise RequestTimedOutError("injected: appended")

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        self._world.run.point("read")
        self._replicate()
        if start_offset > self._replica_end:
            return []
        found = self._log.read(0, start_offset, max_bytes)
        return [each for each in found if each.offset < self._replica_end]

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return columns_of(self.read(partition, start_offset, max_bytes), start_offset)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        """The end offset that a leader reports; a deposed leader may report an older one."""
        self._world.run.point("offsets")
        return 0, self._some_end()

    def is_current(self, partition: int) -> bool:
        return self.has_all_below(0, self.offsets(0)[1])

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        self._world.run.point("replica")
        self._replicate()
        return self._replica_end >= end_offset

    def close(self) -> None:
        """Nothing is open."""

    def _replicate(self) -> None:
        # A replica never goes back, although each draw of an end may be an older one.
        self._replica_end = max(self._replica_end, self._some_end())

    def _some_end(self) -> Offset:
        ends = self._world.logs.ends[self._log]
        return ends[max(0, len(ends) - 1 - self._world.behind())]


@dataclass(slots=True)
class Leadership:
    epoch: LeaderEpoch = 1
    broker: int = 0


class World:
    def __init__(self, seed: int, *, has_conditions: bool = True) -> None:
        self.rng = random.Random(seed)
        self.run = Scheduler(HeldUp(random.Random(seed + 1)), 1_000_000)
        self.logs = Logs()
        self.has_conditions = has_conditions
        self.is_calm = False
        self._faults = self.rng.choice([0.0, 0.05, 0.2])
        self._leaders = {each: Leadership() for each in PARTITIONS}
        self.recorded = 0

    def play(self) -> None:
        """Play the run. Raises Violation."""
        with cooperative_threading(self.run):
            threads = [
                self.run.spawn(f"broker {number}", Broker(self, number).work)
                for number in range(BROKERS)
            ]
            self.run.is_quiet = False
            self.run.block(lambda: all(thread.has_ended for thread in threads), "all")
            self.run.raise_errors()
            self.run.is_quiet = self.is_calm = True
            self._check_settled()

    def draw(self) -> str:
        """Draw the fault of an append; "" for none."""
        if self.is_calm or self.rng.random() >= self._faults:
            return ""
        fates = ["dies before", "dies after", "request lost", "answer lost", "late", "late"]
        return self.rng.choice(fates)

    def behind(self) -> int:
        return 0 if self.is_calm or self.rng.random() < 0.9 else self.rng.randint(1, 3)

    def happen(self) -> None:
        """Draw events that no broker causes: a late append lands, the cleaner runs, a leader
        moves.
        """
        logs = self.logs
        if logs.late and self.rng.random() < 0.5:
            land = logs.late.pop(self.rng.randrange(len(logs.late)))
            with contextlib.suppress(LogEndMovedError):
                land()
        if self.rng.random() < 0.1:
            logs.metadata.compact(keep_tombstones=True)
        if self.rng.random() < 0.3:
            moved = self._leaders[self.rng.choice(PARTITIONS)]
            moved.epoch, moved.broker = moved.epoch + 1, self.rng.randrange(BROKERS)

    def epoch_of(self, partition: TopicIdPartition) -> LeaderEpoch:
        """The leader epoch that a broker knows; it may be an old one."""
        return max(1, self._leaders[partition].epoch - self.behind())

    def _check_settled(self) -> None:
        for land in self.logs.late:
            with contextlib.suppress(LogEndMovedError):
                land()
        broker = Broker(self, BROKERS)
        for _ in range(SETTLED_POLLS):
            broker.manager.poll()
        expected = self.logs.states(self.logs.audited)
        self.logs.metadata.compact()
        compacted = FoldedTopic()
        compacted.fold(self.logs.metadata.records())
        found = {
            "stored": self.logs.states(self.logs.stored),
            "compacted": self.logs.states(compacted),
            "a new broker's": {
                segment.segment_id: segment.state
                for partition in PARTITIONS
                for segment in broker.manager.list_remote_log_segments(partition)
            },
        }
        for what, states in found.items():
            if states != expected:
                raise Violation(f"{what} state is not what was audited {states} {expected}")


class Broker:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self._begin()

    def _begin(self) -> None:
        """Start a new process for the broker."""
        world = self.world
        topic, audit = (BrokersTopic(world, log) for log in (world.logs.metadata, world.logs.audit))
        self.manager = TopicBasedRemoteLogMetadataManager(
            topic,
            clock=ScheduledClock(world.run),
            metrics=Metrics(),
            keyed=KeyedMetadata(audit, lambda _: 1),
        )
        self.manager.on_partition_leadership_changes(PARTITIONS, ())

    def work(self) -> None:
        for _ in range(STEPS):
            self.world.happen()
            try:
                self.manager.poll()
                self._record_something(self.world.rng.choice(PARTITIONS))
                self.world.recorded += 1
            except BrokerDied:
                self._begin()
            except (IsothermError, SegmentKeyTakenError, RemoteResourceNotFoundError):
                pass

    def _record_something(self, partition: TopicIdPartition) -> None:
        rng, epoch = self.world.rng, self.world.epoch_of(partition)
        with self.manager.exclusively(partition):
            segments = self.manager.list_remote_log_segments(partition)
            if not segments or rng.random() < 0.3:
                self.manager.add_remote_log_segment_metadata(self._new(partition, epoch))
                return
            segment = rng.choice(segments)
            state = rng.choice(NEXT[segment.state])
            self.world.logs.decided_on[segment.segment_id, state, self.number] = segment.state
            self.manager.update_remote_log_segment_metadata(
                RemoteLogSegmentMetadataUpdate(
                    segment_id=segment.segment_id,
                    event_timestamp_ms=1,
                    state=state,
                    broker_id=self.number,
                    broker_leader_epoch=epoch,
                )
            )

    def _new(self, partition: TopicIdPartition, epoch: LeaderEpoch) -> RemoteLogSegmentMetadata:
        rng = self.world.rng
        start = rng.choice([0, 10])
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, uuid.UUID(int=rng.getrandbits(128))),
            start_offset=start,
            end_offset_inclusive=start + 9,
            max_timestamp_ms=1,
            broker_id=self.number,
            event_timestamp_ms=1,
            segment_size_in_bytes=1,
            segment_leader_epochs={0: start},
            broker_leader_epoch=epoch,
        )
