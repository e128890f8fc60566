"""The test suite that every RemoteLogMetadataManager must pass.

A subclass in the tests of an implementation provides a fixture `manager`, which returns a new one
without events. Its background work, if any, must be running, or `settle` must do it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import NO_LEADER_EPOCH, TopicIdPartition

WAIT_S = 30
"""Real seconds after which a write that should be visible counts as lost."""

PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)
OTHER = TopicIdPartition(uuid.UUID(int=1), "flights", 1)

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def make_segment(
    number: int,
    epochs: dict[int, int],
    end: int,
    *,
    partition: TopicIdPartition = PARTITION,
    txn_index_empty: bool = False,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, uuid.UUID(int=number)),
        start_offset=min(epochs.values()),
        end_offset_inclusive=end,
        max_timestamp_ms=5,
        broker_id=0,
        event_timestamp_ms=10 + number,
        segment_size_in_bytes=1000,
        segment_leader_epochs=epochs,
        txn_index_empty=txn_index_empty,
    )


def make_update(
    metadata: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    custom_metadata: bytes | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=metadata.segment_id,
        event_timestamp_ms=99,
        state=state,
        broker_id=0,
        custom_metadata=custom_metadata,
    )


def without_leader(metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """The metadata that every level stores. Only level 1 stores the leader epoch of a copy."""
    return replace(metadata, broker_leader_epoch=NO_LEADER_EPOCH)


class RemoteLogMetadataManagerConformance:
    @pytest.fixture
    def settle(self, manager: RemoteLogMetadataManager) -> Callable[[], None]:
        """Make the manager ready for reads. It is called after an assignment."""
        return lambda: None

    @pytest.fixture
    def assigned(
        self, manager: RemoteLogMetadataManager, settle: Callable[[], None]
    ) -> RemoteLogMetadataManager:
        manager.on_partition_leadership_changes([PARTITION], [])
        settle()
        return manager

    def add(self, manager: RemoteLogMetadataManager, *segments: RemoteLogSegmentMetadata) -> None:
        for segment in segments:
            manager.add_remote_log_segment_metadata(segment).result(WAIT_S)

    def move(
        self,
        manager: RemoteLogMetadataManager,
        segment: RemoteLogSegmentMetadata,
        *states: RemoteLogSegmentState,
    ) -> None:
        for state in states:
            manager.update_remote_log_segment_metadata(make_update(segment, state)).result(WAIT_S)

    def test_write_is_visible_when_its_future_is_done(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        segment = make_segment(1, {0: 0}, 99)
        self.add(assigned, segment)
        assert [*map(without_leader, assigned.list_remote_log_segments(PARTITION))] == [segment]
        assert assigned.remote_log_segment_metadata(PARTITION, 0, 50) is None
        update = make_update(segment, FINISHED, b"custom")
        assigned.update_remote_log_segment_metadata(update).result(WAIT_S)
        stored = assigned.remote_log_segment_metadata(PARTITION, 0, 50)
        assert stored is not None
        assert without_leader(stored) == segment.updated(update)

    def test_each_state_shows_in_the_reads_it_should(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        segment = make_segment(1, {0: 0}, 99)
        self.add(assigned, segment)
        shown = []
        for state in (None, FINISHED, DELETE_STARTED, DELETE_FINISHED):
            if state is not None:
                self.move(assigned, segment, state)
            shown.append(
                (
                    assigned.remote_log_segment_metadata(PARTITION, 0, 99) is not None,
                    len(assigned.list_remote_log_segments(PARTITION, 0)),
                    len(assigned.list_remote_log_segments(PARTITION)),
                    assigned.highest_offset_for_epoch(PARTITION, 0),
                )
            )
        assert shown == [
            (False, 1, 1, None),
            (True, 1, 1, 99),
            (False, 1, 1, 99),
            (False, 0, 0, 99),
        ]

    def test_segment_over_two_epochs_is_found_in_each_for_its_part(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        segment = make_segment(1, {0: 0, 3: 60}, 99)
        self.add(assigned, segment)
        self.move(assigned, segment, FINISHED)
        offsets = {
            (epoch, offset)
            for epoch in (0, 1, 3)
            for offset in (0, 59, 60, 99, 100)
            if assigned.remote_log_segment_metadata(PARTITION, epoch, offset) is not None
        }
        assert offsets == {(0, 0), (0, 59), (3, 60), (3, 99)}
        assert assigned.highest_offset_for_epoch(PARTITION, 0) == 59
        assert assigned.highest_offset_for_epoch(PARTITION, 3) == 99

    def test_segments_are_listed_by_start_offset(self, assigned: RemoteLogMetadataManager) -> None:
        segments = [
            make_segment(number, {0: start}, start + 9) for number, start in enumerate((20, 0, 10))
        ]
        self.add(assigned, *segments)
        self.move(assigned, segments[1], FINISHED)
        for listed in (
            assigned.list_remote_log_segments(PARTITION),
            assigned.list_remote_log_segments(PARTITION, 0),
        ):
            assert [segment.start_offset for segment in listed] == [0, 10, 20]
        assert assigned.list_remote_log_segments(PARTITION, 8) == []
        assert assigned.remote_log_size(PARTITION, 0) == 3000
        assert assigned.remote_log_size(PARTITION, 8) == 0

    def test_next_segment_with_transaction_index_is_found(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        empty = make_segment(1, {0: 0}, 9, txn_index_empty=True)
        indexed = make_segment(2, {0: 10}, 19)
        for segment in (empty, indexed):
            self.add(assigned, segment)
            self.move(assigned, segment, FINISHED)
        following = assigned.next_segment_with_txn_index(PARTITION, 0, 5)
        assert following is not None
        assert following.segment_id == indexed.segment_id
        assert assigned.next_segment_with_txn_index(PARTITION, 0, 20) is None

    def test_custom_metadata_is_replaced_by_each_update(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        segment = make_segment(1, {0: 0}, 9)
        self.add(assigned, segment)
        for custom in (b"bucket", b"", None):
            state = FINISHED if custom == b"bucket" else DELETE_STARTED
            update = make_update(segment, state, custom)
            assigned.update_remote_log_segment_metadata(update).result(WAIT_S)
            assert assigned.list_remote_log_segments(PARTITION)[0].custom_metadata == custom

    def test_wrong_kind_of_state_is_refused(self, assigned: RemoteLogMetadataManager) -> None:
        segment = make_segment(1, {0: 0}, 9)
        with pytest.raises(ValueError, match="COPY_SEGMENT_STARTED"):
            assigned.add_remote_log_segment_metadata(replace(segment, state=FINISHED))
        with pytest.raises(ValueError, match="COPY_SEGMENT_STARTED"):
            assigned.update_remote_log_segment_metadata(make_update(segment, STARTED))

    def test_partition_that_is_not_assigned_is_not_found(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        assert not assigned.is_ready(OTHER)
        with pytest.raises(RemoteResourceNotFoundError):
            assigned.list_remote_log_segments(OTHER)
        with pytest.raises(RemoteResourceNotFoundError):
            assigned.add_remote_log_segment_metadata(make_segment(1, {0: 0}, 9, partition=OTHER))

    def test_partition_assigned_again_has_its_segments_again(
        self, assigned: RemoteLogMetadataManager, settle: Callable[[], None]
    ) -> None:
        segment = make_segment(1, {0: 0}, 9)
        self.add(assigned, segment)
        self.move(assigned, segment, FINISHED)
        assigned.on_stop_partitions([PARTITION])
        assert not assigned.is_ready(PARTITION)
        assigned.on_partition_leadership_changes([], [PARTITION, OTHER])
        settle()
        assert assigned.is_ready(PARTITION)
        assert assigned.remote_log_segment_metadata(PARTITION, 0, 5) is not None
        assert assigned.list_remote_log_segments(OTHER) == []

    def test_partition_whose_deletion_is_finished_is_forgotten(
        self, assigned: RemoteLogMetadataManager
    ) -> None:
        self.add(assigned, make_segment(1, {0: 0}, 9))
        for state in RemotePartitionDeleteState:
            assigned.put_remote_partition_delete_metadata(
                RemotePartitionDeleteMetadata(
                    topic_id_partition=PARTITION, state=state, event_timestamp_ms=1, broker_id=0
                )
            ).result(WAIT_S)
        with pytest.raises(RemoteResourceNotFoundError):
            assigned.list_remote_log_segments(PARTITION)

    def test_many_segments_of_many_partitions_stay_apart(
        self, manager: RemoteLogMetadataManager, settle: Callable[[], None]
    ) -> None:
        rng = random.Random(0)  # noqa: S311 - test data
        partitions = [TopicIdPartition(uuid.UUID(int=9), "many", number) for number in range(8)]
        manager.on_partition_leadership_changes(partitions[:4], partitions[4:])
        settle()
        expected: dict[TopicIdPartition, list[int]] = {partition: [] for partition in partitions}
        for number in range(80):
            partition = rng.choice(partitions)
            start = 10 * len(expected[partition])
            self.add(manager, make_segment(number, {0: start}, start + 9, partition=partition))
            expected[partition].append(start)
        for partition, starts in expected.items():
            listed = manager.list_remote_log_segments(partition)
            assert [segment.start_offset for segment in listed] == starts

    def test_close_twice_is_no_error(self, manager: RemoteLogMetadataManager) -> None:
        manager.close()
        manager.close()
