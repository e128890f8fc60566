"""An index file of the active segment: preallocated on disk, and mirrored in memory.

Kafka maps the file; here every entry is written by position and kept in `entries` as well, so
that a lookup reads memory and a crash test sees each write.
"""

from __future__ import annotations

from pathlib import Path

from isotherm.log.fs import FileSystem


class IndexFile:
    """Append-only entries of one size.

    The file on disk is `size_max` bytes of entries followed by zeros until `trim`.
    Lookups may run beside an append: `entries` only grows in place, truncating replaces it.
    """

    def __init__(self, fs: FileSystem, path: Path, entry_size: int, size_max: int) -> None:
        self._entry_size = entry_size
        self._size_max = size_max - size_max % entry_size
        self._file = fs.open_writable(path)
        self.entries = bytearray()

    def stored(self) -> bytes:
        """What is in the file, padding included."""
        return self._file.read_at(0, self._file.size())

    def load(self, entries: bytes) -> None:
        """Take over the valid entries of an existing file and extend it for appending."""
        self.entries = bytearray(entries)
        self._file.truncate(len(entries))
        self.preallocate()

    def preallocate(self) -> None:
        self._file.truncate(max(self._size_max, len(self.entries)))

    def append(self, entry: bytes) -> None:
        assert len(entry) == self._entry_size
        self._file.write_at(len(self.entries), entry)
        self.entries += entry

    def truncate(self, size: int) -> None:
        """Drop the entries after the first `size` bytes; the rest of the file is zeros again."""
        self.entries = self.entries[:size]
        self._file.truncate(size)
        self.preallocate()

    def is_full(self, *, reserve: int = 0) -> bool:
        """Whether there is no room for one entry besides `reserve` others."""
        return len(self.entries) + (1 + reserve) * self._entry_size > self._size_max

    def sync(self) -> None:
        self._file.sync()

    def trim(self) -> None:
        """Cut the padding off, durable with the next sync; nothing is appended after it.

        The file is not closed here: a flush in another thread may be syncing it.
        """
        self._file.truncate(len(self.entries))
