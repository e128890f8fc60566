"""The keys of one partition that have records in the metadata topic, each with the segment of its
last record.

A level-1 key is the end offset of a segment and the leader epoch of the broker that wrote it;
migrated records have epochs of -1 and lower. Several keys may name one segment: its deletion by a
later leader has a key of its own. A key stays until its tombstone, even if its segment is
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from isotherm.types import LeaderEpoch, Offset


class KeyedSegment(NamedTuple):
    broker_leader_epoch: LeaderEpoch
    segment_id: bytes


class KeyTable:
    """The cache's lock guards it. There may be a million keys but only a few epochs, so the outer
    table is by epoch. Segment ids are kept, not copied."""

    __slots__ = ("_by_epoch",)

    def __init__(self) -> None:
        self._by_epoch: dict[LeaderEpoch, dict[Offset, bytes]] = {}

    def get(self, end_offset: Offset, leader_epoch: LeaderEpoch) -> bytes | None:
        return self._by_epoch.get(leader_epoch, {}).get(end_offset)

    def at(self, end_offset: Offset) -> list[KeyedSegment]:
        """The keys of one end offset, ascending by epoch."""
        return sorted(
            KeyedSegment(epoch, segments[end_offset])
            for epoch, segments in self._by_epoch.items()
            if end_offset in segments
        )

    def set(self, end_offset: Offset, leader_epoch: LeaderEpoch, segment_id: bytes) -> None:
        self._by_epoch.setdefault(leader_epoch, {})[end_offset] = segment_id

    def discard(self, end_offset: Offset, leader_epoch: LeaderEpoch) -> None:
        segments = self._by_epoch.get(leader_epoch, {})
        segments.pop(end_offset, None)
        if not segments:
            self._by_epoch.pop(leader_epoch, None)

    def __bool__(self) -> bool:
        return bool(self._by_epoch)

    def __iter__(self) -> Iterator[tuple[Offset, KeyedSegment]]:
        """Ascending by end offset, then by epoch."""
        yield from sorted(
            (end_offset, KeyedSegment(epoch, segment_id))
            for epoch, segments in self._by_epoch.items()
            for end_offset, segment_id in segments.items()
        )
