"""The map of a repartition against a model that knows the place of each record."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.jobs.moved_offsets import (
    MOVED,
    TranslatedOffset,
    moved_ranges,
    moved_rules,
    translated_offsets,
)
from isotherm.types import TopicIdPartition

TOPIC_ID = uuid.UUID(int=7)
OLD_PARTITIONS = 3
ROW_BYTES = 8

# The old partition of each record of a new partition, with how many offsets it leaves out.
new_partitions = st.lists(
    st.lists(st.tuples(st.integers(0, OLD_PARTITIONS - 1), st.integers(1, 3)), max_size=30),
    min_size=1,
    max_size=3,
)
groups = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.integers(0, OLD_PARTITIONS - 1), st.integers(0, 60)),
)


def old_places(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The old partition and offset of each record, in the order of the new partition."""
    ends = dict.fromkeys(range(OLD_PARTITIONS), 0)
    places = []
    for partition, step in steps:
        ends[partition] += step
        places.append((partition, ends[partition]))
    return places


def map_of(
    places: list[list[tuple[int, int]]],
    starts: list[int],
    committed: dict[str, dict[int, int]],
    range_rows: int,
) -> pa.Table:
    rules = moved_rules(OLD_PARTITIONS, committed, range_rows * ROW_BYTES)
    batches = [
        moved_ranges(
            pa.RecordBatch.from_pydict(
                {"tie": pa.array([o * OLD_PARTITIONS + p for p, o in mine], pa.int64())}
            ),
            number,
            start,
            rules,
        )
        for number, (mine, start) in enumerate(zip(places, starts, strict=True))
    ]
    return pa.Table.from_batches(batches, MOVED)


def owners(starts: list[int]) -> dict[TopicIdPartition, int]:
    return {TopicIdPartition(TOPIC_ID, "new", n): start for n, start in enumerate(starts)}


def model(
    places: list[list[tuple[int, int]]], starts: list[int], committed: dict[str, dict[int, int]]
) -> list[TranslatedOffset]:
    translated = []
    for group, offsets in sorted(committed.items()):
        for number, (mine, start) in enumerate(zip(places, starts, strict=True)):
            seen = [offset < offsets.get(partition, 0) for partition, offset in mine]
            first = seen.index(False) if False in seen else len(seen)
            translated.append(TranslatedOffset(group, number, start + first, sum(seen[first:])))
    return translated


@given(new_partitions, groups, st.integers(1, 12), st.integers(0, 5))
def test_offsets_are_translated_as_record_by_record(
    steps: list[list[tuple[int, int]]],
    committed: dict[str, dict[int, int]],
    range_rows: int,
    start: int,
) -> None:
    places = [old_places(step) for step in steps]
    starts = [start * number for number in range(len(places))]
    moved = map_of(places, starts, committed, range_rows)
    assert translated_offsets(moved, committed, owners(starts)) == model(places, starts, committed)


@given(new_partitions, groups, st.integers(1, 12))
def test_a_map_made_without_the_groups_skips_nothing(
    steps: list[list[tuple[int, int]]], committed: dict[str, dict[int, int]], range_rows: int
) -> None:
    places = [old_places(step) for step in steps]
    starts = [0] * len(places)
    moved = map_of(places, starts, {}, range_rows)
    translated = translated_offsets(moved, committed, owners(starts))
    for ours, exact in zip(translated, model(places, starts, committed), strict=True):
        assert ours.offset <= exact.offset
        # What is seen behind the offset: the records in between, too.
        assert ours.repeated >= exact.repeated + exact.offset - ours.offset


@given(new_partitions, groups, st.integers(1, 12))
def test_ranges_hold_each_record_once(
    steps: list[list[tuple[int, int]]], committed: dict[str, dict[int, int]], range_rows: int
) -> None:
    places = [old_places(step) for step in steps]
    moved = map_of(places, [0] * len(places), committed, range_rows).to_pylist()
    for number, mine in enumerate(places):
        ranges = [each for each in moved if each["new_partition"] == number]
        assert sum(each["records"] for each in ranges) == len(mine)
        for new_offset, (partition, offset) in enumerate(mine):
            (one,) = [
                each
                for each in ranges
                if each["old_partition"] == partition
                and each["old_start_offset"] <= offset < each["old_end_offset"]
            ]
            assert one["new_start_offset"] <= new_offset < one["new_end_offset"]
        assert all(np.diff([each["new_start_offset"] for each in ranges]) != 0)
