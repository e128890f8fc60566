"""Indexes of remote segments, kept on the local disk (KIP-405, KIP-1264).

Invariants:
- An entry is *resident* while its files are in the directory and their size is counted. Files of a
  fetch that failed halfway count too. When a call returns, the counted sizes are at most
  `total_size_bytes`; the least recently used entries are evicted first.
- An entry that is not used for `ttl_ms` is expired: it is not served again. The next
  `evict_expired` deletes its files; the owner calls it periodically.
- One thread fetches the indexes of a segment, for all threads that ask for them. No thread waits
  for the fetch of another segment: the lock is not held while the store or a file is read.
- The removal listener is called once for every evicted entry, with the cause, after the eviction
  and outside the lock.
- A file that leaves the cache is renamed with `.deleted` at once and unlinked later, so that no
  reader waits until the file system has freed a large file.

The directory survives a restart: complete sets of files become resident again without a fetch. A
file that is not a valid index is fetched again. After a restart, too: Kafka refuses to start then.
Source: Kafka RemoteIndexCache.java.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.clock import Clock
from isotherm.errors import CorruptIndexError, RemoteResourceNotFoundError, RemoteStorageError
from isotherm.log.fs import FileSystem
from isotherm.remote.indexes.index_cache_entry import (
    INDEX_SUFFIXES,
    IndexFiles,
    RemoteIndexEntry,
    check_index,
    index_files,
    parse_index_file_name,
)
from isotherm.remote.indexes.index_cache_statistics import (
    CacheStatistics,
    RemovalCause,
    RemovalListener,
    RemovedEntry,
)
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.file_names import DELETED_SUFFIX, TEMPORARY_SUFFIX

DIRECTORY_NAME = "remote-log-index-cache"
"""Folder of the cache in the first log directory; not a partition's folder."""

ENTRY_SIZE_MIN = 1024
"""Smallest counted size of an entry. It bounds the number of entries with empty indexes."""

MEMORY_SIZE_BYTES = 32 * 1024 * 1024
"""Bytes of indexes of the most recently used segments that are also kept in memory."""

FILE_DELETE_DELAY_MS = 10_000
"""Time for which a file stays as `.deleted` before it is unlinked; Kafka's value."""

MARKED_FILES_MAX = 3_000
"""With more `.deleted` files than this, all are unlinked at once, without their delay."""


@dataclass(slots=True)
class _Resident:
    files: IndexFiles
    size: int
    last_access_s: float


@dataclass(slots=True)
class _Loading:
    """A fetch in progress. `discarded` is set if the segment is removed meanwhile."""

    done: Future[RemoteIndexEntry] = field(default_factory=Future)
    discarded: bool = False


