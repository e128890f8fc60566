"""The keys of one partition that have records in the metadata topic, and whose record is the last.

A level-1 key is the end offset of a segment and the leader epoch of the broker that wrote it, or -1
and lower where it was migrated. Several keys may name one segment: its deletion by a later leader
has a key of its own. A key stays here until its tombstone, also when its segment is forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from isotherm.types import LeaderEpoch, Offset

_ENTRY = struct.Struct(">i16s")


class KeyedSegment(NamedTuple):
    broker_leader_epoch: LeaderEpoch
    segment_id: bytes


class KeyTable:
    """Not thread-safe: the cache locks. Entries of one end offset share a run of bytes, because
    nearly always there is one, and there may be a million."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Offset, bytes] = {}

    def get(self, end_offset: Offset, leader_epoch: LeaderEpoch) -> bytes | None:
        for epoch, segment_id in self.at(end_offset):
            if epoch == leader_epoch:
                return segment_id
        return None

    def at(self, end_offset: Offset) -> list[KeyedSegment]:
        """The keys of one end offset, ascending by epoch."""
        entries = self._entries.get(end_offset, b"")
        return sorted(KeyedSegment(*entry) for entry in _ENTRY.iter_unpack(entries))

    def set(self, end_offset: Offset, leader_epoch: LeaderEpoch, segment_id: bytes) -> None:
        entry = _ENTRY.pack(leader_epoch, segment_id)
        if self._entries.setdefault(end_offset, entry) is not entry:
            self._entries[end_offset] = self._others(end_offset, leader_epoch) + entry

    def set_all(self, end_offsets: list[Offset], entries: list[bytes]) -> None:
        """As `set` of each; an entry is the epoch (i32, big-endian) and the segment's id."""
        if len(set(end_offsets)) == len(end_offsets) and self._entries.keys().isdisjoint(
            end_offsets
        ):
            self._entries.update(zip(end_offsets, entries, strict=True))
            return
        for end_offset, entry in zip(end_offsets, entries, strict=True):
            self.set(end_offset, *_ENTRY.unpack(entry))

    def discard(self, end_offset: Offset, leader_epoch: LeaderEpoch) -> None:
        if end_offset not in self._entries:
            return
        others = self._others(end_offset, leader_epoch)
        if others:
            self._entries[end_offset] = others
        else:
            del self._entries[end_offset]

    def __iter__(self) -> Iterator[tuple[Offset, KeyedSegment]]:
        for end_offset in list(self._entries):
            for keyed in self.at(end_offset):
                yield end_offset, keyed

    def _others(self, end_offset: Offset, leader_epoch: LeaderEpoch) -> bytes:
        return b"".join(
            _ENTRY.pack(*keyed) for keyed in self.at(end_offset) if keyed[0] != leader_epoch
        )
