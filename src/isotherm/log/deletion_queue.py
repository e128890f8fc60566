"""Segments that are removed from the log but still on disk, for readers that use them.

Owned by the log. Files that a stop leaves are removed at loading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from isotherm.log.fs import FileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.types import Offset, TimestampMs


class _Marked(NamedTuple):
    due_ms: TimestampMs
    segment: LogSegment
    snapshot: Path | None


class DeletionQueue:
    """Call every method under `lock`. It is taken before the log's own lock, never after: renaming
    and removing files takes long, and appends must not wait for it."""

    def __init__(self, fs: FileSystem, snapshots: ProducerSnapshots) -> None:
        self.lock = threading.Lock()
        self._fs = fs
        self._snapshots = snapshots
        self._marked: list[_Marked] = []

    def mark(
        self,
        segments: Sequence[LogSegment],
        due_ms: TimestampMs,
        *,
        reused_base_offsets: Collection[Offset] = (),
    ) -> None:
        """Rename the files of segments, in the given order.

        Producer snapshots are renamed too, except those at `reused_base_offsets`, where other
        segments start. Segments that were marked earlier under the same names are deleted at once,
        since compaction replaces a segment under its name repeatedly.
        """
        base_offsets = {segment.base_offset for segment in segments}
        self._delete(lambda marked: marked.segment.base_offset in base_offsets)
        for segment in segments:
            segment.rename_to_deleted()
            snapshot = None
            if segment.base_offset not in reused_base_offsets:
                snapshot = self._snapshots.rename_to_deleted(segment.base_offset)
            self._marked.append(_Marked(due_ms, segment, snapshot))

    def has_below(self, offset: Offset) -> bool:
        return any(marked.segment.base_offset < offset for marked in self._marked)

    @property
    def next_due_ms(self) -> TimestampMs | None:
        """When the next files are due; None if none are marked."""
        return min((marked.due_ms for marked in self._marked), default=None)

    def delete_due(self, now_ms: TimestampMs) -> None:
        self._delete(lambda marked: marked.due_ms <= now_ms)

    def _delete(self, is_meant: Callable[[_Marked], bool]) -> None:
        meant = [marked for marked in self._marked if is_meant(marked)]
        self._marked = [marked for marked in self._marked if not is_meant(marked)]
        for marked in meant:
            marked.segment.delete_files()
            if marked.snapshot is not None:
                self._fs.remove(marked.snapshot)
