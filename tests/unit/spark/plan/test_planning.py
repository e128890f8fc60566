"""Pure planning: the lineage of overlapping segments, and the division of offset ranges into
tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark import cloudpickle

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import (
    Beside,
    BrokerRead,
    ProducersAt,
    ReadTask,
    SegmentPiece,
    SegmentRead,
    divide_range,
    limit_range_sizes,
    lineage_pieces,
    plan_reads,
    plan_tasks,
    split_ranges,
)
from isotherm.spark.source_task import TaskPartition
from isotherm.types import TopicPartition

SegmentFactory = Callable[..., RemoteLogSegmentMetadata]
A0, A1, A2 = (TopicPartition("a", partition) for partition in range(3))
MB = 1024 * 1024


def shape(pieces: list[SegmentPiece]) -> list[tuple[int, int, int]]:
    """(base offset of the segment, start, end) of each piece."""
    return [(p.segment.start_offset, p.start_offset, p.end_offset) for p in pieces]


def test_lineage_of_adjacent_segments_is_the_segments(segment: SegmentFactory) -> None:
    pieces = lineage_pieces([segment(100, 199), segment(0, 99)])
    assert shape(pieces) == [(0, 0, 100), (100, 100, 200)]


def test_lineage_truncates_an_epoch_where_a_later_one_begins(segment: SegmentFactory) -> None:
    # An unclean election at offset 50, although epoch 1 had reached 100.
    pieces = lineage_pieces(
        [segment(0, 100, epochs={1: 0}), segment(50, 150, epochs={2: 50}, number=7)]
    )
    assert shape(pieces) == [(0, 0, 50), (50, 50, 151)]


def test_lineage_drops_an_epoch_that_a_later_one_wholly_replaced(segment: SegmentFactory) -> None:
    pieces = lineage_pieces(
        [
            segment(0, 99, epochs={1: 0}),
            segment(100, 199, epochs={2: 100}),
            segment(60, 120, epochs={1: 60, 3: 80}, number=7),
        ]
    )
    assert shape(pieces) == [(0, 0, 80), (60, 80, 121)]


def test_lineage_reads_overlapping_copies_once_taking_the_farthest(segment: SegmentFactory) -> None:
    # The vectors of Kafka's RemoteLogLeaderEpochStateTest. Only 4-200 is needed.
    pieces = lineage_pieces([segment(10, 100), segment(5, 150), segment(148, 155), segment(4, 200)])
    assert shape(pieces) == [(4, 4, 201)]


def test_lineage_takes_the_newest_of_two_equal_copies(segment: SegmentFactory) -> None:
    older = segment(0, 99, number=1, event_timestamp_ms=5)
    newer = segment(0, 99, number=2, event_timestamp_ms=6)
    assert [p.segment for p in lineage_pieces([newer, older])] == [newer]
    assert [p.segment for p in lineage_pieces([older, newer])] == [newer]


def test_lineage_of_partial_overlap_continues_where_the_first_ends(segment: SegmentFactory) -> None:
    assert shape(lineage_pieces([segment(0, 99), segment(50, 149)])) == [
        (0, 0, 100),
        (50, 100, 150),
    ]


def test_lineage_reads_the_outer_of_two_nested_segments_whole(segment: SegmentFactory) -> None:
    # Kafka's own cache loses offsets 51 to 99 here, though the bucket has the records.
    assert shape(lineage_pieces([segment(0, 99), segment(20, 50)])) == [(0, 0, 100)]


def test_lineage_keeps_a_segment_with_two_epochs_in_one_piece(segment: SegmentFactory) -> None:
    assert shape(lineage_pieces([segment(0, 99, epochs={3: 0, 4: 60})])) == [(0, 0, 100)]


def test_lineage_of_no_segments_is_empty() -> None:
    assert lineage_pieces([]) == []


def read_shape(reads: list) -> list[tuple[str, int, int]]:
    return [(type(read).__name__, read.start_offset, read.end_offset) for read in reads]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 300, [("SegmentRead", 0, 100), ("SegmentRead", 100, 200), ("BrokerRead", 200, 300)]),
        (150, 160, [("SegmentRead", 150, 160)]),
        (100, 200, [("SegmentRead", 100, 200)]),
        (99, 101, [("SegmentRead", 99, 100), ("SegmentRead", 100, 101)]),
        (250, 300, [("BrokerRead", 250, 300)]),
        (200, 200, []),
        (40, 40, []),
    ],
)
def test_reads_join_bucket_and_broker_without_gap_or_overlap(
    segment: SegmentFactory, start: int, end: int, expected: list
) -> None:
    pieces = lineage_pieces([segment(0, 99), segment(100, 199)])
    assert read_shape(plan_reads(pieces, OffsetRange(A0, start, end))) == expected


def test_reads_of_a_hole_in_the_bucket_come_from_the_broker(segment: SegmentFactory) -> None:
    pieces = lineage_pieces([segment(10, 99), segment(150, 199)])
    assert read_shape(plan_reads(pieces, OffsetRange(A0, 0, 200))) == [
        ("BrokerRead", 0, 10),
        ("SegmentRead", 10, 100),
        ("BrokerRead", 100, 150),
        ("SegmentRead", 150, 200),
    ]


def test_reads_of_the_tail_weigh_as_the_last_segments_records(segment: SegmentFactory) -> None:
    (_, tail) = plan_reads(lineage_pieces([segment(0, 99, size=700)]), OffsetRange(A0, 0, 110))
    assert tail.size_in_bytes == 70


def test_divide_range_cuts_as_kafka_does() -> None:
    assert [r[1:] for r in divide_range(OffsetRange(A0, 0, 10), 3)] == [(0, 3), (3, 6), (6, 10)]
    assert [r[1:] for r in divide_range(OffsetRange(A0, 5, 7), 4)] == [(5, 6), (6, 7)]


def sizes(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int]]:
    return [(r.topic_partition, r.size) for r in ranges]


# Cases of Spark's KafkaOffsetRangeCalculatorSuite.
@pytest.mark.parametrize(
    ("ranges", "partitions_min", "expected"),
    [
        ([(A0, 1, 1), (A1, 1, 2)], 1, [(A1, 1)]),
        ([(A0, 1, 5)], 2, [(A0, 2), (A0, 2)]),
        ([(A0, 1, 2)], 3, [(A0, 1)]),
        ([(A0, 1, 5)], 4, [(A0, 1)] * 4),
        ([(A0, 0, 40), (A1, 0, 10), (A2, 0, 20)], 4, [(A0, 20), (A0, 20), (A1, 10), (A2, 20)]),
        ([(A0, 1, 6)], 2, [(A0, 2), (A0, 3)]),
    ],
)
def test_min_partitions_splits_as_kafka_does(
    ranges: list, partitions_min: int, expected: list
) -> None:
    assert sizes(split_ranges([OffsetRange(*r) for r in ranges], partitions_min)) == expected


def test_max_records_cuts_every_range_to_the_limit() -> None:
    ranges = [OffsetRange(A0, 0, 5), OffsetRange(A1, 3, 3), OffsetRange(A2, 0, 2)]
    assert sizes(limit_range_sizes(ranges, 2)) == [(A0, 1), (A0, 2), (A0, 2), (A2, 2)]


def reads_of(segment: SegmentFactory, *sizes_mb: int, partition: int = 0) -> list[SegmentRead]:
    return [
        SegmentRead(
            segment(index * 100, index * 100 + 99, size=size * MB, partition=partition),
            index * 100,
            index * 100 + 100,
        )
        for index, size in enumerate(sizes_mb)
    ]


def task_sizes_mb(tasks: list[ReadTask]) -> list[int]:
    return [task.size_in_bytes // MB for task in tasks]


def test_tasks_split_a_large_segment_into_equal_parts(segment: SegmentFactory) -> None:
    tasks = plan_tasks([reads_of(segment, 1024)], 256 * MB)
    assert task_sizes_mb(tasks) == [256] * 4
    reads = [read for task in tasks for read in task.reads]
    assert [read.start_offset for read in reads] == [0, 25, 50, 75]
    assert [read.end_offset for read in reads] == [25, 50, 75, 100]


def test_tasks_merge_small_segments_of_a_partition(segment: SegmentFactory) -> None:
    assert task_sizes_mb(plan_tasks([reads_of(segment, *[100] * 7)], 256 * MB)) == [300, 300, 100]


def test_tasks_of_tiny_partitions_are_shared_and_those_of_larger_ones_are_not(
    segment: SegmentFactory,
) -> None:
    ranges = [reads_of(segment, size, partition=p) for p, size in enumerate([8, 8, 20, 40, 40])]
    assert task_sizes_mb(plan_tasks(ranges, 256 * MB)) == [36, 40, 40]
    assert task_sizes_mb(plan_tasks(ranges, 256 * MB, merge_ranges=False)) == [8, 8, 20, 40, 40]


def test_tasks_split_a_large_tail_by_offsets(segment: SegmentFactory) -> None:
    tail = BrokerRead(A0, 10, 10 + 1024, record_size=MB)
    tasks = plan_tasks([[tail]], 256 * MB)
    assert [(t.reads[0].start_offset, t.reads[0].end_offset) for t in tasks] == [
        (10, 266),
        (266, 522),
        (522, 778),
        (778, 1034),
    ]


def test_tasks_hold_every_read_once_in_order(segment: SegmentFactory) -> None:
    ranges = [reads_of(segment, 10, 300, 5, 700, 90, partition=p) for p in range(3)]
    tasks = plan_tasks(ranges, 256 * MB)
    planned = [read for task in tasks for read in task.reads]
    whole = [(r.segment.segment_id, r.start_offset) for r in planned]
    assert len(set(whole)) == len(whole)
    assert sum(task_sizes_mb(tasks)) == pytest.approx(3 * 1105, abs=len(tasks))
    assert all(170 * MB <= t.size_in_bytes <= 384 * MB for t in tasks if t.size_in_bytes > 100 * MB)


def test_tasks_survive_pickling_and_are_small(segment: SegmentFactory) -> None:
    aborted = (AbortedTransaction(7, 1, 5, 0),)
    kept = replace(segment(0, 99, epochs={3: 0, 5: 60}, size=MB), custom_metadata=b"where it is")
    other = replace(kept, segment_id=segment(0, 9).segment_id)
    before = ProducersAt(other, (SegmentPiece(kept, 3, 10),))
    beside = Beside(10, 100, before)
    reads = [SegmentRead(kept, 10, 60, aborted, beside), BrokerRead(A0, 100, 110, record_size=9)]
    partition = TaskPartition(plan_tasks([reads], 256 * MB)[0], "aiven")
    sent = cloudpickle.dumps(partition)
    assert pickle.loads(sent) == partition
    assert len(sent) < 500


@pytest.mark.slow
def test_planning_many_segments_gives_tasks_of_the_target_size(
    segment: SegmentFactory,
) -> None:
    segments = [segment(i * 10, i * 10 + 9, size=64 * MB, number=i) for i in range(20_000)]
    pieces = lineage_pieces(segments)
    tasks = plan_tasks([plan_reads(pieces, OffsetRange(A0, 0, 200_000))], 256 * MB)
    assert {t.size_in_bytes for t in tasks[:-1]} == {384 * MB}
