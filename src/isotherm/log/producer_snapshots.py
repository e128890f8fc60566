"""The producer snapshot files of a partition's directory.

Owned and serialized by its log, except that new ones are taken while those of old segments are
renamed. Files are written without a sync; `sync` makes them durable.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from pathlib import Path

from isotherm.errors import CorruptSnapshotError
from isotherm.log.fs import FileSystem
from isotherm.log.producer_state import ProducerStateManager
from isotherm.segment.file_names import (
    DELETED_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from isotherm.segment.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    read_producer_snapshot,
)
from isotherm.types import Offset, TimestampMs

logger = logging.getLogger(__name__)


class ProducerSnapshots:
    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        names: Iterable[str] | None = None,
        *,
        are_durable: bool = False,
    ) -> None:
        """`names` are the names in the directory, if the caller has listed it already. The files
        `are_durable` after a clean stop."""
        self._fs = fs
        self._directory = directory
        self._lock = threading.Lock()
        files = map(parse_segment_file_name, fs.list_names(directory) if names is None else names)
        self._offsets = sorted(
            file.base_offset
            for file in files
            if file is not None
            and file.suffix == PRODUCER_SNAPSHOT_SUFFIX
            and not file.temporary_suffix
        )
        # Those that a `sync` would only sync again.
        self._durable = set(self._offsets) if are_durable else set[Offset]()

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """Offsets of the snapshots, ascending."""
        return tuple(self._offsets)

    def path(self, offset: Offset) -> Path:
        return self._directory / segment_file_name(offset, PRODUCER_SNAPSHOT_SUFFIX)

    def take(self, state: ProducerStateManager) -> bool:
        """Write `state` as the snapshot of its map end offset. False if that one exists.

        As in Kafka, none is written for offset 0: the state there is empty.
        """
        offset = state.map_end_offset
        if offset == 0 or offset in self._offsets:
            return False
        self.put(offset, state.snapshot_entries())
        return True

    def put(self, offset: Offset, entries: Sequence[ProducerSnapshotEntry]) -> None:
        """Write a snapshot, which must not exist yet."""
        # Written before it is listed: copies to the remote tier open what is listed.
        self._durable.discard(offset)
        self._fs.write_bytes(self.path(offset), encode_producer_snapshot(entries))
        with self._lock:
            insort(self._offsets, offset)

    def load_latest(
        self, state: ProducerStateManager, end_offset: Offset, now_ms: TimestampMs
    ) -> None:
        """Load the latest valid snapshot at or below `end_offset`, or an empty state.

        Damaged snapshots are removed. The caller replays the log from `state.map_end_offset`.
        """
        for offset in reversed(self._offsets[: bisect_right(self._offsets, end_offset)]):
            try:
                entries = read_producer_snapshot(self._fs.read_bytes(self.path(offset)))
            except CorruptSnapshotError as error:
                logger.warning("producer snapshot is dropped path=%s: %s", self.path(offset), error)
                self.remove(offset)
                continue
            state.load(entries, offset, now_ms)
            return
        state.load((), 0, now_ms)

    def remove(self, offset: Offset) -> None:
        self._forget(offset)
        self._fs.remove(self.path(offset))

    def _forget(self, offset: Offset) -> None:
        with self._lock:
            self._offsets.remove(offset)
            self._durable.discard(offset)

    def remove_where_above(self, offset: Offset) -> None:
        for above in self._offsets[bisect_right(self._offsets, offset) :]:
            self.remove(above)

    def remove_strays(self, segment_base_offsets: set[Offset]) -> None:
        """Remove snapshots at no segment's base, except the latest at or above the last base.

        Kafka keeps that one, because a clean shutdown writes it at the log end.
        """
        last_base = max(segment_base_offsets, default=0)
        latest = self._offsets[-1] if self._offsets else -1
        for offset in self.offsets:
            kept = offset in segment_base_offsets or (offset == latest >= last_base)
            if not kept:
                self.remove(offset)

    def rename_to_deleted(self, offset: Offset) -> Path | None:
        """Mark a snapshot for deletion; returns its new path, or None if it does not exist."""
        if offset not in self._offsets:
            return None
        self._forget(offset)
        path = self.path(offset)
        deleted = path.with_name(path.name + DELETED_SUFFIX)
        self._fs.rename(path, deleted)
        return deleted

    def unsynced(self, from_offset: Offset) -> list[Offset]:
        """The snapshots at or above `from_offset` that may not be durable."""
        return [
            offset
            for offset in self.offsets
            if offset >= from_offset and offset not in self._durable
        ]

    def sync(self, from_offset: Offset) -> None:
        """Make the snapshots at or above `from_offset` durable."""
        for offset in self.unsynced(from_offset):
            self._fs.sync_file(self.path(offset))
            with self._lock:
                if offset in self._offsets:  # it may have been removed meanwhile
                    self._durable.add(offset)
