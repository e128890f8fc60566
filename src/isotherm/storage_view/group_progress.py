"""Estimates how fast groups read, from their committed offsets at successive times. Pure.

No metric of a broker names the group that a read of the remote tier was for. But a group that
commits an offset has read the records before it. That gives its offsets per second, and with the
mean size of an offset in the remote tier, its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from isotherm.storage_view.group_reader import GroupState
from isotherm.types import Offset, TimestampMs, TopicPartition

WINDOW_MS = 120_000
LOOKS_MAX = 30
"""The most snapshots that are kept, however often `note` is called."""
_STEP_MS = 2 * WINDOW_MS // (LOOKS_MAX - 2)
"""At most two snapshots are kept of so long a time, so that LOOKS_MAX reach over the window."""

Committed: TypeAlias = Mapping[str, Mapping[TopicPartition, Offset]]
"""Committed offsets by group."""


class GroupProgress:
    """Snapshots of committed offsets: those of the last WINDOW_MS, and the last one before. One
    thread may call `note` while others call `offsets_per_s`."""

    def __init__(self) -> None:
        self._looks: tuple[tuple[TimestampMs, Committed], ...] = ()

    def note(self, groups: Iterable[GroupState], now_ms: TimestampMs) -> None:
        """Add a snapshot. `now_ms` must not fall."""
        looks = list(self._looks)
        if len(looks) > 1 and now_ms - looks[-2][0] < _STEP_MS:
            looks.pop()
        looks.append((now_ms, {group.group_id: group.committed for group in groups}))
        while len(looks) > 1 and now_ms - looks[1][0] >= WINDOW_MS:
            looks.pop(0)
        # One assignment of an immutable tuple, so that other threads need no lock.
        self._looks = tuple(looks[-LOOKS_MAX:])

    @property
    def is_whole_window(self) -> bool:
        """Whether the rates are those of at least WINDOW_MS. Until then a group that commits seldom
        has a rate of 0."""
        looks = self._looks
        return bool(looks) and looks[-1][0] - looks[0][0] >= WINDOW_MS

    def offsets_per_s(self, group: str) -> dict[TopicPartition, float]:
        """The rate of each partition that has an offset in the first and the last snapshot. A
        partition whose offset was reset to an earlier one is left out. Empty before the second
        snapshot."""
        looks = self._looks
        if not looks or looks[-1][0] <= looks[0][0]:
            return {}
        (first_ms, first), (last_ms, last) = looks[0], looks[-1]
        before = first.get(group, {})
        seconds = (last_ms - first_ms) / 1000
        return {
            place: (offset - before[place]) / seconds
            for place, offset in last.get(group, {}).items()
            if place in before and offset >= before[place]
        }
