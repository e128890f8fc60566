"""A file system that fails on purpose, and counts its calls.

fs = FaultyFileSystem()
fs.fail(directory)          # every call for a path in there raises OSError, until `heal`
fs.read_sizes[path]         # bytes read of a file so far
fs.sync_counts[path]        # syncs of a file so far
fs.open_counts[path]        # how often a file was opened, or was to be
"""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

from isotherm.log.fs import File, FileLock, OsFileSystem
from isotherm.segment.file_names import TEMPORARY_SUFFIX
from isotherm.segment.offset_index import Buffer
from isotherm.types import Position, TimestampMs


class FaultyFileSystem:
    """A `FileSystem` over the real one. Thread-safe, except for reading the counts."""

    def __init__(self) -> None:
        self._os = OsFileSystem()
        self._failing: frozenset[Path] = frozenset()
        self.read_sizes: Counter[Path] = Counter()
        self.sync_counts: Counter[Path] = Counter()
        self.open_counts: Counter[Path] = Counter()

    def fail(self, directory: Path) -> None:
        self._failing |= {directory}

    def heal(self) -> None:
        self._failing = frozenset()

    def check(self, path: Path) -> None:
        """Raise the OSError of a failed disk if `path` is on one."""
        for directory in self._failing:
            if path.is_relative_to(directory):
                raise OSError(errno.EIO, "the disk has failed", str(path))

    def open_readable(self, path: Path) -> File:
        self.check(path)
        self.open_counts[path] += 1
        return _CheckedFile(self, path, self._os.open_readable(path))

    def open_writable(self, path: Path) -> File:
        self.check(path)
        self.open_counts[path] += 1
        return _CheckedFile(self, path, self._os.open_writable(path))

    def read_bytes(self, path: Path) -> bytes:
        self.check(path)
        self.open_counts[path] += 1
        data = self._os.read_bytes(path)
        self.read_sizes[path] += len(data)
        return data

    def write_bytes(self, path: Path, data: Buffer) -> None:
        self.check(path)
        self._os.write_bytes(path, data)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        self.check(path)
        self._os.write_atomically(path, data)
        self.sync_counts[path.with_name(path.name + TEMPORARY_SUFFIX)] += 1
        self.sync_counts[path.parent] += 1

    def rename(self, source: Path, target: Path) -> None:
        self.check(source)
        self._os.rename(source, target)

    def remove(self, path: Path) -> None:
        self.check(path)
        self._os.remove(path)

    def exists(self, path: Path) -> bool:
        self.check(path)
        return self._os.exists(path)

    def file_size(self, path: Path) -> int:
        self.check(path)
        return self._os.file_size(path)

    def modified_ms(self, path: Path) -> TimestampMs:
        self.check(path)
        return self._os.modified_ms(path)

    def set_modified_ms(self, path: Path, modified_ms: TimestampMs) -> None:
        self.check(path)
        self._os.set_modified_ms(path, modified_ms)

    def list_names(self, directory: Path) -> list[str]:
        self.check(directory)
        return self._os.list_names(directory)

    def make_directory(self, path: Path) -> None:
        self.check(path)
        self._os.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self.check(path)
        self._os.remove_directory(path)

    def sync_file(self, path: Path) -> None:
        self.check(path)
        self._os.sync_file(path)
        self.sync_counts[path] += 1

    def sync_directory(self, path: Path) -> None:
        self.check(path)
        self._os.sync_directory(path)
        self.sync_counts[path] += 1

    def lock(self, path: Path) -> FileLock:
        self.check(path)
        return self._os.lock(path)


class _CheckedFile:
    def __init__(self, fs: FaultyFileSystem, path: Path, file: File) -> None:
        self._fs = fs
        self._path = path
        self._file = file

    def read_at(self, position: Position, size: int) -> bytes:
        self._fs.check(self._path)
        data = self._file.read_at(position, size)
        self._fs.read_sizes[self._path] += len(data)
        return data

    def write_at(self, position: Position, data: Buffer) -> None:
        self._fs.check(self._path)
        self._file.write_at(position, data)

    def truncate(self, size: int) -> None:
        self._fs.check(self._path)
        self._file.truncate(size)

    def size(self) -> int:
        self._fs.check(self._path)
        return self._file.size()

    def sync(self) -> None:
        self._fs.check(self._path)
        self._file.sync()
        self._fs.sync_counts[self._path] += 1

    def close(self) -> None:
        self._file.close()
