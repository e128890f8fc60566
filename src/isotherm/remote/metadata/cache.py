"""What is known of the remote segments of one partition, folded from its metadata events.

Invariants, per leader epoch:
- a segment that is not yet DELETE_SEGMENT_FINISHED is in exactly one of the two: the finished
  segments by start offset (only these answer look-ups), or the unreferenced ones;
- `highest_log_offset` never falls, not even when segments are deleted.

Offsets here are those of the epoch *within* a segment: a segment that spans two epochs is entered
in both, each time with the part that belongs to that epoch.

The rules are those of Kafka's RemoteLogMetadataCache and RemoteLogLeaderEpochState, except where
Kafka loses sight of offsets that a live segment holds: docs/decisions/0011.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from isotherm.clock import Clock
from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.metadata.lifecycle import is_valid_transition
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

_logger = logging.getLogger(__name__)


class EpochSpan(NamedTuple):
    """The part of a segment that belongs to one leader epoch; the end is inclusive."""

    epoch: LeaderEpoch
    start_offset: Offset
    end_offset_inclusive: Offset


def epoch_spans(metadata: RemoteLogSegmentMetadata) -> Iterator[EpochSpan]:
    """The segment cut at its epochs' borders, ascending."""
    starts = list(metadata.segment_leader_epochs.items())
    for index, (epoch, start) in enumerate(starts):
        last = index + 1 == len(starts)
        end = metadata.end_offset_inclusive if last else starts[index + 1][1] - 1
        yield EpochSpan(epoch, start, end)


class RemoteLogLeaderEpochState:
    """The segments of one leader epoch. Not thread-safe: the cache locks.

    The finished segments lie in parallel lists, ordered by start offset and, where starts are
    equal, with the longer one first. `_reach[i]` is the highest end among the first i + 1, which
    finds a segment around an offset in O(log n) though segments may lie inside one another.
    """

    __slots__ = ("_ends", "_ids", "_reach", "_starts", "highest_log_offset", "unreferenced")

    def __init__(self) -> None:
        self._starts: list[Offset] = []
        self._ends: list[Offset] = []
        self._ids: list[RemoteLogSegmentId] = []
        self._reach: list[Offset] = []
        self.unreferenced: set[RemoteLogSegmentId] = set()
        self.highest_log_offset: Offset | None = None

    def segment_ids(self) -> Iterator[RemoteLogSegmentId]:
        yield from self._ids
        yield from self.unreferenced

    def referenced(self) -> list[tuple[Offset, RemoteLogSegmentId]]:
        """The segments that answer look-ups, ascending by start offset."""
        return list(zip(self._starts, self._ids, strict=True))

    def find(self, offset: Offset) -> RemoteLogSegmentId | None:
        """The segment that holds `offset`: the one that starts nearest below it, if it reaches
        so far, else the first one that does."""
        floor = bisect_right(self._starts, offset) - 1
        if floor < 0:
            return None
        if self._ends[floor] >= offset:
            return self._ids[floor]
        around = bisect_left(self._reach, offset)
        return self._ids[around] if around <= floor else None

    def add_unreferenced(self, segment_id: RemoteLogSegmentId) -> None:
        self.unreferenced.add(segment_id)

    def finish(self, segment_id: RemoteLogSegmentId, start: Offset, end: Offset) -> None:
        """Enter a finished segment; those at the tail that it covers become unreferenced."""
        self._remove(segment_id, start)
        while (
            self._starts
            and self._starts[-1] >= start
            and (self.highest_log_offset is None or self.highest_log_offset <= end)
        ):
            self._evict(len(self._starts) - 1)
        self._evict_covered_at(start, end)
        self._insert(segment_id, start, end)
        self.unreferenced.discard(segment_id)
        self.highest_log_offset = max(end, self.highest_log_offset or end)

    def start_deletion(self, segment_id: RemoteLogSegmentId, start: Offset) -> None:
        self._remove(segment_id, start)
        self.unreferenced.add(segment_id)

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        self.unreferenced.discard(segment_id)

    def _insert(self, segment_id: RemoteLogSegmentId, start: Offset, end: Offset) -> None:
        index = bisect_right(self._starts, start)
        while index > 0 and self._starts[index - 1] == start and self._ends[index - 1] < end:
            index -= 1
        self._starts.insert(index, start)
        self._ends.insert(index, end)
        self._ids.insert(index, segment_id)
        self._reach.insert(index, end)
        self._restore_reach(index)

    def _evict_covered_at(self, start: Offset, end: Offset) -> None:
        """Kafka keeps one segment per start offset: an equal or shorter one makes room."""
        index = bisect_left(self._starts, start)
        while index < len(self._starts) and self._starts[index] == start:
            if self._ends[index] <= end:
                self._evict(index)
            else:
                index += 1

    def _evict(self, index: int) -> None:
        self.unreferenced.add(self._ids[index])
        self._delete_at(index)

    def _remove(self, segment_id: RemoteLogSegmentId, start: Offset) -> None:
        index = bisect_left(self._starts, start)
        while index < len(self._starts) and self._starts[index] == start:
            if self._ids[index] == segment_id:
                self._delete_at(index)
                return
            index += 1

    def _delete_at(self, index: int) -> None:
        for column in (self._starts, self._ends, self._ids, self._reach):
            del column[index]
        self._restore_reach(index)

    def _restore_reach(self, index: int) -> None:
        """Make `_reach` right from `index` on; stops where a value was right already."""
        first = index
        reach = self._reach[index - 1] if index else -1
        while index < len(self._ends):
            reach = max(reach, self._ends[index])
            if index > first and self._reach[index] == reach:
                return
            self._reach[index] = reach
            index += 1


