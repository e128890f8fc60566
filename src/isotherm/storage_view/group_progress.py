"""How fast groups read, by what they commit from one look to the next. Pure.

No metric of a broker knows which group a read of the remote tier was for. A group that commits has read what
lies before: its offsets a second, and with the mean size of an offset in the remote tier, its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from isotherm.storage_view.group_reader import GroupState
from isotherm.types import Offset, TimestampMs, TopicPartition

WINDOW_MS = 120_000
LOOKS_MAX = 30
"""That are kept, so that any rhythm of looks has a bound."""

Committed: TypeAlias = Mapping[str, Mapping[TopicPartition, Offset]]
"""By group."""


class GroupProgress:
    """One thread notes, any may ask. Looks within WINDOW_MS, and the last one before it."""

    def __init__(self) -> None:
        self._looks: tuple[tuple[TimestampMs, Committed], ...] = ()

    def note(self, groups: Iterable[GroupState], now_ms: TimestampMs) -> None:
        """A look. Time does not go back."""
        looks = [*self._looks, (now_ms, {each.group_id: each.committed for each in groups})]
        while len(looks) > 1 and now_ms - looks[1][0] >= WINDOW_MS:
            looks.pop(0)
        self._looks = tuple(looks[-LOOKS_MAX:])

    def offsets_per_s(self, group: str) -> dict[TopicPartition, float]:
        """Of the partitions that were committed in the first and the last look; empty before a second look.
        One that was set back has no rate."""
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
