"""An index file of the active segment, mirrored in memory.

Kafka maps the file, and preallocates it with zeros for that; here every entry is written by position
and kept in `entries` as well, so
that a lookup reads memory and a crash test sees each write.
"""

from __future__ import annotations

from pathlib import Path

from isotherm.log.fs import FileSystem


class IndexFile:
    """Append-only entries of one size, `size_max` bytes of them at most.

    Lookups may run beside an append: `entries` only grows in place, truncating replaces it.
    """

    def __init__(self, fs: FileSystem, path: Path, entry_size: int, size_max: int) -> None:
        self._entry_size = entry_size
        self._size_max = size_max - size_max % entry_size
        self._file = fs.open_writable(path)
        self.entries = bytearray()

    def stored(self) -> bytes:
        """What is in the file, with the padding that an unclean stop of Kafka leaves."""
        return self._file.read_at(0, self._file.size())

    def load(self, size: int) -> None:
        """Take over the first `size` bytes of the file; what follows is no entry."""
        stored = self.stored()
        self.entries = bytearray(stored[:size])
        if len(stored) > size:
            self._file.truncate(size)

    def append(self, entry: bytes) -> None:
        assert len(entry) == self._entry_size
        self._file.write_at(len(self.entries), entry)
        self.entries += entry

    def truncate(self, size: int) -> None:
        """Drop the entries after the first `size` bytes."""
        self.entries = self.entries[:size]
        self._file.truncate(size)

    def is_full(self, *, reserve: int = 0) -> bool:
        """Whether there is no room for one entry besides `reserve` others."""
        return len(self.entries) + (1 + reserve) * self._entry_size > self._size_max

    def sync(self) -> None:
        self._file.sync()
