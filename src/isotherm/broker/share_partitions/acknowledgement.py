"""What members say of the records that they have acquired, and what happens if they say nothing.
Pure.

    acknowledge, release ──> a transition ──write its batches──> end_transition(is_committed)
    expire_locks ──> batches to write; the records are available at once

Source: Kafka SharePartition, AcknowledgeType.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.broker.share_partitions.in_flight import (
    InFlightBatch,
    RecordState,
    Run,
    Transition,
)
from isotherm.broker.share_partitions.window import Window
from isotherm.errors import InvalidRecordStateError, InvalidRequestError
from isotherm.types import Offset, TimestampMs


class AcknowledgeType(enum.IntEnum):
    """The numbers are the wire's. A GAP is an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


_TYPES = frozenset(int(acknowledge_type) for acknowledge_type in AcknowledgeType)
_STATES = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


class Acknowledgement(NamedTuple):
    """`types` has one for the whole range, or one for each offset."""

    first_offset: Offset
    last_offset_inclusive: Offset
    types: Sequence[int]


class Deliveries(NamedTuple):
    """The settings of a group. `lock_end_ms` is that of a lock that is renewed now; None if locks
    are not renewed."""

    delivery_count_max: int
    lock_end_ms: TimestampMs | None


def acknowledge(
    window: Window,
    member_id: str,
    acknowledgements: Sequence[Acknowledgement],
    deliveries: Deliveries,
    now_ms: TimestampMs,
) -> Transition:
    """Begin the transition of acknowledged records.

    Raises InvalidRecordStateError for records that the member has not acquired or that change
    already, and InvalidRequestError for a type or an offset that cannot be. Then only locks may
    have changed, which were renewed before.
    """
    transition = Transition()
    try:
        for acknowledgement in acknowledgements:
            _check_types(acknowledgement)
            if acknowledgement.last_offset_inclusive < window.start_offset:
                continue
            for batch in _batches_of(window, acknowledgement):
                if batch.last_offset_inclusive < window.start_offset:
                    continue
                try:
                    _acknowledge_batch(
                        window, member_id, acknowledgement, batch, transition, deliveries
                    )
                finally:
                    batch.join()
    except (InvalidRecordStateError, InvalidRequestError):
        end_transition(window, transition, deliveries, now_ms, is_committed=False)
        raise
    return transition


def _check_types(acknowledgement: Acknowledgement) -> None:
    for number in acknowledgement.types:
        if number not in _TYPES:
            raise InvalidRequestError(
                f"no such acknowledge type type={number}"
                f" first_offset={acknowledgement.first_offset}"
            )


def _batches_of(window: Window, acknowledgement: Acknowledgement) -> list[InFlightBatch]:
    first, last, _ = acknowledgement
    place = f"first_offset={first} last_offset={last}"
    floor = window.floor(first)
    if floor is None and first < window.start_offset <= last:
        floor = window.floor(window.start_offset)
    if floor is None:
        raise InvalidRecordStateError(f"these records are not in flight {place}")
    batches = window.between(floor.first_offset, last)
    end = batches[-1].last_offset_inclusive
    if end < first or last > end:
        raise InvalidRequestError(f"some of these records were never acquired {place}")
    return batches


def _acknowledge_batch(
    window: Window,
    member_id: str,
    acknowledgement: Acknowledgement,
    batch: InFlightBatch,
    transition: Transition,
    deliveries: Deliveries,
) -> None:
    first, last, types = acknowledgement
    if not batch.is_split:
        _check_acquired(batch.whole, member_id)
        if (
            len(types) > 1
            or not batch.is_within(first, last)
            or batch.has_start_inside(window.start_offset)
        ):
            batch.is_split = True
    begin = max(first, batch.first_offset, window.start_offset)
    end = min(last, batch.last_offset_inclusive)
    for part_first, part_last, kind in _typed_ranges(acknowledgement, begin, end):
        for run in batch.runs_of(part_first, part_last):
            _check_acquired(run, member_id)
            if kind is not AcknowledgeType.RENEW:
                run.begin(transition, _STATES[kind], deliveries.delivery_count_max)
            elif deliveries.lock_end_ms is None:
                raise InvalidRecordStateError("the group does not renew acquisition locks")
            else:
                run.lock_end_ms = deliveries.lock_end_ms
                window.note_lock(deliveries.lock_end_ms)


