"""Random histories of copies, failed copies, lost objects, deletions and reads, which every
RemoteStorageManager must survive. Needs Hypothesis.

The tests of a manager inherit this class beside RemoteStorageManagerConformance, whose fixtures it
uses:

    class TestMyStore(RandomHistoriesConformance, RemoteStorageManagerConformance):

The model is a table of segments: what was copied whole reads back, byte for byte, whatever happened
to other segments. A segment of which a copy failed or an object was lost may be copied again or
deleted, and nothing is said of its reads.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import ListsSegments
from isotherm.testing.conformance.remote_storage import StoreUnderTest, copied
from isotherm.testing.segment_files import MadeSegment, SegmentMaker
from isotherm.types import TopicIdPartition

SIZE_MAX = 5000


class RandomHistoriesConformance:
    histories = 15
    """How many histories a test tries. A slow store may try fewer."""

    def test_random_histories(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        run_state_machine_as_test(
            lambda: _History(store, maker),  # type: ignore[arg-type]  # a function may make it
            settings=settings(
                max_examples=self.histories,
                stateful_step_count=20,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )


class _History(RuleBasedStateMachine):
    """One history, in a store that is empty at its begin and at its end."""

    segments: Bundle[MadeSegment] = Bundle("segments")

    def __init__(self, store: StoreUnderTest, maker: SegmentMaker) -> None:
        super().__init__()
        self._store = store
        self._maker = maker
        self._partitions: list[TopicIdPartition] = []
        self._whole: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        """With the custom metadata of the copy."""
        self._partial: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        """Segments of which a copy failed or an object was lost."""
        self._finished: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        """Of the last whole copy of each segment: a reader knows no other metadata."""
        self._deleted: set[RemoteLogSegmentId] = set()
        self._keys: dict[RemoteLogSegmentId, set[str]] = {}
        """The objects of a segment: those that a whole copy made where nothing was."""

    @rule(
        target=segments,
        size=st.integers(1, SIZE_MAX),
        is_in_new_partition=st.booleans(),
        with_transaction_index=st.booleans(),
    )
    def make(
        self, size: int, is_in_new_partition: bool, with_transaction_index: bool
    ) -> MadeSegment:
        if is_in_new_partition or not self._partitions:
            self._partitions.append(self._maker.partition())
        return self._maker.segment(
            self._partitions[-1],
            size=size,
            index_entries=1,
            with_transaction_index=with_transaction_index,
        )

    @rule(segment=segments)
    def copy(self, segment: MadeSegment) -> None:
        segment_id = segment.metadata.segment_id
        self._deleted.discard(segment_id)
        begins_with_nothing = segment_id not in self._whole and segment_id not in self._partial
        before = self._store.raw.object_keys()
        self._finished[segment_id] = self._whole[segment_id] = copied(self._store, segment)
        self._partial.pop(segment_id, None)
        if begins_with_nothing and segment_id not in self._keys:
            self._keys[segment_id] = self._store.raw.object_keys() - before

    @rule(segment=segments)
    def fail_to_copy(self, segment: MadeSegment) -> None:
        missing = segment.data.producer_snapshot_path.with_name("missing")
        data = replace(segment.data, producer_snapshot_path=missing)
        with pytest.raises(Exception):  # noqa: B017, PT011 - the copy suite tests which error
            self._store.manager.copy_log_segment_data(segment.metadata, data)
        self._spoil(segment)

    @rule(segment=segments, choice=st.integers(0, 9))
    def lose_an_object(self, segment: MadeSegment, choice: int) -> None:
        segment_id = segment.metadata.segment_id
        if segment_id in self._whole and segment_id in self._keys:
            keys = sorted(self._keys[segment_id])
            self._store.raw.delete(keys[choice % len(keys)])
            self._spoil(segment)

    def _spoil(self, segment: MadeSegment) -> None:
        segment_id = segment.metadata.segment_id
        metadata = self._whole.pop(segment_id, segment.metadata)
        self._partial.setdefault(segment_id, metadata)
        self._deleted.discard(segment_id)

    @rule(segment=segments)
    def delete(self, segment: MadeSegment) -> None:
        segment_id = segment.metadata.segment_id
        partial = self._partial.pop(segment_id, segment.metadata)
        metadata = self._whole.pop(segment_id, partial)
        self._store.manager.delete_log_segment_data(metadata)
        if segment_id in self._finished:
            self._deleted.add(segment_id)
        assert not self._store.raw.object_keys() & self._keys.get(segment_id, set())

    @rule(segment=segments, start=st.integers(0, SIZE_MAX), length=st.integers(1, SIZE_MAX))
    def read(self, segment: MadeSegment, start: int, length: int) -> None:
        start %= segment.metadata.segment_size_in_bytes
        metadata = self._readable(segment)
        if metadata is not None:
            content = self._store.manager.fetch_log_segment(metadata, start, start + length - 1)
            assert content == segment.log_bytes()[start : start + length]

    @rule(segment=segments, index_type=st.sampled_from(IndexType))
    def read_index(self, segment: MadeSegment, index_type: IndexType) -> None:
        metadata = self._readable(segment)
        expected = segment.index_bytes(index_type)
        if metadata is None:
            return
        if expected is None:
            with pytest.raises(RemoteResourceNotFoundError):
                self._store.manager.fetch_index(metadata, index_type)
        else:
            assert self._store.manager.fetch_index(metadata, index_type) == expected

    def _readable(self, segment: MadeSegment) -> RemoteLogSegmentMetadata | None:
        """The metadata of a whole copy. A segment that was deleted is not found."""
        segment_id = segment.metadata.segment_id
        if segment_id in self._deleted:
            with pytest.raises(RemoteResourceNotFoundError):
                self._store.manager.fetch_log_segment(self._finished[segment_id], 0)
        return self._whole.get(segment_id)

    @invariant()
    def whole_segments_have_their_objects(self) -> None:
        keys = self._store.raw.object_keys()
        for segment_id in self._whole:
            assert self._keys.get(segment_id, set()) <= keys
        if not self._whole and not self._partial:
            assert keys == set()

    @invariant()
    def whole_segments_are_listed(self) -> None:
        if not isinstance(self._store.manager, ListsSegments):
            return
        ids = [segment.segment_id for segment in self._store.manager.list_log_segments()]
        assert len(ids) == len(set(ids))
        assert self._whole.keys() <= set(ids) <= self._whole.keys() | self._partial.keys()

    def teardown(self) -> None:
        for metadata in (*self._whole.values(), *self._partial.values()):
            self._store.manager.delete_log_segment_data(metadata)
        assert self._store.raw.object_keys() == set()
