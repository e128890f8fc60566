"""RemoteIndexCache against the cases of Kafka's RemoteIndexCacheTest and of KIP-1264, whose names
are in parentheses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import CorruptIndexError, RemoteResourceNotFoundError, RemoteStorageError
from isotherm.log.fs import OsFileSystem
from isotherm.metrics.registry import Metrics
from isotherm.remote.indexes.index_cache import (
    ENTRY_SIZE_MIN,
    FILE_DELETE_DELAY_MS,
    RemoteIndexCache,
)
from isotherm.remote.indexes.index_cache_statistics import (
    CacheStatistics,
    RemovalCause,
    RemovedEntry,
)
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.testing.segment_files import (
    FIRST_INDEXED_TIMESTAMP_MS,
    MadeSegment,
    SegmentMaker,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import uuid_to_text

TTL_MS = 900_000
INDEX_ENTRIES = 200
ENTRY_SIZE = INDEX_ENTRIES * (8 + 12)
SUFFIXES = (".index", ".timeindex", ".txnindex")
CACHED = (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION)
# Ends a test that hangs. No assertion depends on it.
HUNG_S = 30


class IndexStore:
    """Serves indexes from memory and counts the fetches. Any other call fails."""

    def __init__(self) -> None:
        self.fetched: Counter[IndexType] = Counter()
        self.segments: dict[RemoteLogSegmentMetadata, MadeSegment] = {}
        self.answers: dict[IndexType, bytes | Exception] = {}
        self.before_answer: Callable[[RemoteLogSegmentMetadata], None] = lambda metadata: None

    def add(self, segment: MadeSegment) -> RemoteLogSegmentMetadata:
        self.segments[segment.metadata.segment_id.id] = segment
        return segment.metadata

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        self.fetched[index_type] += 1
        self.before_answer(metadata)
        answer = self.answers.get(index_type)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        content = self.segments[metadata.segment_id.id].index_bytes(index_type)
        if content is None:
            raise RemoteResourceNotFoundError("no such index")
        return content


class Setup:
    """A folder and a store of indexes. Caches over them are like restarts of one."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "remote-log-index-cache"
        self.maker = SegmentMaker(tmp_path / "segments")
        self.partition = self.maker.partition()
        self.store = IndexStore()
        self.clock = SimClock()

    def cache(self, entries: float = 100, ttl_ms: int = TTL_MS, **options: Any) -> RemoteIndexCache:
        """A cache with room for so many entries of `segment`."""
        return RemoteIndexCache(
            self.directory,
            self.store,
            total_size_bytes=int(entries * ENTRY_SIZE),
            ttl_ms=ttl_ms,
            clock=self.clock,
            fs=OsFileSystem(),
            **options,
        )

    def segment(self, **options: object) -> RemoteLogSegmentMetadata:
        options = {"start_offset": 0, "index_entries": INDEX_ENTRIES, **options}
        return self.store.add(self.maker.segment(self.partition, size=2_000_000, **options))

    def path(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> Path:
        stem = f"{metadata.start_offset}_{uuid_to_text(metadata.segment_id.id)}"
        return self.directory / f"{stem}{suffix}"

    def files(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def live_files(self, *segments: RemoteLogSegmentMetadata) -> set[str]:
        return {self.path(metadata, suffix).name for metadata in segments for suffix in SUFFIXES}

    def fetches(self) -> int:
        """The number of fetched offset indexes, one for each segment whose indexes were fetched."""
        return self.store.fetched[IndexType.OFFSET]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


# -- what is fetched, and where it lies


def test_files_bear_kafkas_names(setup: Setup) -> None:
    """(testIndexFileNameAndLocationOnDisk)"""
    metadata = setup.segment(start_offset=12_345, with_transaction_index=False)
    setup.cache().get(metadata)
    assert setup.files() == setup.live_files(metadata)
    assert any(name.startswith("12345_") for name in setup.files())


def test_first_access_fetches_each_index_once_and_later_ones_nothing(setup: Setup) -> None:
    """(testFetchIndexFromRemoteStorage)"""
    metadata = setup.segment(with_transaction_index=True)
    cache = setup.cache()
    entries = [cache.get(metadata) for _ in range(3)]
    assert entries[0] == entries[1] == entries[2]
    assert setup.store.fetched == Counter(CACHED)


def test_entry_holds_the_remote_content(setup: Setup) -> None:
    metadata = setup.segment(with_transaction_index=True)
    entry = setup.cache().get(metadata)
    segment = setup.store.segments[metadata.segment_id.id]
    assert entry.offset_index == segment.index_bytes(IndexType.OFFSET)
    assert entry.time_index == segment.index_bytes(IndexType.TIMESTAMP)
    assert [tuple(t) for t in entry.transaction_index] == [(7, 4, 5, 6)]


def test_missing_transaction_index_becomes_an_empty_file(setup: Setup) -> None:
    """(testFetchIndexForMissingTransactionIndex) Older brokers' metadata lacks the flag."""
    metadata = setup.segment(with_transaction_index=False)
    unflagged = _replace(metadata, txn_index_empty=False)
    entry = setup.cache().get(unflagged)
    assert entry.transaction_index == []
    assert setup.path(metadata, ".txnindex").read_bytes() == b""
    assert setup.store.fetched[IndexType.TRANSACTION] == 1


def test_transaction_index_known_to_be_empty_is_not_asked_for(setup: Setup) -> None:
    setup.cache().get(setup.segment(with_transaction_index=False))
    assert setup.store.fetched[IndexType.TRANSACTION] == 0


def test_lookup_outside_the_index_gives_its_ends(setup: Setup) -> None:
    """(testPositionForNonExistentEntry)"""
    entry = setup.cache().get(setup.segment(start_offset=1_000))
    step = 2_000_000 // (INDEX_ENTRIES + 1)
    assert entry.lookup_offset(10_000_000).position == INDEX_ENTRIES * step
    assert entry.lookup_offset(1_000).position == 0
    assert entry.lookup_offset(1_010).position == step
    assert entry.lookup_offset(1_019).position == step


def test_entries_before_a_time_are_the_last_two_that_are_older(setup: Setup) -> None:
    entry = setup.cache().get(setup.segment(start_offset=1_000))
    first, second, third = (entry.entries_before(FIRST_INDEXED_TIMESTAMP_MS + n) for n in range(3))
    assert first == []
    assert [each.timestamp_ms for each in second] == [FIRST_INDEXED_TIMESTAMP_MS]
    assert [each.timestamp_ms for each in third] == [
        FIRST_INDEXED_TIMESTAMP_MS,
        FIRST_INDEXED_TIMESTAMP_MS + 1,
    ]


# -- the size bound


def test_entry_beyond_the_bound_evicts_the_least_recently_used(setup: Setup) -> None:
    """(testCacheEntryExpiry) Kafka evicts either; here the one used last stays."""
    first, second, third = (setup.segment() for _ in range(3))
    cache = setup.cache(entries=2)
    for metadata in (first, second, first, third):
        cache.get(metadata)
    assert setup.fetches() == 3
    cache.get(first)
    cache.get(third)
    assert setup.fetches() == 3
    cache.get(second)
    assert setup.fetches() == 4
    assert cache.size_in_bytes <= 2 * ENTRY_SIZE


def test_evicted_files_are_marked_then_unlinked_after_the_delay(setup: Setup) -> None:
    first, second = setup.segment(), setup.segment()
    cache = setup.cache(entries=1)
    cache.get(first)
    cache.get(second)
    marked = {name + ".deleted" for name in setup.live_files(first)}
    assert setup.files() == setup.live_files(second) | marked
    setup.clock.advance(FILE_DELETE_DELAY_MS - 1)
    cache.evict_expired()
    assert marked < setup.files()
    setup.clock.advance(1)
    cache.evict_expired()
    assert setup.files() == setup.live_files(second)


def test_entry_larger_than_the_bound_is_served_and_not_kept(setup: Setup) -> None:
    metadata = setup.segment()
    cache = setup.cache(entries=0.5)
    assert cache.get(metadata).size == ENTRY_SIZE
    assert cache.entry_count == 0
    assert cache.size_in_bytes == 0


def test_empty_indexes_count_too(setup: Setup) -> None:
    """In Kafka an empty entry weighs nothing, so their number has no bound."""
    cache = setup.cache(entries=4 * ENTRY_SIZE_MIN / ENTRY_SIZE)
    for _ in range(10):
        cache.get(setup.segment(index_entries=0))
    assert cache.entry_count == 4


def test_shrinking_evicts_and_growing_keeps(setup: Setup) -> None:
    """(testClearCacheAndIndexFilesWhenResizeCache, testCorrectnessFor...WhenResizeCache)"""
    segments = [setup.segment() for _ in range(3)]
    cache = setup.cache(entries=3)
    for metadata in segments:
        cache.get(metadata)
    cache.resize(2 * ENTRY_SIZE)
    assert cache.entry_count == 2
    cache.resize(100 * ENTRY_SIZE)
    assert cache.entry_count == 2
    cache.get(segments[1])
    cache.get(segments[2])
    assert setup.fetches() == 3
    cache.resize(0)
    assert cache.entry_count == 0


def test_content_dropped_from_memory_comes_from_disk(setup: Setup) -> None:
    segments = [setup.segment() for _ in range(3)]
    cache = setup.cache(memory_size_bytes=ENTRY_SIZE)
    expected = [cache.get(metadata) for metadata in segments]
    assert [cache.get(metadata) for metadata in segments] == expected
    assert setup.fetches() == 3


# -- time to live (KIP-1264)


def test_entry_expires_after_the_ttl(setup: Setup) -> None:
    """(testCacheTtlEviction)"""
    metadata = setup.segment()
    cache = setup.cache()
    cache.get(metadata)
    setup.clock.advance(TTL_MS)
    cache.get(metadata)
    assert setup.fetches() == 2


def test_access_refreshes_the_ttl(setup: Setup) -> None:
    """(testCacheTtlRefreshOnAccess)"""
    metadata = setup.segment()
    cache = setup.cache()
    for _ in range(5):
        cache.get(metadata)
        setup.clock.advance(TTL_MS - 1)
    assert setup.fetches() == 1


@pytest.mark.parametrize("ttl_ms", [-1, 0])
def test_ttl_can_be_disabled(setup: Setup, ttl_ms: int) -> None:
    """(testCacheTtlCanBeDisabled)"""
    metadata = setup.segment()
    cache = setup.cache(ttl_ms=ttl_ms)
    cache.get(metadata)
    setup.clock.advance(100 * TTL_MS)
    cache.evict_expired()
    cache.get(metadata)
    assert setup.fetches() == 1


def test_entries_expire_each_by_its_own_access(setup: Setup) -> None:
    """(testCacheTtlWithMultipleEntries)"""
    idle, used = setup.segment(), setup.segment()
    cache = setup.cache()
    cache.get(idle)
    cache.get(used)
    setup.clock.advance(TTL_MS // 2)
    cache.get(used)
    setup.clock.advance(TTL_MS // 2)
    cache.evict_expired()
    assert cache.entry_count == 1
    cache.get(used)
    assert setup.fetches() == 2


def test_size_and_time_evict_together(setup: Setup) -> None:
    """(testSizeAndTimeBasedEviction)"""
    first, second, third = (setup.segment() for _ in range(3))
    cache = setup.cache(entries=2)
    for metadata in (first, second, third):
        cache.get(metadata)
    assert cache.entry_count == 2
    setup.clock.advance(TTL_MS)
    cache.evict_expired()
    assert cache.entry_count == 0


def test_idle_cache_shrinks_by_the_sweep_alone(setup: Setup) -> None:
    """Differs from Caffeine without a scheduler, which keeps expired entries until the cache is
    used."""
    cache = setup.cache()
    cache.get(setup.segment())
    setup.clock.advance(TTL_MS)
    cache.evict_expired()
    assert cache.size_in_bytes == 0
    setup.clock.advance(FILE_DELETE_DELAY_MS)
    cache.evict_expired()
    assert setup.files() == set()


def test_wall_clock_jump_expires_nothing(setup: Setup) -> None:
    cache = setup.cache()
    cache.get(setup.segment())
    setup.clock.jump_wall_clock(10 * TTL_MS)
    cache.evict_expired()
    assert cache.entry_count == 1


# -- removal


def test_removed_segment_is_gone_and_fetched_again(setup: Setup) -> None:
    """(testRemoveItem, testCacheEntryIsDeletedOnRemoval)"""
    metadata = setup.segment()
    cache = setup.cache()
    cache.get(metadata)
    cache.remove([metadata.segment_id])
    assert cache.entry_count == 0
    assert setup.files() == {name + ".deleted" for name in setup.live_files(metadata)}
    cache.get(metadata)
    assert setup.fetches() == 2


def test_removal_of_several_and_of_unknown_segments(setup: Setup) -> None:
    """(testRemoveMultipleItems, testRemoveNonExistentItem)"""
    segments = [setup.segment() for _ in range(3)]
    cache = setup.cache()
    for metadata in segments[:2]:
        cache.get(metadata)
    cache.remove([metadata.segment_id for metadata in segments])
    assert cache.entry_count == 0


def test_entry_in_hand_works_after_its_removal(setup: Setup) -> None:
    """(testFetchIndexAccessibleWhenMarkedForCleanup)"""
    metadata = setup.segment()
    cache = setup.cache()
    entry = cache.get(metadata)
    cache.remove([metadata.segment_id])
    setup.clock.advance(FILE_DELETE_DELAY_MS)
    cache.evict_expired()
    assert entry.lookup_offset(10).position > 0
    cache.get(metadata)
    assert setup.files() == setup.live_files(metadata)


def test_marked_file_of_an_earlier_removal_is_overwritten(setup: Setup) -> None:
    """(testConcurrentCacheDeletedFileExists)"""
    metadata = setup.segment()
    cache = setup.cache()
    for _ in range(2):
        cache.get(metadata)
        cache.remove([metadata.segment_id])
    assert setup.files() == {name + ".deleted" for name in setup.live_files(metadata)}


def test_removal_during_a_fetch_leaves_nothing(setup: Setup) -> None:
    """(testConcurrentRemoveReadForCache)"""
    metadata = setup.segment()
    cache = setup.cache()
    setup.store.before_answer = lambda metadata: cache.remove([metadata.segment_id])
    assert cache.get(metadata).size == ENTRY_SIZE
    assert cache.entry_count == 0
    assert not setup.live_files(metadata) & setup.files()


# -- threads


def test_one_fetch_however_many_ask(setup: Setup) -> None:
    metadata = setup.segment()
    cache = setup.cache()
    askers = 8
    arrived = threading.Barrier(askers)

    def ask() -> object:
        arrived.wait(HUNG_S)
        return cache.get(metadata)

    with ThreadPoolExecutor(askers) as pool:
        answers = [future.result(HUNG_S) for future in [pool.submit(ask) for _ in range(askers)]]
    assert all(answer == answers[0] for answer in answers)
    assert setup.fetches() == 1


def test_fetch_in_progress_blocks_no_other_segment(setup: Setup) -> None:
    """(testConcurrentReadWriteAccessForCache)"""
    slow, hit, miss = setup.segment(), setup.segment(), setup.segment()
    cache = setup.cache()
    cache.get(hit)
    started, go_on = threading.Event(), threading.Event()

    def hold(metadata: RemoteLogSegmentMetadata) -> None:
        if metadata is slow:
            started.set()
            assert go_on.wait(HUNG_S)

    setup.store.before_answer = hold
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(cache.get, slow)
        assert started.wait(HUNG_S)
        cache.get(hit)
        cache.get(miss)
        assert not pending.done()
        go_on.set()
        assert pending.result(HUNG_S).size == ENTRY_SIZE


def test_waiting_threads_get_the_loaders_error(setup: Setup) -> None:
    metadata = setup.segment()
    cache = setup.cache()
    started, go_on = threading.Event(), threading.Event()

    def hold(metadata: RemoteLogSegmentMetadata) -> None:
        started.set()
        assert go_on.wait(HUNG_S)

    setup.store.before_answer = hold
    setup.store.answers[IndexType.OFFSET] = RemoteStorageError("down")
    with ThreadPoolExecutor(2) as pool:
        loader = pool.submit(cache.get, metadata)
        assert started.wait(HUNG_S)
        waiter = pool.submit(cache.get, metadata)
        outcome = cache._loading[metadata.segment_id.id].done
        # The second reader must be waiting before the first fails, or it would fetch again.
        while not outcome._condition._waiters:
            threading.Event().wait(0.001)
        go_on.set()
        for future in (loader, waiter):
            with pytest.raises(RemoteStorageError):
                future.result(HUNG_S)
    assert setup.fetches() == 1


# -- failures and damage


def test_failed_fetch_caches_nothing_and_the_next_call_tries_again(setup: Setup) -> None:
    metadata = setup.segment()
    cache = setup.cache()
    setup.store.answers[IndexType.TIMESTAMP] = RemoteStorageError("down")
    with pytest.raises(RemoteStorageError):
        cache.get(metadata)
    del setup.store.answers[IndexType.TIMESTAMP]
    assert cache.get(metadata).size == ENTRY_SIZE
    assert setup.store.fetched[IndexType.OFFSET] == 1, "a file that arrived whole is kept"


def test_files_of_failed_fetches_are_bounded_too(setup: Setup) -> None:
    cache = setup.cache(entries=1)
    setup.store.answers[IndexType.TIMESTAMP] = RemoteStorageError("down")
    for _ in range(10):
        with pytest.raises(RemoteStorageError):
            cache.get(setup.segment())
    live = [name for name in setup.files() if not name.endswith(".deleted")]
    assert sum((setup.directory / name).stat().st_size for name in live) <= ENTRY_SIZE


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (IndexType.OFFSET, b"not a multiple of eight"),
        (IndexType.TIMESTAMP, b"0123456789abc"),
        (IndexType.TRANSACTION, b"\x00\x07" + bytes(32)),
    ],
)
def test_corrupt_index_from_the_store_is_an_error_and_not_cached(
    setup: Setup, kind: IndexType, content: bytes
) -> None:
    """(testRSMReturnCorruptedIndexFile)"""
    metadata = setup.segment(with_transaction_index=True)
    cache = setup.cache()
    setup.store.answers[kind] = content
    with pytest.raises(CorruptIndexError):
        cache.get(metadata)
    del setup.store.answers[kind]
    assert cache.get(metadata).transaction_index


def test_corrupt_time_index_costs_no_second_offset_index(setup: Setup) -> None:
    """(testMultipleIndexEntriesExecutionInCorruptException)"""
    metadata = setup.segment(with_transaction_index=True)
    cache = setup.cache()
    setup.store.answers[IndexType.TIMESTAMP] = b"odd"
    with pytest.raises(CorruptIndexError):
        cache.get(metadata)
    del setup.store.answers[IndexType.TIMESTAMP]
    cache.get(metadata)
    assert [setup.store.fetched[kind] for kind in CACHED] == [1, 2, 1]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_corrupt_file_left_by_an_earlier_process_is_fetched_again(
    setup: Setup, suffix: str
) -> None:
    """(testCorruptCacheIndexFileExistsButNotInCache) Kafka does not even start."""
    metadata = setup.segment(with_transaction_index=True)
    expected = setup.cache().get(metadata)
    setup.path(metadata, suffix).write_bytes(b"odd")
    setup.store.fetched.clear()
    assert setup.cache().get(metadata) == expected
    assert sum(setup.store.fetched.values()) == 1


def test_file_that_vanished_is_fetched_again(setup: Setup) -> None:
    metadata = setup.segment()
    cache = setup.cache(memory_size_bytes=0)
    expected = cache.get(metadata)
    setup.path(metadata, ".timeindex").unlink()
    assert cache.get(metadata) == expected
    assert [setup.store.fetched[kind] for kind in CACHED] == [1, 2, 0]


def test_failing_disk_is_a_retriable_error_that_names_the_directory(setup: Setup) -> None:
    cache = setup.cache()
    metadata = setup.segment()
    for path in setup.directory.iterdir():
        path.unlink()
    setup.directory.rmdir()
    with pytest.raises(RemoteStorageError, match="remote-log-index-cache"):
        cache.get(metadata)
    setup.directory.mkdir()
    assert cache.get(metadata).size == ENTRY_SIZE


# -- restart


def test_entries_survive_a_restart_without_a_fetch(setup: Setup) -> None:
    """(testReloadCacheAfterClose, testIndexFileAlreadyExistOnDiskButNotInCache)"""
    segments = [setup.segment(with_transaction_index=True) for _ in range(3)]
    cache = setup.cache()
    expected = [cache.get(metadata) for metadata in segments]
    cache.close()
    setup.store.fetched.clear()
    reopened = setup.cache()
    assert reopened.entry_count == 3
    assert [reopened.get(metadata) for metadata in segments] == expected
    assert not setup.store.fetched


def test_restart_with_a_smaller_bound_evicts(setup: Setup) -> None:
    cache = setup.cache()
    for _ in range(5):
        cache.get(setup.segment())
    cache.close()
    assert setup.cache(entries=2).entry_count == 2


def test_restart_removes_leftovers_and_incomplete_sets_only(setup: Setup) -> None:
    """(testDeleteInvalidIndexFilesOnInit)"""
    whole, incomplete = setup.segment(), setup.segment()
    cache = setup.cache()
    cache.get(whole)
    cache.get(incomplete)
    cache.close()
    setup.path(incomplete, ".timeindex").unlink()
    setup.path(whole, ".index.deleted").write_bytes(b"")
    setup.path(whole, ".index.tmp").write_bytes(b"")
    (setup.directory / "notes.txt").write_bytes(b"somebody's")
    setup.cache()
    assert setup.files() == setup.live_files(whole) | {"notes.txt"}


def test_entries_found_at_start_expire_too(setup: Setup) -> None:
    setup.cache().get(setup.segment())
    cache = setup.cache()
    setup.clock.advance(TTL_MS)
    cache.evict_expired()
    assert cache.entry_count == 0


def test_closed_cache_refuses_and_keeps_its_files(setup: Setup) -> None:
    """(shouldThrowErrorWhenAccessedAfterCacheClose, testCloseIsIdempotent, testClose)"""
    metadata = setup.segment()
    cache = setup.cache()
    cache.get(metadata)
    cache.close()
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.get(metadata)
    cache.evict_expired()
    assert setup.files() == setup.live_files(metadata)


def _replace(metadata: RemoteLogSegmentMetadata, **changes: object) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(**{**metadata._fields(), **changes})


# -- statistics and listeners


def test_listener_hears_of_each_removal_once_with_its_cause(setup: Setup) -> None:
    heard: list[RemovedEntry] = []
    cache = setup.cache(entries=2, on_removal=heard.append)
    first, second, third = (setup.segment(start_offset=number) for number in range(3))
    for metadata in (first, second, third):
        cache.get(metadata)
    cache.remove([second.segment_id, first.segment_id])
    setup.clock.advance(TTL_MS)
    cache.evict_expired()
    cache.evict_expired()
    assert [(each.files.start_offset, each.cause) for each in heard] == [
        (0, RemovalCause.SIZE),
        (1, RemovalCause.EXPLICIT),
        (2, RemovalCause.EXPIRED),
    ]
    assert heard[0].size == ENTRY_SIZE


def test_listener_hears_of_an_expired_entry_that_is_asked_for(setup: Setup) -> None:
    heard: list[RemovedEntry] = []
    cache = setup.cache(on_removal=heard.append)
    metadata = setup.segment()
    cache.get(metadata)
    setup.clock.advance(TTL_MS)
    cache.get(metadata)
    assert [each.cause for each in heard] == [RemovalCause.EXPIRED]


def test_listener_may_use_the_cache(setup: Setup) -> None:
    """The listener is called outside the lock."""
    counts: list[int] = []
    cache = setup.cache(entries=1, on_removal=lambda _: counts.append(cache.entry_count))
    cache.get(setup.segment())
    cache.get(setup.segment())
    assert counts == [1]


def test_statistics_count_requests_fetches_and_removals(setup: Setup) -> None:
    statistics = CacheStatistics()
    metrics = Metrics()
    statistics.publish(metrics)
    cache = setup.cache(entries=1.5, statistics=statistics)
    assert statistics.snapshot().hit_ratio == 1
    first = setup.segment(with_transaction_index=True)
    second = setup.segment(with_transaction_index=False)
    for metadata in (first, first, first, second):
        cache.get(metadata)
    now = statistics.snapshot()
    assert (now.hits, now.misses, now.fetches) == (2, 2, 5)
    assert now.removals == {RemovalCause.SIZE: 1}
    assert now.hit_ratio == 0.5
    for name, value in (("hits", 2), ("misses", 2), ("fetches", 5), ("removals", 1)):
        assert metrics.value(f"isotherm_remote_index_cache_{name}") == value


def test_file_that_cannot_be_unlinked_is_tried_again(setup: Setup) -> None:
    cache = setup.cache()
    metadata = setup.segment()
    cache.get(metadata)
    cache.remove([metadata.segment_id])
    setup.clock.advance(FILE_DELETE_DELAY_MS)
    blocked = setup.path(metadata, ".index.deleted")
    blocked.unlink()
    blocked.mkdir()
    with pytest.raises(RemoteStorageError):
        cache.evict_expired()
    blocked.rmdir()
    blocked.touch()
    cache.evict_expired()
    assert setup.files() == set()


def test_reads_and_removals_that_race_leave_one_live_entry(setup: Setup) -> None:
    cache = setup.cache()
    metadata = setup.segment()
    start = threading.Barrier(3)

    def race(work: Callable[[], object]) -> None:
        start.wait(HUNG_S)
        for _ in range(100):
            work()

    with ThreadPoolExecutor(3) as pool:
        racing = [
            pool.submit(race, lambda: cache.get(metadata)),
            pool.submit(race, lambda: cache.get(metadata)),
            pool.submit(race, lambda: cache.remove([metadata.segment_id])),
        ]
        for future in racing:
            future.result(HUNG_S)
    cache.get(metadata)
    assert cache.entry_count == 1
    live = {name for name in setup.files() if not name.endswith(".deleted")}
    assert live == setup.live_files(metadata)


KAFKAS_CASES = {
    "testIndexFileNameAndLocationOnDisk": "test_files_bear_kafkas_names",
    "testFetchIndexFromRemoteStorage": (
        "test_first_access_fetches_each_index_once_and_later_ones_nothing"
    ),
    "testFetchIndexForMissingTransactionIndex": (
        "test_missing_transaction_index_becomes_an_empty_file"
    ),
    "testPositionForNonExistentEntry": "test_lookup_outside_the_index_gives_its_ends",
    "testCacheEntryExpiry": "test_entry_beyond_the_bound_evicts_the_least_recently_used",
    "shouldThrowErrorWhenAccessedAfterCacheClose": (
        "test_closed_cache_refuses_and_keeps_its_files"
    ),
    "testCloseIsIdempotent": "test_closed_cache_refuses_and_keeps_its_files",
    "testClose": "test_closed_cache_refuses_and_keeps_its_files",
    "testCacheEntryIsDeletedOnRemoval": (
        "test_evicted_files_are_marked_then_unlinked_after_the_delay"
    ),
    "testCleanerThreadShutdown": "test_file_that_cannot_be_unlinked_is_tried_again",
    "testConcurrentReadWriteAccessForCache": "test_fetch_in_progress_blocks_no_other_segment",
    "testReloadCacheAfterClose": "test_entries_survive_a_restart_without_a_fetch",
    "testRemoveItem": "test_removed_segment_is_gone_and_fetched_again",
    "testRemoveNonExistentItem": "test_removal_of_several_and_of_unknown_segments",
    "testRemoveMultipleItems": "test_removal_of_several_and_of_unknown_segments",
    "testClearCacheAndIndexFilesWhenResizeCache": "test_shrinking_evicts_and_growing_keeps",
    "testCorrectnessForCacheAndIndexFilesWhenResizeCache": (
        "test_shrinking_evicts_and_growing_keeps"
    ),
    "testCorruptCacheIndexFileExistsButNotInCache": (
        "test_corrupt_file_left_by_an_earlier_process_is_fetched_again"
    ),
    "testConcurrentRemoveReadForCache1": "test_removal_during_a_fetch_leaves_nothing",
    "testConcurrentRemoveReadForCache2": "test_reads_and_removals_that_race_leave_one_live_entry",
    "testMultipleIndexEntriesExecutionInCorruptException": (
        "test_corrupt_time_index_costs_no_second_offset_index"
    ),
    "testIndexFileAlreadyExistOnDiskButNotInCache": (
        "test_content_dropped_from_memory_comes_from_disk"
    ),
    "testRSMReturnCorruptedIndexFile": (
        "test_corrupt_index_from_the_store_is_an_error_and_not_cached"
    ),
    "testConcurrentCacheDeletedFileExists": (
        "test_marked_file_of_an_earlier_removal_is_overwritten"
    ),
    "testDeleteInvalidIndexFilesOnInit": (
        "test_restart_removes_leftovers_and_incomplete_sets_only"
    ),
    "testFetchIndexAccessibleWhenMarkedForCleanup": "test_entry_in_hand_works_after_its_removal",
    "testCacheTtlCanBeDisabled": "test_ttl_can_be_disabled",
    "testCacheTtlEviction": "test_entry_expires_after_the_ttl",
    "testCacheTtlRefreshOnAccess": "test_access_refreshes_the_ttl",
    "testCacheTtlWithMultipleEntries": "test_entries_expire_each_by_its_own_access",
    "testSizeAndTimeBasedEviction": "test_size_and_time_evict_together",
}
"""RemoteIndexCacheTest's methods, with those of KIP-1264, and the test here for each."""


def test_every_case_of_kafkas_has_one_here() -> None:
    assert len(KAFKAS_CASES) == 31
    assert [name for name in KAFKAS_CASES.values() if not callable(globals().get(name))] == []


def test_rebuilt_transaction_index_counts_like_one_that_was_fetched(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    rebuilt = bytes(2 * ENTRY_SIZE)
    cache = setup.cache(4, rebuild_transactions=lambda _: rebuilt)
    resident, other = setup.segment(), setup.segment(start_offset=INDEX_ENTRIES)
    cache.get(resident)
    size = cache.size_in_bytes
    cache.rebuild_transaction_index(resident)
    assert cache.size_in_bytes == size + len(rebuilt)
    # The second has no other file here; there is no room for both.
    cache.rebuild_transaction_index(other)
    assert cache.size_in_bytes == len(rebuilt)
    assert setup.files() & setup.live_files(resident, other) == {
        setup.path(other, ".txnindex").name
    }
