"""A file system that can crash: the disk then has all durable data, and a random part of the rest.

`CrashFileSystem` works on a real directory. Beside it, it keeps the state of a disk after a power
failure: the content of each file at its last sync and later writes, the names in each directory at
its last sync and later changes. `survivors` gives one possible outcome, by a model of the disk, and
`crash_clone` writes one into another directory. `crash_at` stops the system: the operation with
that number, and every later one, raises `SimulatedCrash`. `on_operation` is called at each
operation with its number, and may take an outcome: a power failure at that point, while the run
continues.

Changes of names survive in order (as in journaling file systems), with the surviving content of the
file. Simplified: creations and renames of directories are durable at once.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.log.fs import File, FileLock, OsFileSystem
from isotherm.segment.file_names import TEMPORARY_SUFFIX
from isotherm.segment.offset_index import Buffer
from isotherm.types import Position, TimestampMs


class SimulatedCrash(BaseException):
    """The machine stopped. Not an Exception: no handler may catch it."""


class PowerLoss(enum.Enum):
    """The fate of data that was not synced."""

    WRITES = "any of the writes and truncations, the last of them in part; names up to some change"
    SYNCED = "nothing"
    NAMES = "every name, and no content"
    FILES = "all of a file or nothing of it; names up to some change"
    PAGES = "any of the pages, and zeros for others; every name"


PAGE_SIZE = 4096


@dataclass(slots=True)
class _Write:
    position: Position
    data: bytes


@dataclass(slots=True)
class _Truncation:
    size: int


@dataclass(slots=True)
class _Inode:
    durable: bytes = b""
    pending: list[_Write | _Truncation] = field(default_factory=list)


@dataclass(slots=True)
class _NameChange:
    """`inode` gets the name `path`; None removes the name. `source` is the old name of a rename."""

    path: Path
    inode: _Inode | None
    source: Path | None = None


Files = tuple[tuple[Path, bytes], ...]
"""The content of files, in the order of their paths, which are relative to one directory."""


class CrashFileSystem:
    """A `FileSystem`. The counted operations are thread-safe."""

    def __init__(
        self,
        crash_at: int | None = None,
        on_operation: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._os = OsFileSystem()
        self._inodes: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._name_changes: dict[Path, list[_NameChange]] = {}
        self._crash_at = crash_at
        self._on_operation = on_operation
        self._lock = threading.RLock()
        self.operation_count = 0
        """Writes, truncations, syncs and changes of names so far."""

    @classmethod
    def adopting(
        cls,
        directory: Path,
        crash_at: int | None = None,
        on_operation: Callable[[int], None] = lambda number: None,
    ) -> CrashFileSystem:
        """A file system over `directory`. Existing files are durable."""
        fs = cls(crash_at, on_operation)
        for path in directory.rglob("*"):
            if path.is_file():
                fs._inodes[path] = fs._durable_names[path] = _Inode(path.read_bytes())
        return fs

    def crash_clone(
        self,
        rng: random.Random,
        source: Path,
        target: Path,
        model: PowerLoss = PowerLoss.WRITES,
    ) -> None:
        """Write into `target` a possible content of `source` after a crash now."""
        with self._lock:
            write_files(self.survivors(rng, source, model), target)

    def survivors(
        self, rng: random.Random, source: Path, model: PowerLoss = PowerLoss.WRITES
    ) -> Files:
        """A possible content of `source` after a crash now."""
        with self._lock:
            return tuple(
                (path.relative_to(source), _surviving_content(inode, rng, model))
                for path, inode in sorted(self._surviving_names(rng, model).items())
                if path.is_relative_to(source)
            )

    def _surviving_names(self, rng: random.Random, model: PowerLoss) -> dict[Path, _Inode]:
        names = dict(self._durable_names)
        for changes in self._name_changes.values():
            # A prefix: a journaling file system keeps the order of a directory's changes.
            count = rng.randint(0, len(changes))
            if model in (PowerLoss.NAMES, PowerLoss.PAGES):
                count = len(changes)
            elif model is PowerLoss.SYNCED:
                count = 0
            for change in changes[:count]:
                _apply(names, change)
        return names

    def _count(self) -> None:
        """Count an operation. Raises SimulatedCrash at `crash_at` and for every later operation."""
        self.operation_count += 1
        if self._crash_at is not None and self.operation_count >= self._crash_at:
            raise SimulatedCrash(f"operation={self.operation_count}")
        self._on_operation(self.operation_count)

    def _change_name(self, change: _NameChange) -> None:
        self._name_changes.setdefault(change.path.parent, []).append(change)
        _apply(self._inodes, change)

    # Changes that other code makes to files of this system

    def note_created(self, path: Path) -> None:
        with self._lock:
            self._count()
            self._change_name(_NameChange(path, _Inode()))

    def note_synced(self, path: Path) -> None:
        """Make the present content of a file durable."""
        with self._lock:
            self._count()
            self._inodes[path].durable = path.read_bytes()

    def note_renamed(self, source: Path, target: Path) -> None:
        with self._lock:
            self._count()
            self._change_name(_NameChange(target, self._inodes[source], source))

    # Called by the files

    def record_write(self, inode: _Inode, file: File, write: _Write) -> None:
        with self._lock:
            # Before it is counted: an interrupted write may reach the disk up to any byte.
            inode.pending.append(write)
            self._count()
            file.write_at(write.position, write.data)

    def record_truncation(self, inode: _Inode, file: File, size: int) -> None:
        with self._lock:
            self._count()
            file.truncate(size)
            inode.pending.append(_Truncation(size))

    def record_sync(self, inode: _Inode, file: File) -> None:
        with self._lock:
            self._count()
            inode.durable = file.read_at(0, file.size())
            inode.pending.clear()

    # FileSystem

    def open_readable(self, path: Path) -> File:
        return _CrashFile(self, self._os.open_readable(path), self._inodes[path])

    def open_writable(self, path: Path) -> File:
        with self._lock:
            if path not in self._inodes:
                self._count()
                self._change_name(_NameChange(path, _Inode()))
            return _CrashFile(self, self._os.open_writable(path), self._inodes[path])

    def read_bytes(self, path: Path) -> bytes:
        return self._os.read_bytes(path)

    def write_bytes(self, path: Path, data: Buffer) -> None:
        file = self.open_writable(path)
        file.truncate(0)
        file.write_at(0, data)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        file = self.open_writable(temporary)
        file.truncate(0)
        file.write_at(0, data)
        file.sync()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._count()
            self._os.rename(source, target)
            if source in self._inodes:
                self._change_name(_NameChange(target, self._inodes[source], source))
            else:
                self._move_directory(source, target)

    def _move_directory(self, source: Path, target: Path) -> None:
        for names in (self._inodes, self._durable_names):
            for path in [path for path in names if path.is_relative_to(source)]:
                names[target / path.relative_to(source)] = names.pop(path)

    def remove(self, path: Path) -> None:
        with self._lock:
            if path in self._inodes:
                self._count()
                self._os.remove(path)
                self._change_name(_NameChange(path, None))

    def exists(self, path: Path) -> bool:
        return self._os.exists(path)

    def file_size(self, path: Path) -> int:
        return self._os.file_size(path)

    def modified_ms(self, path: Path) -> TimestampMs:
        return self._os.modified_ms(path)

    def set_modified_ms(self, path: Path, modified_ms: TimestampMs) -> None:
        self._os.set_modified_ms(path, modified_ms)

    def list_names(self, directory: Path) -> list[str]:
        return self._os.list_names(directory)

    def make_directory(self, path: Path) -> None:
        self._os.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        with self._lock:
            self._count()
            self._os.remove_directory(path)
            for name in [name for name in self._inodes if name.is_relative_to(path)]:
                self._change_name(_NameChange(name, None))

    def sync_file(self, path: Path) -> None:
        if path in self._inodes:
            self.open_readable(path).sync()

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._count()
            for change in self._name_changes.pop(path, []):
                _apply(self._durable_names, change)

    def lock(self, path: Path) -> FileLock:
        return self._os.lock(path)


class _CrashFile:
    def __init__(self, fs: CrashFileSystem, file: File, inode: _Inode) -> None:
        self._fs = fs
        self._file = file
        self._inode = inode

    def read_at(self, position: Position, size: int) -> bytes:
        return self._file.read_at(position, size)

    def write_at(self, position: Position, data: Buffer) -> None:
        self._fs.record_write(self._inode, self._file, _Write(position, bytes(data)))

    def truncate(self, size: int) -> None:
        self._fs.record_truncation(self._inode, self._file, size)

    def size(self) -> int:
        return self._file.size()

    def sync(self) -> None:
        self._fs.record_sync(self._inode, self._file)

    def close(self) -> None:
        self._file.close()


def write_files(files: Files, target: Path) -> None:
    for path, content in files:
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)


def _apply(names: dict[Path, _Inode], change: _NameChange) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.inode is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.inode


def _surviving_content(inode: _Inode, rng: random.Random, model: PowerLoss) -> bytes:
    if model in (PowerLoss.SYNCED, PowerLoss.NAMES):
        return inode.durable
    if model is PowerLoss.FILES:
        return _written(inode) if rng.random() < 0.5 else inode.durable
    if model is PowerLoss.PAGES:
        return _surviving_pages(inode.durable, _written(inode), rng)
    if not inode.pending:
        return inode.durable  # not a copy: many outcomes may be kept
    content = bytearray(inode.durable)
    # Any subset may survive: without a sync a disk does not keep the order of writes.
    for operation in inode.pending:
        if rng.random() < 0.5:
            continue
        if isinstance(operation, _Write) and rng.random() < 0.5:
            kept = rng.randint(0, len(operation.data))
            operation = _Write(operation.position, operation.data[:kept])
        _do(operation, content)
    return bytes(content)


def _written(inode: _Inode) -> bytes:
    content = bytearray(inode.durable)
    for operation in inode.pending:
        _do(operation, content)
    return bytes(content)


def _surviving_pages(durable: bytes, written: bytes, rng: random.Random) -> bytes:
    content = bytearray(durable)
    _resize(content, len(written) if rng.random() < 0.5 else min(len(durable), len(written)))
    for start in range(0, len(written), PAGE_SIZE):
        page = written[start : start + PAGE_SIZE]
        if page != durable[start : start + PAGE_SIZE] and rng.random() < 0.7:
            _do(_Write(start, page), content)
    return bytes(content)


def _do(operation: _Write | _Truncation, content: bytearray) -> None:
    if isinstance(operation, _Truncation):
        _resize(content, operation.size)
        return
    end = operation.position + len(operation.data)
    _resize(content, max(len(content), end))
    content[operation.position : end] = operation.data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))
