"""A bounded cache of open files and index bytes of closed segments, shared by all logs.

Reading a segment needs a file descriptor and its offset index. Both are kept for the segments that
were read last: `log.dir.open.files.max` files, and INDEX_CACHE_SIZE_MAX bytes of indexes.
Eviction drops only the cache's reference: readers that hold the file continue.

Keys belong to a segment, not to a file name: compaction gives a name to another segment.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from isotherm.log.fs import File, FileSystem

# 128 segments of 1 GiB in batches of 16 KiB have 512 KiB of offset index each.
INDEX_CACHE_SIZE_MAX = 64 * 1024 * 1024

OPEN_FILES_MAX = 512

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Least recently used values by key, up to a total weight. Thread-safe.

    A value heavier than the limit is returned but not kept. Two threads that miss at the same
    time both load the value; one of the two is kept.
    """

    def __init__(self, weight_max: int, weigh: Callable[[Value], int]) -> None:
        self._weight_max = weight_max
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], Value]) -> Value:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
                return value
        # Without the lock: loading is I/O, and readers of other keys must not wait for it.
        value = load()
        with self._lock:
            # Another thread may have loaded it meanwhile. Its weight must not count twice.
            self._forget(key)
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._weight_max:
                _, evicted = self._values.popitem(last=False)
                self._weight -= self._weigh(evicted)
        return value

    def peek(self, key: Hashable) -> Value | None:
        """The value, if it is kept. It does not count as used."""
        return self._values.get(key)

    def discard(self, keys: Iterable[Hashable]) -> None:
        with self._lock:
            if self._values:
                for key in keys:
                    self._forget(key)

    def __len__(self) -> int:
        return len(self._values)

    def _forget(self, key: Hashable) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._weight -= self._weigh(value)


class FileCache:
    def __init__(self, fs: FileSystem, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.fs = fs
        self._files: BoundedCache[File] = BoundedCache(open_files_max, lambda file: 1)
        self._indexes: BoundedCache[bytes] = BoundedCache(INDEX_CACHE_SIZE_MAX, len)

    def file(self, key: Hashable, load: Callable[[], File]) -> File:
        """The open file of a segment, for reading."""
        return self._files.get(key, load)

    def index(self, key: Hashable, load: Callable[[], bytes]) -> bytes:
        """The bytes of an index that does not change any more."""
        return self._indexes.get(key, load)

    def kept_index(self, key: Hashable) -> bytes | None:
        """The bytes of an index, if they are in memory."""
        return self._indexes.peek(key)

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Drop files that were removed or changed."""
        kept = tuple(keys)
        self._files.discard(kept)
        self._indexes.discard(kept)
