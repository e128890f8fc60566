"""The test suite that every RemoteStorageManager must pass.

A subclass in the tests of an implementation provides a fixture `store`, which returns a new, empty
`StoreUnderTest` for each test:

    class TestMyStore(RemoteStorageManagerConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return StoreUnderTest(MyStore(tmp_path), FolderAccess(tmp_path))

The tests of a manager that fills buffers also inherit FillsBuffersConformance (fills_buffers.py),
and those of one that lists its segments ListsSegmentsConformance (lists_segments.py).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pytest

from isotherm.errors import CorruptObjectError, RemoteResourceNotFoundError
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.testing.bucket_files import files_below
from isotherm.testing.segment_files import MadeSegment, SegmentMaker

CUSTOM_METADATA_SIZE_MAX = 128
"""Kafka's default for remote.log.metadata.custom.metadata.max.bytes."""

ALL_TOGETHER_S = 30
"""Real seconds after which threads that should meet count as hung."""


class RawAccess(Protocol):
    """Access to the store's objects without the manager, with which tests damage them."""

    def object_keys(self) -> set[str]: ...

    def read(self, key: str) -> bytes: ...

    def write(self, key: str, content: bytes) -> None: ...

    def delete(self, key: str) -> None: ...


class FolderAccess:
    """Raw access to a store that keeps each object as a file below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def object_keys(self) -> set[str]:
        return {str(path.relative_to(self._folder)) for path in files_below(self._folder)}

    def read(self, key: str) -> bytes:
        return (self._folder / key).read_bytes()

    def write(self, key: str, content: bytes) -> None:
        (self._folder / key).write_bytes(content)

    def delete(self, key: str) -> None:
        (self._folder / key).unlink()


@dataclass(frozen=True, slots=True)
class StoreUnderTest:
    manager: RemoteStorageManager
    raw: RawAccess


class RemoteStorageManagerConformance:
    log_suffix = ".log"
    """The end of the keys of `.log` objects, by which tests find the object to damage."""

    large_segment_size = 12 * 1024 * 1024 + 1
    """A size larger than one part of an upload, if the implementation has parts."""

    topic_length_max = 249
    """The longest topic name. The default is Kafka's limit; a store with files may allow less."""

    @pytest.fixture
    def store(self) -> StoreUnderTest:
        raise NotImplementedError("a subclass gives the store")

    @pytest.fixture
    def maker(self, tmp_path: Path) -> SegmentMaker:
        return SegmentMaker(tmp_path / "segments")

    # -- copying and reading

    def test_segment_copied_reads_back_whole(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment()
        metadata = copied(store, segment)
        assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

    def test_large_segment_copied_reads_back_whole(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment(size=self.large_segment_size)
        metadata = copied(store, segment)
        assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

    @pytest.mark.parametrize(
        ("start", "end_inclusive"),
        [(0, 0), (0, 19_999), (1, 2), (7, 12_345), (19_999, 19_999), (5, None), (19_999, None)],
    )
    def test_range_inside_the_segment_is_exact(
        self, store: StoreUnderTest, maker: SegmentMaker, start: int, end_inclusive: int | None
    ) -> None:
        segment = maker.segment(size=20_000)
        metadata = copied(store, segment)
        end = None if end_inclusive is None else end_inclusive + 1
        stream = store.manager.fetch_log_segment(metadata, start, end_inclusive)
        assert stream == segment.log_bytes()[start:end]

    @pytest.mark.parametrize("end_inclusive", [20_000, 2**31 - 1])
    def test_range_beyond_the_end_is_cut(
        self, store: StoreUnderTest, maker: SegmentMaker, end_inclusive: int
    ) -> None:
        segment = maker.segment(size=20_000)
        metadata = copied(store, segment)
        stream = store.manager.fetch_log_segment(metadata, 19_990, end_inclusive)
        assert stream == segment.log_bytes()[19_990:]

    @pytest.mark.parametrize(
        ("start", "end_inclusive"), [(-1, 5), (20_000, None), (20_000, 20_001), (6, 5), (0, -1)]
    )
    def test_range_outside_the_segment_is_refused(
        self, store: StoreUnderTest, maker: SegmentMaker, start: int, end_inclusive: int | None
    ) -> None:
        metadata = copied(store, maker.segment(size=20_000))
        with pytest.raises(ValueError, match="range"):
            store.manager.fetch_log_segment(metadata, start, end_inclusive)

    @pytest.mark.parametrize("with_transaction_index", [False, True])
    def test_every_index_reads_back(
        self, store: StoreUnderTest, maker: SegmentMaker, with_transaction_index: bool
    ) -> None:
        segment = maker.segment(with_transaction_index=with_transaction_index)
        metadata = copied(store, segment)
        for index_type in IndexType:
            expected = segment.index_bytes(index_type)
            if expected is not None:
                assert store.manager.fetch_index(metadata, index_type) == expected, index_type

    def test_transaction_index_never_copied_is_not_found(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        metadata = copied(store, maker.segment(with_transaction_index=False))
        with pytest.raises(RemoteResourceNotFoundError):
            store.manager.fetch_index(metadata, IndexType.TRANSACTION)

    def test_empty_indexes_read_back_empty(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment(index_entries=0, producer_snapshot=b"")
        metadata = copied(store, segment)
        for index_type in (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.PRODUCER_SNAPSHOT):
            assert store.manager.fetch_index(metadata, index_type) == b""

    @pytest.mark.parametrize("topic", ["a", "with-dash", "dots.and_underscores", "t-0-1"])
    def test_topic_name_of_any_legal_form_works(
        self, store: StoreUnderTest, maker: SegmentMaker, topic: str
    ) -> None:
        segment = maker.segment(maker.partition(topic, 17), start_offset=2**62)
        metadata = copied(store, segment)
        assert store.manager.fetch_log_segment(metadata, 3, 9) == segment.log_bytes()[3:10]
        store.manager.delete_log_segment_data(metadata)
        assert store.raw.object_keys() == set()

    def test_longest_topic_name_works(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        segment = maker.segment(maker.partition("x" * self.topic_length_max, 99_999))
        metadata = copied(store, segment)
        assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

    def test_copy_returns_custom_metadata_within_kafkas_limit(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment()
        custom = store.manager.copy_log_segment_data(segment.metadata, segment.data)
        assert custom is None or 0 < len(custom) <= CUSTOM_METADATA_SIZE_MAX

    # -- copying again

    def test_copy_repeated_changes_nothing(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment()
        copied(store, segment)
        before = {key: store.raw.read(key) for key in store.raw.object_keys()}
        metadata = copied(store, segment)
        assert {key: store.raw.read(key) for key in store.raw.object_keys()} == before
        assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

    def test_copy_repeated_overwrites(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        segment = maker.segment()
        metadata = copied(store, segment)
        assert store.manager.fetch_index(metadata, IndexType.LEADER_EPOCH)
        checkpoint = b"0\n2\n0 0\n12 500\n"
        data = replace(segment.data, leader_epoch_checkpoint=checkpoint)
        metadata = copied(store, MadeSegment(segment.metadata, data))
        assert store.manager.fetch_index(metadata, IndexType.LEADER_EPOCH) == checkpoint

    def test_copy_repairs_what_an_earlier_one_left(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment()
        copied(store, segment)
        for key in store.raw.object_keys():
            store.raw.write(key, b"half")
        metadata = copied(store, segment)
        assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

    def test_segments_of_one_partition_do_not_mix(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        """Two copies of the same offsets, as after a change of leader, are separate segments."""
        partition = maker.partition()
        segments = [maker.segment(partition, start_offset=0) for _ in range(2)]
        copies = [copied(store, segment) for segment in segments]
        for metadata, segment in zip(copies, segments, strict=True):
            assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

    # -- deleting

    def test_delete_leaves_no_object(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        metadata = copied(store, maker.segment(with_transaction_index=True))
        assert store.raw.object_keys()
        store.manager.delete_log_segment_data(metadata)
        assert store.raw.object_keys() == set()

    def test_delete_repeated_is_no_error(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        metadata = copied(store, maker.segment())
        store.manager.delete_log_segment_data(metadata)
        store.manager.delete_log_segment_data(metadata)

    def test_delete_of_a_segment_never_copied_is_no_error(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        store.manager.delete_log_segment_data(maker.segment().metadata)

    def test_delete_of_a_partial_copy_leaves_no_object(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segment = maker.segment(with_transaction_index=True)
        copied(store, segment)
        for key in sorted(store.raw.object_keys()):
            metadata = copied(store, segment)
            store.raw.delete(key)
            store.manager.delete_log_segment_data(metadata)
            assert store.raw.object_keys() == set()

    def test_delete_leaves_other_segments(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        partition = maker.partition()
        kept = maker.segment(partition, start_offset=0)
        kept_metadata = copied(store, kept)
        gone = copied(store, maker.segment(partition, start_offset=0))
        store.manager.delete_log_segment_data(gone)
        assert store.manager.fetch_log_segment(kept_metadata, 0) == kept.log_bytes()
        assert store.manager.fetch_index(kept_metadata, IndexType.OFFSET)

    def test_deleted_segment_is_not_found(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        metadata = copied(store, maker.segment())
        assert store.manager.fetch_index(metadata, IndexType.OFFSET)
        store.manager.delete_log_segment_data(metadata)
        with pytest.raises(RemoteResourceNotFoundError):
            store.manager.fetch_log_segment(metadata, 0)
        with pytest.raises(RemoteResourceNotFoundError):
            store.manager.fetch_index(metadata, IndexType.OFFSET)

    # -- damage

    def test_missing_object_is_not_found_and_named(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        metadata = copied(store, maker.segment(start_offset=300, record_count=100))
        store.raw.delete(self.log_key(store))
        with pytest.raises(RemoteResourceNotFoundError) as raised:
            store.manager.fetch_log_segment(metadata, 10, 20)
        assert_names_the_records(str(raised.value), metadata)

    @pytest.mark.parametrize("left", [0, 1, 9_000, 10_010, 19_999])
    def test_short_object_is_corrupt_and_named(
        self, store: StoreUnderTest, maker: SegmentMaker, left: int
    ) -> None:
        """It is corrupt even if the requested bytes exist, because the end of the segment is
        lost.
        """
        metadata = copied(store, maker.segment(size=20_000, start_offset=300, record_count=100))
        key = self.log_key(store)
        store.raw.write(key, store.raw.read(key)[:left])
        with pytest.raises(CorruptObjectError) as raised:
            store.manager.fetch_log_segment(metadata, 10_000, 10_009)
        assert_names_the_records(str(raised.value), metadata)
        assert key.rpartition("/")[2] in str(raised.value)

    def test_object_that_is_too_long_is_corrupt(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        metadata = copied(store, maker.segment())
        key = self.log_key(store)
        store.raw.write(key, store.raw.read(key) + b"x")
        with pytest.raises(CorruptObjectError):
            store.manager.fetch_log_segment(metadata, 0)

    # -- threads

    def test_threads_do_not_disturb_each_other(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        segments = [maker.segment(start_offset=number) for number in range(4)]
        barrier = threading.Barrier(len(segments))

        def cycle(segment: MadeSegment) -> bool:
            barrier.wait(ALL_TOGETHER_S)
            metadata = copied(store, segment)
            return store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()

        with ThreadPoolExecutor(len(segments)) as pool:
            assert all(pool.map(cycle, segments))

    def test_close_repeated_is_no_error(self, store: StoreUnderTest) -> None:
        store.manager.close()
        store.manager.close()

    def log_key(self, store: StoreUnderTest) -> str:
        """The key of the only `.log` object in the store."""
        (key,) = (key for key in store.raw.object_keys() if key.endswith(self.log_suffix))
        return key


def copied(store: StoreUnderTest, segment: MadeSegment) -> RemoteLogSegmentMetadata:
    """Copy a segment, and return its metadata with the custom metadata of the copy."""
    custom = store.manager.copy_log_segment_data(segment.metadata, segment.data)
    return replace(segment.metadata, custom_metadata=custom)


def assert_names_the_records(message: str, metadata: RemoteLogSegmentMetadata) -> None:
    partition = metadata.topic_id_partition
    for needed in (
        f"topic={partition.topic}",
        f"partition={partition.partition}",
        f"offsets={metadata.start_offset}-{metadata.end_offset_inclusive}",
    ):
        assert needed in message, message
