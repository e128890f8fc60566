"""The state of one share partition at its coordinator, and what may be written to it. Pure.

A decision is a record. `replayed` applies it, after its append and when a log is loaded, so that
both have the same state.

- `leader_epoch` and `state_epoch` of the state are those of its records. The highest epochs that
  its records have had fence writers; they never fall, also if the state begins anew.
- A write does not raise the leader epoch, only a read does: a new leader reads before it writes.

Source: Kafka ShareCoordinatorShard, ShareGroupOffset.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.broker.coordinators.shares.share_state_records import (
    UNKNOWN_COUNT,
    ShareSnapshot,
    ShareUpdate,
)
from isotherm.broker.coordinators.shares.state_batches import (
    NO_START_OFFSET,
    StateBatch,
    combined_batches,
)
from isotherm.errors import FencedLeaderEpochError, FencedStateEpochError, InvalidRequestError
from isotherm.types import Offset, TimestampMs

NO_EPOCH = -1
# A leader has at most as many batches as records in flight, of which
# group.share.max.partition.max.record.locks allows 10,000. More would hold up the event loop.
BATCHES_PER_WRITE_MAX = 10_000
# Of a state and a write to it.
BATCHES_MAX = 2 * BATCHES_PER_WRITE_MAX


class StateWrite(NamedTuple):
    """What a partition's leader writes. NO_EPOCH leaves an epoch unchecked, and NO_START_OFFSET
    leaves the start offset."""

    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class ShareState(NamedTuple):
    """`update_count` counts the updates since a snapshot that ended a full run of them."""

    snapshot: ShareSnapshot
    leader_epoch_max: int
    state_epoch_max: int
    update_count: int = 0


def replayed(
    state: ShareState | None, value: ShareSnapshot | ShareUpdate, updates_per_snapshot: int
) -> ShareState:
    """The state after a record of it."""
    if isinstance(value, ShareUpdate):
        return _with_update(state, value)
    if state is None:
        return ShareState(value, value.leader_epoch, value.state_epoch)
    is_full = state.update_count >= updates_per_snapshot
    return ShareState(
        value,
        max(state.leader_epoch_max, value.leader_epoch),
        max(state.state_epoch_max, value.state_epoch),
        0 if is_full else state.update_count,
    )


def _with_update(state: ShareState | None, update: ShareUpdate) -> ShareState:
    if state is None:
        # The log begins behind the snapshot.
        begun = ShareSnapshot(
            update.snapshot_epoch,
            0,
            update.leader_epoch,
            update.start_offset,
            update.delivery_complete_count,
            update.batches,
            0,
            0,
        )
        return ShareState(begun, update.leader_epoch, NO_EPOCH, 1)
    current = state.snapshot
    start_offset = _or_current(update.start_offset, current.start_offset)
    merged = ShareSnapshot(
        current.snapshot_epoch,
        current.state_epoch,
        _or_current(update.leader_epoch, current.leader_epoch),
        start_offset,
        update.delivery_complete_count,
        combined_batches(current.batches, update.batches, start_offset),
        current.create_timestamp_ms,
        current.write_timestamp_ms,
    )
    return ShareState(
        merged,
        max(state.leader_epoch_max, update.leader_epoch),
        state.state_epoch_max,
        state.update_count + 1,
    )


def _or_current(value: int, current: int) -> int:
    return current if value == -1 else value


def initialized(
    state: ShareState | None, state_epoch: int, start_offset: Offset, now_ms: TimestampMs
) -> ShareSnapshot:
    """The record that begins a share partition's state, or begins it anew.

    Raises FencedStateEpochError.
    """
    if state is not None:
        _check_state_epoch(state, state_epoch)
    # Before its first start offset, a partition has no lag.
    count = UNKNOWN_COUNT if start_offset == NO_START_OFFSET else 0
    snapshot_epoch = 0 if state is None else state.snapshot.snapshot_epoch + 1
    return ShareSnapshot(snapshot_epoch, state_epoch, 0, start_offset, count, (), now_ms, now_ms)


def written(
    state: ShareState | None, write: StateWrite, now_ms: TimestampMs, updates_per_snapshot: int
) -> ShareSnapshot | ShareUpdate:
    """The record of a write: an update, or after `updates_per_snapshot` of them a snapshot.

    Raises InvalidRequestError without a state and for too many batches, FencedLeaderEpochError and
    FencedStateEpochError.
    """
    state = _present(state)
    _check_leader_epoch(state, write.leader_epoch)
    _check_state_epoch(state, write.state_epoch)
    count = len(write.batches)
    total = count + len(state.snapshot.batches)
    if count > BATCHES_PER_WRITE_MAX or total > BATCHES_MAX:
        raise InvalidRequestError(
            f"a share partition's state has too many batches written={count}"
            f" max={BATCHES_PER_WRITE_MAX} total={total} max_total={BATCHES_MAX}"
        )
    return _record(state, write, state.snapshot.leader_epoch, now_ms, updates_per_snapshot)


def read_by_leader(
    state: ShareState | None, leader_epoch: int, now_ms: TimestampMs, updates_per_snapshot: int
) -> tuple[ShareSnapshot, ShareSnapshot | ShareUpdate | None]:
    """The state, and the record that fences the leaders of older epochs; None if they are fenced.

    Raises InvalidRequestError without a state, and FencedLeaderEpochError.
    """
    state = _present(state)
    _check_leader_epoch(state, leader_epoch)
    current = state.snapshot
    if leader_epoch in (NO_EPOCH, state.leader_epoch_max):
        return current, None
    unchanged = StateWrite(
        current.state_epoch,
        leader_epoch,
        current.start_offset,
        current.delivery_complete_count,
        (),
    )
    return current, _record(state, unchanged, leader_epoch, now_ms, updates_per_snapshot)


def _record(
    state: ShareState,
    write: StateWrite,
    leader_epoch: int,
    now_ms: TimestampMs,
    updates_per_snapshot: int,
) -> ShareSnapshot | ShareUpdate:
    current = state.snapshot
    if state.update_count < updates_per_snapshot:
        return ShareUpdate(
            current.snapshot_epoch,
            leader_epoch,
            write.start_offset,
            write.delivery_complete_count,
            combined_batches((), write.batches, write.start_offset),
        )
    start_offset = _or_current(write.start_offset, current.start_offset)
    return ShareSnapshot(
        current.snapshot_epoch + 1,
        current.state_epoch,
        leader_epoch,
        start_offset,
        write.delivery_complete_count,
        combined_batches(current.batches, write.batches, start_offset),
        now_ms,
        now_ms,
    )


def rewritten(state: ShareState, now_ms: TimestampMs) -> ShareSnapshot:
    """The state as a snapshot at the log's end, so that the log before it can be pruned."""
    current = state.snapshot
    return current._replace(snapshot_epoch=current.snapshot_epoch + 1, write_timestamp_ms=now_ms)


def is_rewritten(state: ShareState) -> bool:
    """Whether the last snapshot was made by `rewritten`."""
    return state.snapshot.create_timestamp_ms != state.snapshot.write_timestamp_ms


def _present(state: ShareState | None) -> ShareState:
    if state is None:
        raise InvalidRequestError("the share partition's state has not been initialized")
    return state


def _check_leader_epoch(state: ShareState, leader_epoch: int) -> None:
    if leader_epoch != NO_EPOCH and leader_epoch < state.leader_epoch_max:
        raise FencedLeaderEpochError(
            "the leader epoch is older than one that has read the share partition's state"
            f" leader_epoch={leader_epoch} current={state.leader_epoch_max}"
        )


def _check_state_epoch(state: ShareState, state_epoch: int) -> None:
    if state_epoch != NO_EPOCH and state_epoch < state.state_epoch_max:
        raise FencedStateEpochError(
            "the share partition's state has begun anew since"
            f" state_epoch={state_epoch} current={state.state_epoch_max}"
        )
