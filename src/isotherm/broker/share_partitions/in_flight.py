"""Records in flight, as ranges: no object per record. Pure.

An in-flight batch is what one fetch acquired together. Its runs are ranges of offsets that have
everything in common. A batch starts as one run; acknowledgements of parts of it split it.

    AVAILABLE ──acquired──> ACQUIRED ──accepted──> ACKNOWLEDGED
        └──────released, or the lock ends─┘  └──rejected, or delivered too often──> ARCHIVED

A change that has to be written first is a transition: the run shows its new state at once, keeps
the old one, and nothing else may change it until the transition ends.

Source: Kafka InFlightBatch, InFlightState, RecordState.
"""

from __future__ import annotations

import bisect
import enum
import operator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.types import Offset, TimestampMs

NO_MEMBER = ""

_first_offset = operator.attrgetter("first_offset")


class RecordState(enum.IntEnum):
    """The numbers are those of `__share_group_state`. ACQUIRED is never written."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


TERMINAL_STATES = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(slots=True, eq=False)
class Transition:
    """Changes that are to be written, in the order of their making. Compared by identity."""

    batches: list[StateBatch] = field(default_factory=list)

    def note(self, run: Run) -> None:
        """`run` has begun this transition."""
        self.batches.append(run.as_state_batch())


class Before(NamedTuple):
    """What a failed transition restores."""

    transition: Transition
    state: RecordState
    member_id: str


@dataclass(slots=True)
class Run:
    """Offsets that have everything in common.

    `lock_end_ms` is the end of the acquisition lock, also while a transition from ACQUIRED is
    written. `is_final`: archived because the records are gone, whatever a transition's outcome is.
    """

    first_offset: Offset
    last_offset_inclusive: Offset
    state: RecordState
    delivery_count: int
    member_id: str = NO_MEMBER
    lock_end_ms: TimestampMs | None = None
    before: Before | None = None
    is_final: bool = False

    def __len__(self) -> int:
        return self.last_offset_inclusive - self.first_offset + 1

    @property
    def is_acquirable(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.before is None

    @property
    def is_done(self) -> bool:
        """Whether its delivery is over for good, and written."""
        return self.state in TERMINAL_STATES and self.before is None

    def as_state_batch(self) -> StateBatch:
        """What is written of it."""
        return StateBatch(
            self.first_offset, self.last_offset_inclusive, self.delivery_count, int(self.state)
        )

    def acquire(self, member_id: str, lock_end_ms: TimestampMs) -> None:
        self.state = RecordState.ACQUIRED
        self.delivery_count += 1
        self.member_id = member_id
        self.lock_end_ms = lock_end_ms

    def settle(self, state: RecordState, delivery_count_max: int) -> None:
        """Give an acquired run its next state. What was delivered too often is not AVAILABLE."""
        if state is RecordState.AVAILABLE and self.delivery_count >= delivery_count_max:
            state = RecordState.ARCHIVED
        self.state = state
        self.member_id = NO_MEMBER

    def begin(self, transition: Transition, state: RecordState, delivery_count_max: int) -> None:
        """`settle`, in a transition."""
        self.before = Before(transition, self.state, self.member_id)
        self.settle(state, delivery_count_max)
        transition.note(self)

    def end(self, now_ms: TimestampMs, delivery_count_max: int, *, is_committed: bool) -> None:
        """End the run's transition. A lock that ended meanwhile is as if it ended now."""
        before, self.before = self.before, None
        assert before is not None
        if is_committed or self.is_final:
            self.lock_end_ms = None
            return
        self.state, self.member_id = before.state, before.member_id
        if self.lock_end_ms is not None and self.lock_end_ms <= now_ms:
            self.lock_end_ms = None
            self.settle(RecordState.AVAILABLE, delivery_count_max)

    def archive(self) -> None:
        """The records are gone, or are to be delivered to nobody."""
        self.is_final = True
        self.state = RecordState.ARCHIVED
        self.member_id = NO_MEMBER
        self.lock_end_ms = None

    def is_like(self, other: Run) -> bool:
        """Whether two neighbours can be one run."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.lock_end_ms == other.lock_end_ms
            and self.before == other.before
            and self.is_final == other.is_final
        )


@dataclass(slots=True)
class InFlightBatch:
    """`is_split`: parts of the batch have been treated apart. Kafka then has a state for each
    offset, and delivers such a batch more carefully."""

    first_offset: Offset
    last_offset_inclusive: Offset
    runs: list[Run] = field(default_factory=list)
    is_split: bool = False

    def __len__(self) -> int:
        return self.last_offset_inclusive - self.first_offset + 1

    @property
    def whole(self) -> Run:
        """The run of a batch that is not split."""
        (run,) = self.runs
        return run

    def is_within(self, first_offset: Offset, last_offset_inclusive: Offset) -> bool:
        return (
            self.first_offset >= first_offset
            and self.last_offset_inclusive <= last_offset_inclusive
        )

    def has_start_inside(self, start_offset: Offset) -> bool:
        """Whether the batch has records on both sides of a share partition's start."""
        return self.first_offset < start_offset <= self.last_offset_inclusive

    def runs_of(self, first_offset: Offset, last_offset_inclusive: Offset) -> list[Run]:
        """The runs of a range, which are cut at its ends. The caller may change them."""
        low = self.cut(first_offset)
        return self.runs[low : self.cut(last_offset_inclusive + 1)]

    def cut(self, offset: Offset) -> int:
        """Make a run begin at `offset`, if the batch has it. Returns the index of the first run
        that does not begin before."""
        index = bisect.bisect_left(self.runs, offset, key=_first_offset)
        if index:
            before = self.runs[index - 1]
            if offset <= before.last_offset_inclusive:
                self.runs.insert(index, replace(before, first_offset=offset))
                before.last_offset_inclusive = offset - 1
        return index

    def join(self) -> None:
        """Make neighbours that are alike one run."""
        joined: list[Run] = []
        for run in self.runs:
            if joined and joined[-1].is_like(run):
                joined[-1].last_offset_inclusive = run.last_offset_inclusive
            else:
                joined.append(run)
        self.runs = joined
