"""An index file of the active segment, mirrored in memory.

Kafka maps the file into memory, and preallocates it with zeros for that. Here lookups read
`entries` in memory. The file gets one page of entries at a time, and the rest when it is synced or
the segment is closed: a write per entry would cost as much as writing the producer's batch. Entries
that an unclean stop loses are rebuilt from the log, like all entries of batches that were not
flushed. The file is opened only for writing, which is rare. So a partition holds one descriptor, of
its log, like Kafka's with mapped indexes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from isotherm.log.fs import FileSystem

# Entries in bytes that are not written yet: one page, which the system writes as a whole anyway.
UNWRITTEN_SIZE_MAX = 4096


class IndexFile:
    """Append-only entries of one size, at most `size_max` bytes.

    Lookups and `sync` may run during an append: `entries` only grows in place, and truncation
    replaces it.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        entry_size: int,
        size_max: int,
        count_entries: Callable[[bytes], int],
        stored: bytes | None = None,
    ) -> None:
        """Continues after the entries in the file; `count_entries` returns their number. `stored`
        is the content of the file, if it has been read.

        Bytes after them, such as the padding that an unclean stop of Kafka leaves, are cut off. A
        missing file is created.
        """
        self._entry_size = entry_size
        self.size_full = size_max - size_max % entry_size
        """`entries` of this size have no room for another one."""
        self._fs = fs
        self._path = path
        # Keeps a sync from writing while the file is truncated.
        self._write_lock = threading.Lock()
        if stored is None:
            stored = b""
            try:
                stored = fs.read_bytes(path)
            except FileNotFoundError:
                fs.open_writable(path).close()
        # Whether the file or the unwritten entries have changed since the last sync.
        self._is_dirty = True
        self._written_size = count_entries(stored) * entry_size
        self.entries = bytearray(stored[: self._written_size])
        if len(stored) > self._written_size:
            self._truncate_file(self._written_size)

    def append(self, entries: bytes) -> None:
        """Append an entry, or several."""
        assert len(entries) % self._entry_size == 0
        self.entries += entries
        # Set after the entries are there: a sync in between would reset it too early.
        self._is_dirty = True
        if len(self.entries) - self._written_size >= UNWRITTEN_SIZE_MAX:
            self.write_out()

    def write_out(self) -> None:
        """Write the entries that are not in the file yet."""
        with self._write_lock:
            unwritten = self.entries[self._written_size :]
            if unwritten:
                with closing(self._fs.open_writable(self._path)) as file:
                    file.write_at(self._written_size, unwritten)
                self._written_size += len(unwritten)

    def truncate(self, size: int) -> None:
        """Drop the entries after the first `size` bytes."""
        with self._write_lock:
            # A new object: a lookup in progress keeps the old one.
            self.entries = self.entries[:size]
            if self._written_size > size:
                self._written_size = size
                self._truncate_file(size)

    def sync(self) -> None:
        if self._is_dirty:
            # Reset first: an entry that is appended meanwhile sets it again, for the next sync.
            self._is_dirty = False
            self.write_out()
            self._fs.sync_file(self._path)

    def _truncate_file(self, size: int) -> None:
        self._is_dirty = True
        with closing(self._fs.open_writable(self._path)) as file:
            file.truncate(size)
