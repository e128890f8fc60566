"""The test suite for a RemoteStorageManager that fills buffers (storage.api.FillsBuffers).

Its tests inherit this class beside RemoteStorageManagerConformance, whose fixtures it uses:

    class TestMyStore(FillsBuffersConformance, RemoteStorageManagerConformance):
"""

from __future__ import annotations

import pytest

from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.storage.api import FillsBuffers
from isotherm.testing.conformance.remote_storage import StoreUnderTest, copied
from isotherm.testing.segment_files import SegmentMaker


class FillsBuffersConformance:
    large_segment_size: int

    @pytest.mark.parametrize(("start", "end"), [(0, 20_000), (0, 1), (7, 12_345), (19_999, 20_000)])
    def test_buffer_is_filled_from_its_beginning_on(
        self, store: StoreUnderTest, maker: SegmentMaker, start: int, end: int
    ) -> None:
        manager, segment = _filling(store), maker.segment(size=20_000)
        metadata = copied(store, segment)
        buffer, counts = memoryview(bytearray(end - start)), [0]

        def check(count: int) -> None:
            assert counts[-1] < count
            assert buffer[:count] == segment.log_bytes()[start : start + count]
            counts.append(count)

        manager.fetch_log_segment_into(metadata, start, buffer, check)
        assert counts[-1] == len(buffer)

    def test_large_buffer_is_filled(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        manager, segment = _filling(store), maker.segment(size=self.large_segment_size)
        metadata = copied(store, segment)
        buffer = memoryview(bytearray(self.large_segment_size - 2))
        manager.fetch_log_segment_into(metadata, 1, buffer, lambda _: None)
        assert buffer == segment.log_bytes()[1:-1]

    def test_filling_ends_with_what_the_reader_raises(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        class LeftError(Exception):
            pass

        def leave(_: int) -> None:
            raise LeftError

        manager = _filling(store)
        metadata = copied(store, maker.segment(size=20_000))
        with pytest.raises(LeftError):
            manager.fetch_log_segment_into(metadata, 0, memoryview(bytearray(20_000)), leave)

    @pytest.mark.parametrize(("start", "size"), [(-1, 5), (20_000, 1), (19_990, 11), (5, 0)])
    def test_buffer_for_more_than_the_segment_is_refused(
        self, store: StoreUnderTest, maker: SegmentMaker, start: int, size: int
    ) -> None:
        manager = _filling(store)
        metadata = copied(store, maker.segment(size=20_000))
        buffer = memoryview(bytearray(size))
        with pytest.raises(ValueError, match="range"):
            manager.fetch_log_segment_into(metadata, start, buffer, lambda _: None)

    def test_segment_never_copied_fills_no_buffer(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        manager, segment = _filling(store), maker.segment()
        buffer = memoryview(bytearray(10))
        with pytest.raises(RemoteResourceNotFoundError):
            manager.fetch_log_segment_into(segment.metadata, 0, buffer, lambda _: None)


def _filling(store: StoreUnderTest) -> FillsBuffers:
    assert isinstance(store.manager, FillsBuffers), "it says that it fills buffers"
    return store.manager