def _typed_ranges(
    acknowledgement: Acknowledgement, begin: Offset, end: Offset
) -> Iterator[tuple[Offset, Offset, AcknowledgeType]]:
    """Ranges between `begin` and `end` that have one type."""
    first, _, types = acknowledgement
    if len(types) == 1:
        yield begin, end, AcknowledgeType(types[0])
        return
    for kind, group in itertools.groupby(types[begin - first : end - first + 1]):
        count = len(list(group))
        yield begin, begin + count - 1, AcknowledgeType(kind)
        begin += count


def _check_acquired(run: Run, member_id: str) -> None:
    place = f"first_offset={run.first_offset} last_offset={run.last_offset_inclusive}"
    if run.before is not None:
        raise InvalidRecordStateError(f"these records are being acknowledged already {place}")
    if run.state is not RecordState.ACQUIRED:
        raise InvalidRecordStateError(f"these records are not acquired {place}")
    if run.member_id != member_id:
        raise InvalidRecordStateError(f"another member has acquired these records {place}")


def release(window: Window, member_id: str, deliveries: Deliveries) -> Transition:
    """Begin the release of everything that a member has acquired: it has left."""
    transition = Transition()
    for batch in window.batches:
        if all(run.member_id != member_id for run in batch.runs):
            continue
        for run in _acquired_runs(window, batch):
            if run.member_id == member_id:
                state = _released_state(window, run)
                run.begin(transition, state, deliveries.delivery_count_max)
        batch.join()
    return transition


def expire_locks(
    window: Window, deliveries: Deliveries, now_ms: TimestampMs
) -> Sequence[StateBatch]:
    """Make records available whose locks have ended; returns what is to be written of them.

    When that is written, or not, call `Window.advance_start`.
    """
    written: list[StateBatch] = []
    next_end: TimestampMs | None = None
    for batch in window.batches:
        ends = [run.lock_end_ms for run in batch.runs if run.lock_end_ms is not None]
        if ends and min(ends) <= now_ms:
            for run in _acquired_runs(window, batch):
                if run.lock_end_ms is not None and run.lock_end_ms <= now_ms:
                    run.settle(_released_state(window, run), deliveries.delivery_count_max)
                    run.lock_end_ms = None
                    written.append(run.as_state_batch())
                    window.note_available()
            batch.join()
            # Locks whose time ran out in a transition end with it.
            ends = [end for end in ends if end > now_ms]
        if ends:
            next_end = min(ends) if next_end is None else min(next_end, *ends)
    window.next_lock_end_ms = next_end
    return written


def _acquired_runs(window: Window, batch: InFlightBatch) -> Iterator[Run]:
    """The acquired runs of a batch, cut at the window's start."""
    _cut_at_start(window, batch)
    for run in batch.runs:
        if run.state is RecordState.ACQUIRED:
            yield run


def _cut_at_start(window: Window, batch: InFlightBatch) -> None:
    if batch.has_start_inside(window.start_offset):
        batch.is_split = True
        batch.cut(window.start_offset)


def _released_state(window: Window, run: Run) -> RecordState:
    is_gone = run.last_offset_inclusive < window.start_offset
    return RecordState.ARCHIVED if is_gone else RecordState.AVAILABLE


def end_transition(
    window: Window,
    transition: Transition,
    deliveries: Deliveries,
    now_ms: TimestampMs,
    *,
    is_committed: bool,
) -> bool:
    """End a transition whose batches were written, or could not be. Returns whether the window's
    start may have moved."""
    if not transition.batches:
        return False
    first = min(batch.first_offset for batch in transition.batches)
    last = max(batch.last_offset_inclusive for batch in transition.batches)
    floor = window.floor(first)
    begin = first if floor is None else floor.first_offset
    for batch in window.between(begin, last):
        _cut_at_start(window, batch)
        for run in batch.runs:
            if run.before is None or run.before.transition is not transition:
                continue
            run.end(now_ms, deliveries.delivery_count_max, is_committed=is_committed)
            if run.state is RecordState.AVAILABLE:
                if run.last_offset_inclusive < window.start_offset:
                    # The log has lost the records while a member had them.
                    run.archive()
                window.note_available()
        batch.join()
    # Also after a failure: records whose locks ended meanwhile may have been delivered too often.
    # In Kafka they then hold the window until another write.
    return window.advance_start()
