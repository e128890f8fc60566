"""A share partition under random histories, beside a model: a dictionary with an entry per record.

The model says what may happen to a record; the window decides how much is acquired at once. Crashes
load the window again from what was written.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import pytest

from isotherm.broker.coordinators.shares.state_batches import StateBatch, combined_batches
from isotherm.broker.share_partitions.acknowledgement import (
    Acknowledgement,
    Deliveries,
    acknowledge,
    end_transition,
    expire_locks,
    release,
)
from isotherm.broker.share_partitions.acquisition import Acquired, Acquisition, LogBatch, acquire
from isotherm.broker.share_partitions.in_flight import RecordState, Transition
from isotherm.broker.share_partitions.window import Window
from isotherm.errors import InvalidRecordStateError, InvalidRequestError

LOCK_MS = 100
LOCKS_MAX = 40
MEMBERS = "abc"
# By the number on the wire.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


@dataclass
class Record:
    """What the model knows of a record."""

    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    member: str = ""
    lock_end_ms: int = 0
    # What a write that is under way restores if it fails.
    written: Any = None
    # The log has lost it.
    is_gone: bool = False


class History:
    """A share partition, its model, and the state at the share coordinator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.delivery_count_max = self.rng.choice([2, 3, 5, 8])
        self.now_ms = 0
        self.model: dict[int, Record] = {}
        self.start_offset = 0
        self.stored: tuple[StateBatch, ...] = ()
        self.stored_start = 0
        self.window = Window.load(0, ())
        self.transitions: list[tuple[Transition, list[int]]] = []
        self.log = self._random_log()
        self.log_start_offset = 0
        self.accepted: set[int] = set()

    def _random_log(self) -> list[LogBatch]:
        batches, offset = [], 0
        while offset < 150:
            end = offset + self.rng.randrange(12)
            batches.append(LogBatch(offset, end))
            offset = end + 1
        return batches

    @property
    def deliveries(self) -> Deliveries:
        return Deliveries(self.delivery_count_max, self.now_ms + LOCK_MS)

    def record(self, offset: int) -> Record:
        return self.model.setdefault(offset, Record())

    # ---- steps

    def fetch(self) -> None:
        member = self.rng.choice(MEMBERS)
        if not self.window.can_acquire(LOCKS_MAX):
            return
        fetch_offset = self.window.next_fetch_offset()
        read = [each for each in self.log if each.last_offset_inclusive >= fetch_offset]
        read = read[: self.rng.randrange(1, 6)]
        asked = Acquisition(
            member,
            record_count_max=self.rng.choice([1, 3, 10, 500]),
            batch_size=self.rng.choice([1, 5, 500]),
            is_record_limit=self.rng.random() < 0.3,
            lock_end_ms=self.now_ms + LOCK_MS,
            delivery_count_max=self.delivery_count_max,
            record_locks_max=LOCKS_MAX,
        )
        in_flight = self._in_flight()
        acquired = acquire(self.window, asked, fetch_offset, read)
        gone = {
            offset
            for run in self.window.runs()
            if run.is_final
            for offset in range(run.first_offset, run.last_offset_inclusive + 1)
        }
        for offset in range(fetch_offset, read[0].base_offset if read else fetch_offset):
            record = self.record(offset)
            if offset in in_flight and record.state is RecordState.AVAILABLE:
                # The log was read for it, and no longer has it.
                is_gone = offset in gone or offset not in self._in_flight()
                assert is_gone or not acquired
                if is_gone:
                    record.state, record.is_gone = RecordState.ARCHIVED, True
        self._note_acquired(asked, acquired)
        if asked.is_record_limit:
            assert self._count(acquired) <= asked.record_count_max

    @staticmethod
    def _count(acquired: list[Acquired]) -> int:
        return sum(last - first + 1 for first, last, _ in acquired)

    def _note_acquired(self, asked: Acquisition, acquired: list[Acquired]) -> None:
        offsets = [
            (offset, count) for first, last, count in acquired for offset in range(first, last + 1)
        ]
        assert len({offset for offset, _ in offsets}) == len(offsets)
        for offset, count in offsets:
            record = self.record(offset)
            assert offset >= self.start_offset
            assert record.state is RecordState.AVAILABLE
            assert record.written is None
            assert count == record.deliveries + 1 <= self.delivery_count_max
            assert offset not in self.accepted, "an accepted record was delivered again"
            record.state, record.member = RecordState.ACQUIRED, asked.member_id
            record.deliveries = count
            record.lock_end_ms = asked.lock_end_ms
            if count == self.delivery_count_max > 2:
                last_alone = [each for each, c in offsets if c == count]
                assert len(last_alone) == 1 or self.delivery_count_max == 1

    def acknowledge(self) -> None:
        member = self.rng.choice(MEMBERS)
        given = [
            offset
            for offset, record in self.model.items()
            if record.state is RecordState.ACQUIRED and record.member == member
        ]
        if given and self.rng.random() < 0.9:
            first = self.rng.choice(given)
        else:
            first = self.rng.randrange(60)
        last = first + self.rng.randrange(6)
        while self.rng.random() < 0.8 and last not in given and last > first:
            last -= 1
        types = [self.rng.choice([ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW])]
        if self.rng.random() < 0.5:
            types = [
                self.rng.choice([ACCEPT, RELEASE, REJECT, GAP, RENEW])
                for _ in range(first, last + 1)
            ]
        asked = Acknowledgement(first, last, types)
        wanted = {
            offset: types[offset - first if len(types) > 1 else 0]
            for offset in range(first, last + 1)
            # Offsets that the log had lost when it was read are passed over.
            if offset >= self.start_offset and offset in self._in_flight()
        }
        is_whole = {first, last} <= self._in_flight()
        is_mine = all(
            (record := self.model.get(offset)) is not None
            and record.state is RecordState.ACQUIRED
            and record.member == member
            for offset in wanted
        )
        try:
            transition = acknowledge(self.window, member, [asked], self.deliveries, self.now_ms)
        except (InvalidRecordStateError, InvalidRequestError):
            assert not (is_mine and is_whole)
            # Locks that were renewed before the refused record stay renewed.
            for offset, kind in wanted.items():
                record = self.model.get(offset)
                if kind == RENEW and record is not None and record.member == member:
                    record.lock_end_ms = self._lock_end(offset) or record.lock_end_ms
            return
        assert is_mine
        self._begin(transition, wanted)

    def _in_flight(self) -> set[int]:
        return {
            offset
            for run in self.window.runs()
            for offset in range(run.first_offset, run.last_offset_inclusive + 1)
        }

    def _lock_end(self, offset: int) -> int | None:
        for run in self.window.runs():
            if run.first_offset <= offset <= run.last_offset_inclusive:
                return run.lock_end_ms
        return None

    def _begin(self, transition: Transition, wanted: dict[int, int]) -> None:
        changed = []
        for offset, kind in wanted.items():
            record = self.record(offset)
            if kind == RENEW:
                record.lock_end_ms = self.now_ms + LOCK_MS
                continue
            changed.append(offset)
            record.written = (record.state, record.member)
            record.state = self._settled(record, kind)
            record.member = ""
        in_batches = {
            offset: (batch.delivery_state, batch.delivery_count)
            for batch in transition.batches
            for offset in range(batch.first_offset, batch.last_offset_inclusive + 1)
        }
        assert in_batches == {
            offset: (self.model[offset].state, self.model[offset].deliveries) for offset in changed
        }
        self.transitions.append((transition, changed))

    def _settled(self, record: Record, kind: int) -> RecordState:
        if kind == RELEASE and record.deliveries < self.delivery_count_max:
            return RecordState.AVAILABLE
        return RecordState.ACKNOWLEDGED if kind == ACCEPT else RecordState.ARCHIVED

    def leave(self) -> None:
        member = self.rng.choice(MEMBERS)
        transition = release(self.window, member, self.deliveries)
        wanted = {
            offset: RELEASE if offset >= self.start_offset else REJECT
            for offset, record in self.model.items()
            if record.state is RecordState.ACQUIRED and record.member == member
        }
        self._begin(transition, wanted)

    def finish_write(self) -> None:
        """A write of a transition succeeds or fails. Writes end in the order of their beginning."""
        if not self.transitions:
            return
        transition, changed = self.transitions.pop(0)
        is_committed = self.rng.random() < 0.8
        if is_committed:
            self._store(transition.batches)
        end_transition(
            self.window, transition, self.deliveries, self.now_ms, is_committed=is_committed
        )
        for offset in changed:
            record = self.record(offset)
            before, record.written = record.written, None
            if is_committed:
                if record.state is RecordState.ACKNOWLEDGED:
                    self.accepted.add(offset)
                continue
            if record.is_gone:
                continue
            record.state, record.member = before
            if record.lock_end_ms <= self.now_ms:
                kind = RELEASE if offset >= self.start_offset else REJECT
                record.state, record.member = self._settled(record, kind), ""

    def _store(self, batches: list[StateBatch]) -> None:
        self.stored_start = max(self.stored_start, self.window.start_offset)
        self.stored = combined_batches(self.stored, batches, self.stored_start)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 30, LOCK_MS])
        due = self.window.next_lock_end_ms
        late = {
            offset
            for offset, record in self.model.items()
            if record.state is RecordState.ACQUIRED and record.lock_end_ms <= self.now_ms
        }
        if due is None or due > self.now_ms:
            assert not late, "a lock ends that no timer is set for"
            return
        batches = expire_locks(self.window, self.deliveries, self.now_ms)
        written = {
            offset
            for batch in batches
            for offset in range(batch.first_offset, batch.last_offset_inclusive + 1)
        }
        assert written == late
        for offset in late:
            record = self.model[offset]
            kind = RELEASE if offset >= self.start_offset else REJECT
            record.state, record.member = self._settled(record, kind), ""
        if self.rng.random() < 0.8:
            self._store(list(batches))
        self.window.advance_start()
        assert self.window.next_lock_end_ms is None or self.window.next_lock_end_ms > self.now_ms

    def compact(self) -> None:
        """The log loses a batch in its middle."""
        if self.rng.random() < 0.5 and len(self.log) > 5:
            del self.log[self.rng.randrange(len(self.log) - 1)]

    def lose_records(self) -> None:
        """The log's start moves. What a member has acquired stays with it."""
        if self.rng.random() < 0.7:
            return
        self.log_start_offset = min(
            self.window.start_offset + self.rng.randrange(10),
            self.log[-1].last_offset_inclusive + 1,
        )
        self._follow_log_start()

    def _follow_log_start(self) -> None:
        self.window.move_start(self.log_start_offset)
        for offset in range(self.start_offset, self.log_start_offset):
            record = self.record(offset)
            if record.state is RecordState.AVAILABLE:
                record.state, record.is_gone = RecordState.ARCHIVED, True
        self.start_offset = max(self.start_offset, self.log_start_offset)
        assert self.window.start_offset >= self.log_start_offset

    def crash(self) -> None:
        """Another leader loads what was written. What was not is delivered again."""
        if self.rng.random() < 0.7:
            return
        self.transitions.clear()
        self.window = Window.load(self.stored_start, self.stored)
        loaded = {
            offset: batch
            for batch in self.stored
            for offset in range(batch.first_offset, batch.last_offset_inclusive + 1)
        }
        self.start_offset = self.window.start_offset
        for offset, record in self.model.items():
            batch = loaded.get(offset)
            record.written, record.member = None, ""
            if batch is not None:
                record.state = RecordState(batch.delivery_state)
                record.deliveries = batch.delivery_count
            elif offset >= self.stored_start:
                record.state, record.deliveries = RecordState.AVAILABLE, 0
            elif record.state is not RecordState.ACKNOWLEDGED:
                record.state = RecordState.ARCHIVED
            record.is_gone = False
        self._follow_log_start()

    # ---- invariants

    def check(self) -> None:
        window = self.window
        # The start moves only over records that are done.
        for offset in range(self.start_offset, window.start_offset):
            record = self.record(offset)
            assert record.written is None
            if any(base <= offset <= last for base, last in self.log):
                assert record.state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
        assert window.start_offset >= self.start_offset
        self.start_offset = window.start_offset
        shown = {
            offset: run
            for run in window.runs()
            for offset in range(run.first_offset, run.last_offset_inclusive + 1)
            if offset >= window.start_offset
        }
        for offset, run in shown.items():
            record = self.record(offset)
            assert (run.state, run.delivery_count, run.member_id) == (
                record.state,
                record.deliveries,
                record.member,
            ), offset
            assert (run.before is not None) == (record.written is not None)
        in_flight = {
            offset
            for offset, record in self.model.items()
            if offset >= window.start_offset and record.deliveries
        }
        assert in_flight <= shown.keys()
        done = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
        assert window.delivery_complete_count == sum(
            self.record(offset).state in done for offset in shown
        )
        for batch in window.batches:
            assert batch.runs[0].first_offset == batch.first_offset
            assert batch.runs[-1].last_offset_inclusive == batch.last_offset_inclusive
            for before, run in itertools.pairwise(batch.runs):
                assert before.last_offset_inclusive + 1 == run.first_offset
                assert not before.is_like(run)
            assert batch.is_split or len(batch.runs) == 1

    def finish(self) -> None:
        """Consumers that accept everything, until nothing is left."""
        for _ in range(2000):
            while self.transitions:
                self.finish_write()
            self.now_ms += LOCK_MS
            if self.window.next_lock_end_ms is not None:
                expire_locks(self.window, self.deliveries, self.now_ms)
                self.window.advance_start()
            fetch_offset = self.window.next_fetch_offset()
            read = [each for each in self.log if each.last_offset_inclusive >= fetch_offset]
            if not read:
                break
            asked = Acquisition(
                "z", 500, 500, False, self.now_ms + LOCK_MS, self.delivery_count_max, LOCKS_MAX
            )
            acquired = acquire(self.window, asked, fetch_offset, read)
            if not acquired:
                assert self.window.next_fetch_offset() > fetch_offset, "records are stuck"
                continue
            given = [Acknowledgement(first, last, [ACCEPT]) for first, last, _ in acquired]
            transition = acknowledge(self.window, "z", given, self.deliveries, self.now_ms)
            end_transition(self.window, transition, self.deliveries, self.now_ms, is_committed=True)
        assert self.window.start_offset == self.log[-1].last_offset_inclusive + 1
        assert self.window.batches == []


@pytest.mark.parametrize("seed", range(60))
def test_random_histories(seed: int) -> None:
    history = History(seed)
    steps = [
        *[history.fetch] * 5,
        *[history.acknowledge] * 5,
        *[history.finish_write] * 4,
        *[history.pass_time] * 2,
        history.leave,
        history.crash,
        history.lose_records,
        history.compact,
    ]
    for _ in range(250):
        history.rng.choice(steps)()
        history.check()
    history.finish()
