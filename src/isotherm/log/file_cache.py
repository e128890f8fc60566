"""Open files and index bytes of closed segments, shared by the logs of a process and bounded.

Reading a segment needs a descriptor and its offset index. Both are kept for the segments read
last: as many files as `log.dir.open.files.max` allows, and INDEX_CACHE_SIZE_MAX of index bytes.
Evicting only drops the cache's reference; a reader that still holds the file goes on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from isotherm.log.fs import File, FileSystem

# 128 segments of 1 GiB in batches of 16 KiB have 512 KiB of offset index each.
INDEX_CACHE_SIZE_MAX = 64 * 1024 * 1024

OPEN_FILES_MAX = 512

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Least recently used values by path, up to a total weight. Thread-safe.

    A value heavier than the bound is returned and not kept. Two threads that miss at once both
    load; one of the values is kept.
    """

    def __init__(self, weight_max: int, weigh: Callable[[Value], int]) -> None:
        self._weight_max = weight_max
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Path, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path, load: Callable[[Path], Value]) -> Value:
        with self._lock:
            value = self._values.get(path)
            if value is not None:
                self._values.move_to_end(path)
                return value
        value = load(path)
        with self._lock:
            self._forget(path)
            self._values[path] = value
            self._weight += self._weigh(value)
            while self._weight > self._weight_max:
                _, evicted = self._values.popitem(last=False)
                self._weight -= self._weigh(evicted)
        return value

    def discard(self, path: Path) -> None:
        with self._lock:
            self._forget(path)

    def __len__(self) -> int:
        return len(self._values)

    def _forget(self, path: Path) -> None:
        value = self._values.pop(path, None)
        if value is not None:
            self._weight -= self._weigh(value)


class FileCache:
    def __init__(
        self,
        fs: FileSystem,
        open_files_max: int = OPEN_FILES_MAX,
        index_size_max: int = INDEX_CACHE_SIZE_MAX,
    ) -> None:
        self.fs = fs
        self._files: BoundedCache[File] = BoundedCache(open_files_max, lambda file: 1)
        self._indexes: BoundedCache[bytes] = BoundedCache(index_size_max, len)

    def file(self, path: Path) -> File:
        """A file open for reading. FileNotFoundError when it was renamed meanwhile."""
        return self._files.get(path, self.fs.open_readable)

    def index(self, path: Path) -> bytes:
        """The bytes of an index that no longer changes."""
        return self._indexes.get(path, self.fs.read_bytes)

    def discard(self, paths: Iterable[Path]) -> None:
        """Forget files that were renamed, removed or changed."""
        for path in paths:
            self._files.discard(path)
            self._indexes.discard(path)
