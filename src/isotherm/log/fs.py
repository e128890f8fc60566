"""Files as a parameter. All code of the log that accesses a disk takes a `FileSystem`.

`OsFileSystem` is the only place that calls the operating system. Crash tests pass
`tests/support/crash_fs.py`. Every method raises OSError. The log translates it to
LogDirFailedError once, where the directory is known.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import ClassVar, Protocol

from isotherm.segment.file_names import TEMPORARY_SUFFIX
from isotherm.segment.offset_index import Buffer
from isotherm.types import Position, TimestampMs


class File(Protocol):
    """An open file, accessed by position: calls from several threads do not affect each other.

    Nothing written is durable before `sync` returns.
    """

    def read_at(self, position: Position, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def write_at(self, position: Position, data: Buffer) -> None:
        """Write all of `data`. After an error any part of it may have been written."""

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with (sparse) zeros."""

    def size(self) -> int: ...

    def sync(self) -> None:
        """Make content and size durable, but not the file's name (`sync_directory`)."""

    def close(self) -> None:
        """Close a file with a single user. A shared file is closed with its last reference, so
        that no reader uses a reused descriptor. Idempotent."""


class FileLock(Protocol):
    def release(self) -> None: ...


class FileSystem(Protocol):
    def open_readable(self, path: Path) -> File: ...

    def open_writable(self, path: Path) -> File:
        """Open for reading and writing. A missing file is created empty."""

    def read_bytes(self, path: Path) -> bytes: ...

    def write_bytes(self, path: Path, data: Buffer) -> None:
        """Write a whole file, replacing its content. Not durable, not atomic."""

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """Replace a whole file durably: after a crash it has the old or the new content."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing `target`. Durable once the directory is synced."""

    def remove(self, path: Path) -> None:
        """Remove a file. No error if it does not exist."""

    def exists(self, path: Path) -> bool: ...

    def file_size(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> TimestampMs: ...

    def set_modified_ms(self, path: Path, modified_ms: TimestampMs) -> None:
        """Not durable: if it is lost in a crash, the file has its real modification time."""

    def list_names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""

    def make_directory(self, path: Path) -> None:
        """Create a directory with its parents. No error if it exists."""

    def remove_directory(self, path: Path) -> None:
        """Remove a directory with its content. No error if it does not exist."""

    def sync_file(self, path: Path) -> None:
        """Make a file's content durable. No error if it does not exist (any more)."""

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and removals in the directory durable."""

    def lock(self, path: Path) -> FileLock:
        """Take an exclusive lock that ends with the process. Raises BlockingIOError if it is
        taken."""


def read_if_exists(fs: FileSystem, path: Path) -> bytes | None:
    """The content of a file; None if it does not exist. One system call fewer than `exists` before
    it."""
    try:
        return fs.read_bytes(path)
    except FileNotFoundError:
        return None


class OsFile:
    """A file descriptor that is used with pread and pwrite only."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, flags: int) -> None:
        # Set first: `__del__` runs even if `open` fails.
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def read_at(self, position: Position, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if not data or len(data) == size:
            return data
        # Linux returns at most 2 GiB per call, and other systems less.
        parts = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._descriptor, missing, position + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def write_at(self, position: Position, data: Buffer) -> None:
        written = os.pwrite(self._descriptor, data, position)
        while written < len(data):
            written += os.pwrite(self._descriptor, memoryview(data)[written:], position + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OsFileLock:
    """A lock between processes, and within a process.

    POSIX locks belong to the process: a second lock on the same file would succeed, and closing
    it would release the first. So the paths locked by this process are recorded as well.
    """

    __slots__ = ("_descriptor", "_path")

    _held: ClassVar[set[Path]] = set()
    _held_guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        with self._held_guard:
            if self._path in self._held:
                raise BlockingIOError(errno.EAGAIN, "locked by this process", str(path))
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._descriptor)
                raise
            self._held.add(self._path)

    def release(self) -> None:
        with self._held_guard:
            if self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)
                self._held.discard(self._path)


class OsFileSystem:
    def open_readable(self, path: Path) -> File:
        return OsFile(path, os.O_RDONLY)

    def open_writable(self, path: Path) -> File:
        return OsFile(path, os.O_RDWR | os.O_CREAT)

    def read_bytes(self, path: Path) -> bytes:
        # Four system calls. A file object makes nine, and a start reads five files per partition.
        file = OsFile(path, os.O_RDONLY)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def write_bytes(self, path: Path, data: Buffer) -> None:
        path.write_bytes(data)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        file = OsFile(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            # Synced before the rename: a crash could otherwise leave the new name with no content.
            file.write_at(0, data)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        # The rename is durable only with its directory.
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def file_size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> TimestampMs:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, modified_ms: TimestampMs) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list_names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove_directory(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def sync_file(self, path: Path) -> None:
        try:
            file = self.open_readable(path)
        except FileNotFoundError:
            return
        # fsync writes all of a file, whichever descriptor it is called on.
        file.sync()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> FileLock:
        return OsFileLock(path)