class RemoteLogMetadataCache:
    """Every live segment of one partition, by id and by leader epoch. Thread-safe.

    `apply_add` and `apply_update` drop a transition that lifecycle.py forbids with an error in
    the log, as Kafka does: the event is stored, so refusing it would stop every later one.
    """

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self._lock = threading.Lock()
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[LeaderEpoch, RemoteLogLeaderEpochState] = {}
        self._initialized = threading.Event()

    @property
    def is_initialized(self) -> bool:
        return self._initialized.is_set()

    def mark_initialized(self) -> None:
        """Every event up to the end seen at the partition's assignment has been applied."""
        self._initialized.set()

    def await_initialized(self, clock: Clock, timeout_s: float) -> bool:
        return clock.wait(self._initialized, timeout_s)

    def apply_add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """A copy has started. ValueError unless the state is COPY_SEGMENT_STARTED."""
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                "a segment is added in state COPY_SEGMENT_STARTED only"
                f" segment={metadata.segment_id} state={metadata.state.name}"
            )
        with self._lock:
            if not self._may_follow(metadata.segment_id, metadata.state):
                return
            known = self._segments.get(metadata.segment_id)
            if known is not None:
                # A repeated start may name other epochs: no epoch keeps an id that it cannot list.
                for epoch in known.segment_leader_epochs:
                    self._epoch_state(epoch).forget(known.segment_id)
            for epoch in metadata.segment_leader_epochs:
                self._epoch_state(epoch).add_unreferenced(metadata.segment_id)
            self._segments[metadata.segment_id] = metadata

    def apply_update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """A later state of a known segment.

        Of a segment that is not known: ignored while the partition is still being read (its
        events may begin in mid-life), RemoteResourceNotFoundError afterwards. ValueError for
        COPY_SEGMENT_STARTED, which only `apply_add` brings.
        """
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                f"an update does not go to COPY_SEGMENT_STARTED segment={update.segment_id}"
            )
        with self._lock:
            known = self._segments.get(update.segment_id)
            if known is None:
                if self.is_initialized:
                    raise RemoteResourceNotFoundError(
                        "update of a segment that is not known"
                        f" segment={update.segment_id} state={update.state.name}"
                    )
                return
            if self._may_follow(update.segment_id, update.state):
                self._advance(known.updated(update))

    def find(self, leader_epoch: LeaderEpoch, offset: Offset) -> RemoteLogSegmentMetadata | None:
        """The finished segment whose part of `leader_epoch` holds `offset`. O(log n)."""
        with self._lock:
            state = self._epochs.get(leader_epoch)
            found = state.find(offset) if state is not None else None
            return self._segments[found] if found is not None else None

    def find_with_txn_index(
        self, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment of the epoch, from the one that holds `offset` on without a gap,
        that has a transaction index."""
        metadata = self.find(leader_epoch, offset)
        while metadata is not None and metadata.txn_index_empty:
            metadata = self.find(leader_epoch, metadata.end_offset_inclusive + 1)
        return metadata

    def highest_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> Offset | None:
        """Highest offset ever finished in the epoch; stays when its segments are deleted."""
        with self._lock:
            state = self._epochs.get(leader_epoch)
            return state.highest_log_offset if state is not None else None

    def segments(self, leader_epoch: LeaderEpoch | None = None) -> list[RemoteLogSegmentMetadata]:
        """Segments in every state but DELETE_SEGMENT_FINISHED, ordered by start offset."""
        with self._lock:
            if leader_epoch is None:
                listed = list(self._segments.values())
            else:
                state = self._epochs.get(leader_epoch)
                ids = state.segment_ids() if state is not None else iter(())
                listed = [self._segments[segment_id] for segment_id in ids]
        return sorted(listed, key=lambda metadata: metadata.start_offset)

    def size_in_bytes(self, leader_epoch: LeaderEpoch) -> int:
        """Bytes of the epoch's segments in every state, as Kafka counts them."""
        return sum(metadata.segment_size_in_bytes for metadata in self.segments(leader_epoch))

    def _advance(self, metadata: RemoteLogSegmentMetadata) -> None:
        segment_id = metadata.segment_id
        for span in epoch_spans(metadata):
            state = self._epoch_state(span.epoch)
            match metadata.state:
                case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    state.finish(segment_id, span.start_offset, span.end_offset_inclusive)
                case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                    state.start_deletion(segment_id, span.start_offset)
                case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                    state.forget(segment_id)
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del self._segments[segment_id]
        else:
            self._segments[segment_id] = metadata

    def _may_follow(self, segment_id: RemoteLogSegmentId, target: RemoteLogSegmentState) -> bool:
        known = self._segments.get(segment_id)
        source = known.state if known is not None else None
        if is_valid_transition(source, target):
            return True
        _logger.error(
            "metadata event dropped: invalid transition segment=%s from=%s to=%s",
            segment_id,
            source.name if source is not None else None,
            target.name,
        )
        return False

    def _epoch_state(self, epoch: LeaderEpoch) -> RemoteLogLeaderEpochState:
        # Never removed, even when empty: highest_log_offset outlives the segments (KAFKA-12641).
        return self._epochs.setdefault(epoch, RemoteLogLeaderEpochState())
