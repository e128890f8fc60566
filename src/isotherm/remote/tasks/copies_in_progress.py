"""The segments that are being copied, so that no task deletes them meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from isotherm.remote.segment_metadata import RemoteLogSegmentId


class CopiesInProgress:
    """Thread-safe. One per broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: set[RemoteLogSegmentId] = set()
        self._watches: list[set[RemoteLogSegmentId]] = []

    def begin(self, segment_id: RemoteLogSegmentId) -> None:
        with self._lock:
            self._active.add(segment_id)
            for watch in self._watches:
                watch.add(segment_id)

    def end(self, segment_id: RemoteLogSegmentId) -> None:
        with self._lock:
            self._active.discard(segment_id)

    def is_active(self, segment_id: RemoteLogSegmentId) -> bool:
        with self._lock:
            return segment_id in self._active

    @contextmanager
    def watch(self) -> Iterator[set[RemoteLogSegmentId]]:
        """The segments in progress at any moment from here to the end of the block.

        A plain snapshot would miss a copy that begins and ends between the snapshot and the
        listing of segments that it is compared with. Read the set after listing.
        """
        with self._lock:
            watched = set(self._active)
            self._watches.append(watched)
        try:
            yield watched
        finally:
            with self._lock:
                self._watches = [watch for watch in self._watches if watch is not watched]