class RemoteIndexCache:
    """Thread-safe."""

    def __init__(
        self,
        directory: Path,
        storage: RemoteStorageManager,
        *,
        total_size_bytes: int,
        ttl_ms: int,
        clock: Clock,
        fs: FileSystem,
        memory_size_bytes: int = MEMORY_SIZE_BYTES,
        on_removal: RemovalListener | None = None,
        statistics: CacheStatistics | None = None,
        rebuild_transactions: Callable[[RemoteLogSegmentMetadata], bytes] | None = None,
    ) -> None:
        """Take over the files of an earlier process in `directory`. With ttl_ms 0 or -1 nothing
        expires.

        `on_removal` is called in the thread that removed the entry, and must not block.
        `rebuild_transactions` rebuilds a transaction index that the store lacks, or whose content
        is invalid. Raises RemoteStorageError if the directory cannot be used.
        """
        self._rebuild_transactions = rebuild_transactions
        self._directory = directory
        self._storage = storage
        self._total_size_bytes = total_size_bytes
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._fs = fs
        self._memory_size_bytes = memory_size_bytes
        self._on_removal = on_removal
        self._statistics = statistics
        self._removed: deque[RemovedEntry] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._residents: OrderedDict[uuid.UUID, _Resident] = OrderedDict()
        self._resident_size = 0
        self._memory: OrderedDict[uuid.UUID, RemoteIndexEntry] = OrderedDict()
        self._memory_size = 0
        self._loading: dict[uuid.UUID, _Loading] = {}
        self._marked: deque[tuple[float, Path]] = deque()
        with self._disk_errors():
            self._take_over_directory()
        self._report_removals()

    @property
    def entry_count(self) -> int:
        with self._lock:
            return len(self._residents)

    @property
    def size_in_bytes(self) -> int:
        """Counted size of the resident entries."""
        with self._lock:
            return self._resident_size

    def get(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexEntry:
        """The indexes of a segment, fetched if they are not cached.

        Raises what the storage manager raises, CorruptIndexError if it returns an invalid index,
        and RemoteStorageError if the cache's own disk fails. Then no entry is cached and the next
        call tries again; files that arrived whole are not fetched twice.
        """
        key = metadata.segment_id.id
        with self._lock, self._disk_errors():
            self._check_open()
            # Before the look-up, which evicts an expired entry.
            self._count_request(key)
            entry = self._lookup(key)
            if entry is not None:
                return entry
            loading = self._loading.get(key)
            is_loader = loading is None
            if loading is None:
                loading = self._loading[key] = _Loading()
        try:
            if is_loader:
                self._load_for_all(metadata, loading)
        finally:
            self._report_removals()
        return loading.done.result()

    def remove(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """Forget segments that are being deleted remotely; unknown segments are ignored."""
        with self._lock, self._disk_errors():
            for segment_id in segment_ids:
                self._evict(segment_id.id, RemovalCause.EXPLICIT)
                loading = self._loading.get(segment_id.id)
                if loading is not None:
                    # The load would make the segment resident again.
                    loading.discarded = True
        self._report_removals()

    def rebuild_transaction_index(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Rebuild the transaction index from the segment, whose markers contradict it. Raises what
        `get` raises. Without `rebuild_transactions` the segment's indexes are fetched again."""
        if self._rebuild_transactions is None:
            self.remove([metadata.segment_id])
            return
        # Without the lock: it may read the whole segment.
        content = self._rebuild_transactions(metadata)
        files = index_files(metadata)
        path = self._directory / files.name(IndexType.TRANSACTION)
        with self._lock, self._disk_errors():
            self._check_open()
            self._store(path, content, durably=True)
            # The new size counts, also of a segment that was evicted meanwhile, and the entry in
            # memory, which has the old content, goes.
            self._settle(files, None)
        self._report_removals()

    def evict_expired(self) -> None:
        """Evict expired entries, and unlink `.deleted` files that are due."""
        with self._lock, self._disk_errors():
            if self._closed:
                return
            # In the order of their last use: behind one that has not expired, none has.
            while self._residents:
                key, oldest = next(iter(self._residents.items()))
                if not self._is_expired(oldest):
                    break
                self._evict(key, RemovalCause.EXPIRED)
        self._report_removals()
        self._unlink_marked(self._clock.monotonic_s())

    def resize(self, total_size_bytes: int) -> None:
        """Change the bound; a smaller one takes effect at once."""
        with self._lock, self._disk_errors():
            self._total_size_bytes = total_size_bytes
            self._evict_over_size()
        self._report_removals()

    def close(self) -> None:
        """Idempotent. Files stay for the next process; `get` raises ValueError from now on."""
        with self._lock:
            self._closed = True
            self._memory.clear()
            self._residents.clear()

    # -- under the lock

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"remote index cache is closed directory={self._directory}")

    def _lookup(self, key: uuid.UUID) -> RemoteIndexEntry | None:
        """The entry, if it is in memory and has not expired. Its files count as used in any
        case."""
        resident = self._residents.get(key)
        if resident is None:
            return None
        if self._is_expired(resident):
            self._evict(key, RemovalCause.EXPIRED)
            return None
        resident.last_access_s = self._clock.monotonic_s()
        self._residents.move_to_end(key)
        entry = self._memory.get(key)
        if entry is not None:
            self._memory.move_to_end(key)
        return entry

    def _count_request(self, key: uuid.UUID) -> None:
        if self._statistics is not None:
            resident = self._residents.get(key)
            self._statistics.count_request(
                is_hit=resident is not None and not self._is_expired(resident)
            )

    def _is_expired(self, resident: _Resident) -> bool:
        idle_ms = (self._clock.monotonic_s() - resident.last_access_s) * 1000
        return 0 < self._ttl_ms <= idle_ms

    def _settle(self, files: IndexFiles, entry: RemoteIndexEntry | None) -> None:
        """Count the files that a load left. A failed load leaves an incomplete set, which counts
        too: otherwise failing loads could fill the disk."""
        key = files.segment_uuid
        # The files of this load take the place of those that were counted.
        self._forget(key)
        paths = [path for name in files.names() if self._fs.exists(path := self._directory / name)]
        if not paths:
            return
        self._add_resident(files, sum(map(self._fs.file_size, paths)))
        if entry is not None:
            self._memory[key] = entry
            self._memory_size += entry.size
        self._evict_over_size()
        while self._memory_size > self._memory_size_bytes:
            _, dropped = self._memory.popitem(last=False)
            self._memory_size -= dropped.size

    def _add_resident(self, files: IndexFiles, size: int) -> None:
        resident = _Resident(files, max(size, ENTRY_SIZE_MIN), self._clock.monotonic_s())
        self._residents[files.segment_uuid] = resident
        self._resident_size += resident.size

    def _evict_over_size(self) -> None:
        # May evict the entry that was just loaded, if it exceeds the bound alone: readers keep it.
        while self._resident_size > self._total_size_bytes:
            self._evict(next(iter(self._residents)), RemovalCause.SIZE)

    def _evict(self, key: uuid.UUID, cause: RemovalCause) -> None:
        resident = self._forget(key)
        if resident is not None:
            self._mark_files(resident.files)
            self._removed.append(RemovedEntry(resident.files, resident.size, cause))

    def _forget(self, key: uuid.UUID) -> _Resident | None:
        resident = self._residents.pop(key, None)
        if resident is not None:
            self._resident_size -= resident.size
        entry = self._memory.pop(key, None)
        if entry is not None:
            self._memory_size -= entry.size
        return resident

    def _mark_files(self, files: IndexFiles) -> None:
        due_s = self._clock.monotonic_s() + FILE_DELETE_DELAY_MS / 1000
        for name in files.names():
            path = self._directory / name
            marked = self._directory / (name + DELETED_SUFFIX)
            if self._fs.exists(path):
                self._fs.rename(path, marked)
                self._marked.append((due_s, marked))

    # -- outside the lock

    def _report_removals(self) -> None:
        while self._removed:
            try:
                removed = self._removed.popleft()
            except IndexError:  # another thread reports the last one
                return
            if self._statistics is not None:
                self._statistics.count_removal(removed)
            if self._on_removal is not None:
                self._on_removal(removed)

    def _load_for_all(self, metadata: RemoteLogSegmentMetadata, loading: _Loading) -> None:
        """Load the indexes, and pass the result or the error to all threads that wait."""
        files = index_files(metadata)
        entry: RemoteIndexEntry | None = None
        try:
            with self._disk_errors():
                entry = self._load(metadata, files)
        except BaseException as error:
            # For all that wait: one retry after the other would meet the same failing store.
            loading.done.set_exception(error)
            raise
        else:
            loading.done.set_result(entry)
        finally:
            with self._lock, self._disk_errors():
                del self._loading[files.segment_uuid]
                # The segment was deleted during the fetch: keep no indexes of it.
                if loading.discarded:
                    self._mark_files(files)
                elif not self._closed:
                    self._settle(files, entry)
        if len(self._marked) > MARKED_FILES_MAX:
            self._unlink_marked(float("inf"))

    def _load(self, metadata: RemoteLogSegmentMetadata, files: IndexFiles) -> RemoteIndexEntry:
        contents = [self._load_index(metadata, files, kind) for kind in INDEX_SUFFIXES]
        return RemoteIndexEntry(metadata.start_offset, *contents)

    def _load_index(
        self, metadata: RemoteLogSegmentMetadata, files: IndexFiles, kind: IndexType
    ) -> bytes:
        path = self._directory / files.name(kind)
        try:
            content = self._fs.read_bytes(path)
            check_index(kind, content, metadata.start_offset)
        except FileNotFoundError:
            pass
        except CorruptIndexError:
            self._fs.remove(path)
        else:
            return content
        content = self._fetch_checked(metadata, kind)
        self._store(path, content, durably=kind is IndexType.TRANSACTION)
        return content

    def _fetch_checked(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        try:
            content = self._fetch(metadata, kind)
            check_index(kind, content, metadata.start_offset)
        except CorruptIndexError:
            if kind is not IndexType.TRANSACTION or self._rebuild_transactions is None:
                raise
            content = self._rebuild_transactions(metadata)
        return content

    def _fetch(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        if kind is IndexType.TRANSACTION and metadata.txn_index_empty:
            return b""
        if self._statistics is not None:
            self._statistics.count_fetch()
        if kind is not IndexType.TRANSACTION:
            return self._storage.fetch_index(metadata, kind)
        try:
            return self._storage.fetch_index(metadata, kind)
        except RemoteResourceNotFoundError:
            # Segments that older brokers copied lack the flag, whether or not they have the index.
            return (
                b"" if self._rebuild_transactions is None else self._rebuild_transactions(metadata)
            )

    def _store(self, path: Path, content: bytes, *, durably: bool) -> None:
        """Write a file; with `durably`, as for a transaction index, with fsync.

        A power failure may leave a file of zeros. A zeroed offset or time index only makes look-ups
        start too early. A zeroed transaction index would show aborted records as committed."""
        if durably and content:
            self._fs.write_atomically(path, content)
            return
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._fs.write_bytes(temporary, content)
        self._fs.rename(temporary, path)

    def _unlink_marked(self, now_s: float) -> None:
        """Unlink the `.deleted` files that are due. A failed one is retried at the next call."""
        while True:
            with self._lock:
                if not self._marked or self._marked[0][0] > now_s:
                    return
                marked = self._marked.popleft()
            try:
                # Without the lock: a file system may take long to free a large file.
                with self._disk_errors():
                    self._fs.remove(marked[1])
            except RemoteStorageError:
                with self._lock:
                    self._marked.append(marked)
                raise

    # -- start

    def _take_over_directory(self) -> None:
        self._fs.make_directory(self._directory)
        sets: dict[IndexFiles, dict[IndexType, int]] = {}
        modified_ms: dict[IndexFiles, int] = {}
        for name in self._fs.list_names(self._directory):
            path = self._directory / name
            if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)):
                self._fs.remove(path)
            elif (parsed := parse_index_file_name(name)) is not None:
                files, kind = parsed
                sets.setdefault(files, {})[kind] = self._fs.file_size(path)
                modified_ms[files] = self._fs.modified_ms(path)
        # The uses are not known. Files that were written last are evicted last.
        for files in sorted(sets, key=lambda files: modified_ms[files]):
            if len(sets[files]) == len(INDEX_SUFFIXES):
                self._add_resident(files, sum(sets[files].values()))
            else:
                for kind in sets[files]:
                    self._fs.remove(self._directory / files.name(kind))
        self._evict_over_size()

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RemoteStorageError(
                f"remote index cache cannot use its disk directory={self._directory}"
            ) from error
