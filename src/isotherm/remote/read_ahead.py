"""Ranges of remote segments in memory: few large GETs for many small reads.

A read at a position of a segment is answered from the range that covers it. Where there is none,
one is fetched: it begins at the position and is `range_size_min` long at least, and each range
that follows on another is twice as long as that one, up to `range_size_max`. So a single look
costs little, and a reader of a whole 1 GiB segment makes 19 GETs (8 + 16 + 32 + 15 x 64 MiB and
the rest). Once a range has been read beyond its first quarter, its successor is fetched in the
background, before anybody asks.

Ranges belong to segments, not to readers: consumers of the same stretch share them, and one
fetches what several ask for. All ranges together, also those on their way, are at most
`size_max` bytes; the least recently read go first. A read that finds no room even so fetches just
what it needs and keeps nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.types import Position

_MIB = 1024 * 1024
_RANGES_AT_ONCE = 4
"""A range is at most this share of all the memory: one in use and one on its way, for two."""
_READ_BEFORE_SUCCESSOR = 1 / 4


@dataclass(frozen=True, slots=True)
class ReadAheadSettings:
    """size_max is remote.log.reader.read.ahead.max.bytes; the range sizes are fixed, since they
    follow from what a GET costs and not from the machine."""

    size_max: int
    range_size_min: int = 8 * _MIB
    range_size_max: int = 64 * _MIB

    def range_size(self, wanted: int) -> int:
        """`wanted` kept within the bounds."""
        bound = min(self.range_size_max, max(1, self.size_max // _RANGES_AT_ONCE))
        return min(max(wanted, self.range_size_min), bound)


@dataclass(slots=True, eq=False)
class _Range:
    """[start, end) of a segment's `.log`; `data` is done when it has been fetched."""

    segment_id: RemoteLogSegmentId
    start: Position
    end: Position
    data: Future[memoryview] = field(default_factory=Future)
    successor_asked: bool = False

    @property
    def size(self) -> int:
        return self.end - self.start


class ReadAhead:
    """Thread-safe. `executor` runs fetches that nobody waits for yet; the caller owns it."""

    def __init__(
        self, storage: RemoteStorageManager, settings: ReadAheadSettings, executor: Executor
    ) -> None:
        self._storage = storage
        self.settings = settings
        self._executor = executor
        self._lock = threading.Lock()
        self._ranges: OrderedDict[_Range, None] = OrderedDict()
        self._by_segment: dict[RemoteLogSegmentId, list[_Range]] = {}
        self._size = 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes held or on their way."""
        with self._lock:
            return self._size

    def read(self, metadata: RemoteLogSegmentMetadata, position: Position, size: int) -> memoryview:
        """[position, position + size) of the segment's `.log`, cut at the segment's end.

        Raises what the storage manager raises; nothing of a failed fetch is kept.
        """
        end = min(position + size, metadata.segment_size_in_bytes)
        pieces = []
        while position < end:
            piece = self._read_piece(metadata, position, end)
            pieces.append(piece)
            position += len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def prefetch(self, metadata: RemoteLogSegmentMetadata, position: Position) -> None:
        """Begin to fetch what a sequential reader asks for next; nothing when there is no room."""
        with self._lock:
            wanted = self._reserve(metadata, position, self.settings.range_size_max)
        if wanted is not None:
            self._executor.submit(self._fetch, metadata, wanted)

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop the ranges of a segment that is being deleted."""
        with self._lock:
            for each in list(self._by_segment.get(segment_id, ())):
                self._drop(each)

    def _read_piece(
        self, metadata: RemoteLogSegmentMetadata, position: Position, end: Position
    ) -> memoryview:
        """From `position` up to `end`, or to the end of the range that covers it."""
        successor = None
        with self._lock:
            found = self._find(metadata.segment_id, position)
            is_fetcher = found is None
            if found is None:
                wanted_size = self._size_after(metadata.segment_id, position, end)
                found = self._reserve(metadata, position, wanted_size, size_min=end - position)
            if found is not None:
                successor = self._touch(metadata, found, end)
        if found is None:
            return self._storage.fetch_log_segment(metadata, position, end - 1)
        if successor is not None:
            self._executor.submit(self._fetch, metadata, successor)
        if is_fetcher:
            self._fetch(metadata, found)
        return found.data.result()[position - found.start : min(end, found.end) - found.start]

    def _fetch(self, metadata: RemoteLogSegmentMetadata, wanted: _Range) -> None:
        """Fill a reserved range, for whoever waits for it; they get the error if it fails."""
        try:
            data = self._storage.fetch_log_segment(metadata, wanted.start, wanted.end - 1)
        except BaseException as error:
            with self._lock:
                self._drop(wanted)
            wanted.data.set_exception(error)
            raise
        wanted.data.set_result(data)

    # The lock is held below here.

    def _find(self, segment_id: RemoteLogSegmentId, position: Position) -> _Range | None:
        for each in self._by_segment.get(segment_id, ()):
            if each.start <= position < each.end:
                return each
        return None

    def _size_after(self, segment_id: RemoteLogSegmentId, position: Position, end: Position) -> int:
        """How much to fetch at `position`: twice the range that ends there, if one does."""
        before = (each for each in self._by_segment.get(segment_id, ()) if each.end == position)
        return max(end - position, 2 * max((each.size for each in before), default=0))

    def _touch(
        self, metadata: RemoteLogSegmentMetadata, found: _Range, read_end: Position
    ) -> _Range | None:
        """Note a read; the range to fetch next, when this one has been read far enough."""
        if found not in self._ranges:
            return None
        self._ranges.move_to_end(found)
        if found.successor_asked or read_end - found.start <= found.size * _READ_BEFORE_SUCCESSOR:
            return None
        found.successor_asked = True
        return self._reserve(metadata, found.end, 2 * found.size)

    def _reserve(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        wanted_size: int,
        size_min: int = 0,
    ) -> _Range | None:
        """A range to be fetched from `position` on.

        None when it is there, when there is no room, and when the bound on ranges leaves it
        smaller than `size_min`: then it would not serve the read that asks for it.
        """
        segment_id, segment_size = metadata.segment_id, metadata.segment_size_in_bytes
        if position >= segment_size or self._find(segment_id, position) is not None:
            return None
        range_size = self.settings.range_size(wanted_size)
        if range_size < size_min:
            return None
        behind = [
            each.start for each in self._by_segment.get(segment_id, ()) if each.start > position
        ]
        end = min(position + range_size, segment_size, *behind)
        wanted = _Range(segment_id, position, end)
        if not self._make_room(wanted.size):
            return None
        self._ranges[wanted] = None
        self._by_segment.setdefault(segment_id, []).append(wanted)
        self._size += wanted.size
        return wanted

    def _make_room(self, size: int) -> bool:
        """Drop the ranges read longest ago; those still on their way stay."""
        for each in list(self._ranges):
            if self._size + size <= self.settings.size_max:
                break
            if each.data.done():
                self._drop(each)
        return self._size + size <= self.settings.size_max

    def _drop(self, dropped: _Range) -> None:
        if dropped not in self._ranges:
            return
        del self._ranges[dropped]
        remaining = self._by_segment[dropped.segment_id]
        remaining.remove(dropped)
        if not remaining:
            del self._by_segment[dropped.segment_id]
        self._size -= dropped.size
