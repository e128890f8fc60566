"""The remote segments of one leader epoch of a partition, and look-ups by offset.

Invariants:
- a segment that is not yet DELETE_SEGMENT_FINISHED is in exactly one of the two: the finished
  segments by start offset (only these answer look-ups), or the unreferenced ones;
- `highest_log_offset` never falls, not even when segments are deleted.

Offsets here are those of the epoch *within* a segment: a segment that spans two epochs is entered
in both, each time with the part that belongs to that epoch.

The rules are those of Kafka's RemoteLogLeaderEpochState, except where Kafka loses sight of offsets
that a live segment holds (docs/decisions/0011). At feature level 1 a segment also has the leader
epoch of the broker that copied it. Of two segments that overlap, the later leader's answers,
whatever the order of their events (KIP-1266, Scenario 2).
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from isotherm.types import NO_LEADER_EPOCH, LeaderEpoch, Offset


class _Part(NamedTuple):
    start: Offset
    end: Offset
    leader: LeaderEpoch
    is_marked: bool


class RemoteLogLeaderEpochState:
    """The segments of one leader epoch, by the bytes of their ids. The cache's lock guards it.

    The finished segments are in parallel columns, sorted by start offset; of equal starts the
    longer comes first. `_reach[i]` is the highest end among the first i + 1. It finds a segment
    around an offset in O(log n) although segments may be nested. `_marked[i]` is 1 if `next_marked`
    must not pass over the segment, `_parted[i]` if the next one does not begin right after it.

    `_hidden` has the unreferenced segments of level 1 that another segment covers, of a later
    leader or of the same. When that one is deleted, they answer again: compaction drops the deleted
    segment, and a start after it finds them too. At level 0 the leader is unknown (-1), and an
    evicted segment never answers again.
    """

    __slots__ = (
        "_ends",
        "_hidden",
        "_ids",
        "_leaders",
        "_marked",
        "_parted",
        "_reach",
        "_starts",
        "highest_log_offset",
        "unreferenced",
    )

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._ids: list[bytes] = []
        self._leaders = array("i")
        self._reach = array("q")
        self._marked = bytearray()
        self._parted = bytearray()
        self._hidden: dict[bytes, _Part] = {}
        self.unreferenced: set[bytes] = set()
        self.highest_log_offset: Offset | None = None

    def segment_ids(self) -> Iterator[bytes]:
        yield from self._ids
        yield from self.unreferenced

    def referenced(self) -> list[tuple[Offset, bytes]]:
        """The segments that look-ups find, ascending by start offset."""
        return list(zip(self._starts, self._ids, strict=True))

    @property
    def first(self) -> bytes | None:
        """The finished segment with the lowest offset."""
        return self._ids[0] if self._ids else None

    @property
    def last(self) -> bytes | None:
        """The finished segment with the highest offset."""
        return self._ids[bisect_left(self._reach, self._reach[-1])] if self._ids else None

    @property
    def tail(self) -> Offset:
        """A segment that starts above this offset overlaps no finished one, present or past; -1 if
        there was none."""
        highest = -1 if self.highest_log_offset is None else self.highest_log_offset
        return max(highest, self._starts[-1]) if self._starts else highest

    @property
    def has_hidden(self) -> bool:
        """Whether a finished segment may become visible when another one is deleted."""
        return bool(self._hidden)

    def find(self, offset: Offset) -> bytes | None:
        """The segment that holds `offset`: the one that starts nearest below it, if it reaches
        so far, else the first one that does."""
        index = self._index_at(offset)
        return None if index is None else self._ids[index]

    def next_marked(self, offset: Offset) -> bytes | None:
        """The first marked segment among the one that holds `offset`, the one that holds the offset
        after that one, and so on; None if no segment goes on. Unmarked ones cost nothing unless
        there is a gap or an overlap behind them."""
        index = self._index_at(offset)
        while index is not None and not self._marked[index]:
            # Up to `last` each segment begins right after the one before, and only it may be
            # marked.
            last = self._parted.find(1, index)
            marked = self._marked.find(1, index, last)
            last = last if marked < 0 else marked
            # Looked up, since another one may begin where it does.
            index = self._index_at(self._starts[last] if last > index else self._ends[index] + 1)
        return None if index is None else self._ids[index]

    def _index_at(self, offset: Offset) -> int | None:
        floor = bisect_right(self._starts, offset) - 1
        if floor < 0:
            return None
        if self._ends[floor] >= offset:
            return floor
        around = bisect_left(self._reach, offset)
        return around if around <= floor else None

    def add_unreferenced(self, segment_id: bytes) -> None:
        self.unreferenced.add(segment_id)

    def finish(
        self,
        segment_id: bytes,
        start: Offset,
        end: Offset,
        leader: LeaderEpoch = NO_LEADER_EPOCH,
        *,
        is_marked: bool = True,
    ) -> None:
        """Enter a finished segment; those at the tail that it covers become unreferenced."""
        # FINISHED may be repeated: events are replayed.
        self._remove(segment_id, start)
        self._hidden.pop(segment_id, None)
        # Kafka's rule (RemoteLogLeaderEpochState): a segment that reaches the highest offset
        # evicts those at the tail that it covers. At level 1 those of later leaders stay.
        while (
            self._starts
            and self._starts[-1] >= start
            and (self.highest_log_offset is None or self.highest_log_offset <= end)
            and self._leaders[-1] <= leader
        ):
            self._evict(len(self._starts) - 1)
        self._evict_covered_at(start, end, leader)
        self._enter(segment_id, _Part(start, end, leader, is_marked))
        self.highest_log_offset = max(end, self.highest_log_offset or end)

    def append_finished(
        self,
        segment_ids: list[bytes],
        starts: array[int],
        ends: array[int],
        leaders: array[int],
        marked: bytes,
    ) -> None:
        """Same as `finish` of each, for new segments that ascend without overlaps above `tail`."""
        last = len(self._ids) - 1
        self._marked += marked
        self._parted += _partings(starts, ends)
        self._ids += segment_ids
        self._starts += starts
        self._ends += ends
        self._reach += ends
        self._leaders += leaders
        self._note_parting(last)
        self.highest_log_offset = ends[-1]

    def withdraw(self, segment_ids: set[bytes]) -> None:
        """Forget segments in any state. Allowed only if `has_hidden` is false."""
        self.unreferenced -= segment_ids
        kept = [
            index for index, segment_id in enumerate(self._ids) if segment_id not in segment_ids
        ]
        if len(kept) == len(self._ids):
            return
        self._ids = [self._ids[index] for index in kept]
        self._starts = array("q", [self._starts[index] for index in kept])
        self._ends = array("q", [self._ends[index] for index in kept])
        self._leaders = array("i", [self._leaders[index] for index in kept])
        self._reach = array("q", accumulate(self._ends, max))
        self._marked = bytearray(self._marked[index] for index in kept)
        self._parted = bytearray(_partings(self._starts, self._ends))

    def start_deletion(self, segment_id: bytes, start: Offset) -> None:
        self._leave(segment_id, start)
        self.unreferenced.add(segment_id)

    def forget(self, segment_id: bytes, start: Offset | None = None) -> None:
        """Forget an unreferenced segment; given its `start`, a segment in any state."""
        if start is not None:
            self._leave(segment_id, start)
        self._hidden.pop(segment_id, None)
        self.unreferenced.discard(segment_id)

    def _enter(self, segment_id: bytes, entered: _Part) -> None:
        start, end, leader, _ = entered
        if self._is_covered_by_later_leader(start, end, leader):
            self.unreferenced.add(segment_id)
            self._hidden[segment_id] = entered
            return
        self._evict_of_earlier_leaders(start, end, leader)
        self._insert(segment_id, entered)
        self.unreferenced.discard(segment_id)

    def _is_covered_by_later_leader(self, start: Offset, end: Offset, leader: LeaderEpoch) -> bool:
        # No segment before `first` reaches `end`, and none beyond the range starts low enough.
        first = bisect_left(self._reach, end)
        return any(
            self._ends[index] >= end and self._leaders[index] > leader
            for index in range(first, bisect_right(self._starts, start))
        )

    def _evict_of_earlier_leaders(self, start: Offset, end: Offset, leader: LeaderEpoch) -> None:
        index = bisect_left(self._starts, start)
        while index < len(self._starts) and self._starts[index] <= end:
            if self._ends[index] <= end and self._leaders[index] < leader:
                self._evict(index)
            else:
                index += 1

    def _insert(self, segment_id: bytes, entered: _Part) -> None:
        start, end, leader, is_marked = entered
        index = bisect_right(self._starts, start)
        while index > 0 and self._starts[index - 1] == start and self._ends[index - 1] < end:
            index -= 1
        self._starts.insert(index, start)
        self._ends.insert(index, end)
        self._ids.insert(index, segment_id)
        self._leaders.insert(index, leader)
        self._reach.insert(index, end)
        self._marked.insert(index, is_marked)
        self._parted.insert(index, True)
        self._restore_reach(index)
        self._note_parting(index - 1)
        self._note_parting(index)

    def _evict_covered_at(self, start: Offset, end: Offset, leader: LeaderEpoch) -> None:
        """Kafka keeps one segment per start offset: an equal or shorter one makes room."""
        index = bisect_left(self._starts, start)
        while index < len(self._starts) and self._starts[index] == start:
            if self._ends[index] <= end and self._leaders[index] <= leader:
                self._evict(index)
            else:
                index += 1

    def _evict(self, index: int) -> None:
        segment_id = self._ids[index]
        self.unreferenced.add(segment_id)
        if self._leaders[index] != NO_LEADER_EPOCH:
            self._hidden[segment_id] = _Part(
                self._starts[index],
                self._ends[index],
                self._leaders[index],
                bool(self._marked[index]),
            )
        self._delete_at(index)

    def _leave(self, segment_id: bytes, start: Offset) -> None:
        """Take a segment out of the look-ups. Segments that it alone covered answer again."""
        self._hidden.pop(segment_id, None)
        end = self._remove(segment_id, start)
        if end is None or not self._hidden:
            return
        # The latest leader's first: it may cover the others again.
        hidden = [item for item in self._hidden.items() if start <= item[1].start <= end]
        for other_id, other in sorted(hidden, key=lambda item: -item[1].leader):
            del self._hidden[other_id]
            self._enter(other_id, other)

    def _remove(self, segment_id: bytes, start: Offset) -> Offset | None:
        """Take a segment out of the finished ones; its end, or None when it is not among them."""
        index = bisect_left(self._starts, start)
        while index < len(self._starts) and self._starts[index] == start:
            if self._ids[index] == segment_id:
                end = self._ends[index]
                self._delete_at(index)
                return end
            index += 1
        return None

    def _delete_at(self, index: int) -> None:
        for column in (self._starts, self._ends, self._leaders, self._reach):
            del column[index]
        del self._ids[index], self._marked[index], self._parted[index]
        self._restore_reach(index)
        self._note_parting(index - 1)

    def _note_parting(self, index: int) -> None:
        """Note whether the segment after `index`, if there is one, begins right after it."""
        if index >= 0:
            pair = slice(index, index + 2)
            self._parted[index] = _partings(self._starts[pair], self._ends[pair])[0]

    def _restore_reach(self, index: int) -> None:
        """Recompute `_reach` from `index`, until a value does not change."""
        first = index
        reach = self._reach[index - 1] if index else -1
        while index < len(self._ends):
            reach = max(reach, self._ends[index])
            # Not at `first`: after an insertion its old value is a placeholder, and those after it
            # may still be wrong.
            if index > first and self._reach[index] == reach:
                return
            self._reach[index] = reach
            index += 1


def _partings(starts: Sequence[Offset], ends: Sequence[Offset]) -> bytes:
    """1 for each segment that the next one does not begin right after, and for the last one."""
    parted = bytes(map(operator.ne, starts[1:], (end + 1 for end in ends)))
    return parted + b"\x01" if ends else b""
