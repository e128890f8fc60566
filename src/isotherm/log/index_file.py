"""An index file of the active segment, mirrored in memory.

Kafka maps the file, and preallocates it with zeros for that. Here `entries` in memory is what
look-ups read; the file follows a page of entries at a time, and wholly when it is synced or the
segment is closed: a write for each entry would cost a producer's batch as much as the batch's own.
What an unclean stop loses of it is built again from the log, as are all entries of batches that were
not flushed. So rarely is it written that it is opened for that alone: a partition holds one descriptor,
of its log, as Kafka's do whose indexes are mapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from isotherm.log.fs import FileSystem

# Entries, in bytes, that are kept back from the file: one page, which is written at once anyway.
UNWRITTEN_SIZE_MAX = 4096


class IndexFile:
    """Append-only entries of one size, `size_max` bytes of them at most.

    Look-ups and `sync` may run beside an append: `entries` only grows in place, truncating replaces
    it.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        entry_size: int,
        size_max: int,
        count_entries: Callable[[bytes], int],
    ) -> None:
        """Goes on after the entries in the file, of which `count_entries` tells how many there are:
        what follows them, as the padding that an unclean stop of Kafka leaves, is cut off. The file
        is created where there is none."""
        self._entry_size = entry_size
        self._size_max = size_max - size_max % entry_size
        self._fs = fs
        self._path = path
        # What keeps a sync from writing what is being truncated.
        self._write_lock = threading.Lock()
        stored = b""
        try:
            stored = fs.read_bytes(path)
        except FileNotFoundError:
            fs.open_writable(path).close()
        # Whether the file, or what is kept back from it, has changed since the last sync.
        self._is_dirty = True
        self._written_size = count_entries(stored) * entry_size
        self.entries = bytearray(stored[: self._written_size])
        if len(stored) > self._written_size:
            self._truncate_file(self._written_size)

    def append(self, entry: bytes) -> None:
        assert len(entry) == self._entry_size
        self.entries += entry
        self._is_dirty = True
        if len(self.entries) - self._written_size >= UNWRITTEN_SIZE_MAX:
            self.write_out()

    def write_out(self) -> None:
        """Bring the file to the state of `entries`."""
        with self._write_lock:
            unwritten = self.entries[self._written_size :]
            if unwritten:
                with closing(self._fs.open_writable(self._path)) as file:
                    file.write_at(self._written_size, unwritten)
                self._written_size += len(unwritten)

    def truncate(self, size: int) -> None:
        """Drop the entries after the first `size` bytes."""
        with self._write_lock:
            self.entries = self.entries[:size]
            if self._written_size > size:
                self._written_size = size
                self._truncate_file(size)

    def is_full(self, *, reserve: int = 0) -> bool:
        """Whether there is no room for one entry besides `reserve` others."""
        return len(self.entries) + (1 + reserve) * self._entry_size > self._size_max

    def sync(self) -> None:
        if self._is_dirty:
            # Before the work: what is appended beside it waits for the next sync.
            self._is_dirty = False
            self.write_out()
            self._fs.sync_file(self._path)

    def _truncate_file(self, size: int) -> None:
        self._is_dirty = True
        with closing(self._fs.open_writable(self._path)) as file:
            file.truncate(size)
