"""Groups of segments that are cleaned into one. Some are cases of Kafka's LogCleanerTest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isotherm.log.cleaner.cleaner import group_segments

INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Segment:
    base_offset: int
    size_in_bytes: int = 100
    offset_index_size: int = 16
    time_index_size: int = 12


def bases(
    segments: list[Segment],
    *,
    size: int = INT_MAX,
    index_size: int = INT_MAX,
    end_offset: int = 10**6,
) -> list[list[int]]:
    groups = group_segments(
        segments,
        segment_size_max=size,
        index_size_max=index_size,
        first_uncleanable_offset=end_offset,
    )
    return [[segment.base_offset for segment in group] for group in groups]


TEN = [Segment(10 * number) for number in range(10)]


def test_segments_that_fit_are_one_group() -> None:
    assert bases(TEN) == [[10 * number for number in range(10)]]
    assert bases([]) == []


@pytest.mark.parametrize("bound", [{"size": 1}, {"index_size": 1}])
def test_segments_above_the_bound_stay_alone(bound: dict[str, int]) -> None:
    assert bases(TEN, **bound) == [[10 * number] for number in range(10)]


@pytest.mark.parametrize(
    "bound", [{"size": 301}, {"size": 300}, {"index_size": 49}, {"index_size": 48}]
)
def test_groups_are_as_large_as_the_bound_allows(bound: dict[str, int]) -> None:
    assert bases(TEN, **bound) == [[0, 10, 20], [30, 40, 50], [60, 70, 80], [90]]


def test_time_indexes_are_bounded_too() -> None:
    segments = [Segment(number, time_index_size=60) for number in range(4)]
    assert bases(segments, index_size=120) == [[0, 1], [2, 3]]


def test_segment_ends_where_the_very_next_one_begins() -> None:
    far = INT_MAX + 50
    segments = [Segment(0), Segment(10), Segment(20), Segment(30), Segment(far)]
    assert bases(segments, end_offset=far + 10) == [[0, 10, 20], [30], [far]]


def test_offsets_of_a_group_fit_its_base() -> None:
    """testSegmentGroupingWithSparseOffsets: the next base offset bounds the end of a segment."""
    assert bases([Segment(0), Segment(10), Segment(INT_MAX)], end_offset=INT_MAX + 1) == [
        [0, 10, INT_MAX]
    ]
    assert bases([Segment(0), Segment(10), Segment(INT_MAX)], end_offset=INT_MAX + 2) == [
        [0, 10],
        [INT_MAX],
    ]
    sparse = [Segment(0), Segment(10), Segment(INT_MAX + 2)]
    assert bases(sparse, end_offset=INT_MAX + 20) == [[0], [10], [INT_MAX + 2]]


def test_empty_segments_join_wherever_the_next_one_begins() -> None:
    far = 5 * INT_MAX
    assert bases([Segment(0), Segment(far, size_in_bytes=0)], end_offset=far + 1) == [[0, far]]
