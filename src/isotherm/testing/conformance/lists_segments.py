"""The test suite for a RemoteStorageManager that lists its segments (storage.api.ListsSegments).

Its tests inherit this class beside RemoteStorageManagerConformance, whose fixtures it uses:

    class TestMyStore(ListsSegmentsConformance, RemoteStorageManagerConformance):
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.api import ListsSegments
from isotherm.testing.conformance.remote_storage import StoreUnderTest, copied
from isotherm.testing.segment_files import SegmentMaker


class ListsSegmentsConformance:
    def test_store_without_segments_lists_none(self, store: StoreUnderTest) -> None:
        assert _listed(store) == []

    def test_segments_are_listed_as_they_were_copied(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        copies = [
            copied(store, maker.segment(maker.partition(topic, number)))
            for topic, number in [("flights", 0), ("flights", 1), ("with-dash", 7)]
        ]
        assert _listed(store) == _in_order(map(_whole, copies))

    def test_deleted_segment_is_not_listed(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        kept, gone = copied(store, maker.segment()), copied(store, maker.segment())
        store.manager.delete_log_segment_data(gone)
        assert _listed(store) == [_whole(kept)]

    def test_copy_that_failed_is_listed_as_begun_or_not_at_all(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        """That holds until the segment is copied again, or deleted."""
        segment = maker.segment()
        segment.data.producer_snapshot_path.unlink()
        with pytest.raises(Exception):  # noqa: B017, PT011 - the copy suite tests which error
            store.manager.copy_log_segment_data(segment.metadata, segment.data)
        started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
        assert _listed(store) in ([], [replace(segment.metadata, state=started)])
        store.manager.delete_log_segment_data(segment.metadata)
        assert _listed(store) == []


def _listed(store: StoreUnderTest) -> list[RemoteLogSegmentMetadata]:
    manager = store.manager
    assert isinstance(manager, ListsSegments), f"{manager} does not list its segments"
    return _in_order(manager.list_log_segments())


def _in_order(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    return sorted(segments, key=lambda segment: segment.segment_id.id)


def _whole(metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    return replace(metadata, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
