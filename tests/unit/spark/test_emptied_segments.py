"""Spark's reader and the scrub on segments that a cleaner has emptied, or damage has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.remote.history.holes import Gaps
from isotherm.remote.scrub.segment_scrub import SegmentScrubber
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.plan.planning import SegmentPiece, SegmentRead
from isotherm.spark.reading.read_errors import SegmentReadError
from isotherm.spark.reading.readers import ReadSettings, read_segments
from isotherm.spark.reading.time_lookup import first_offset_not_before
from isotherm.types import Offset
from tests.support.compacted_tier import (
    EMPTY,
    FULL,
    PATTERNS,
    PER_SEGMENT,
    copy_all,
    offsets_of,
    open_compacted,
)
from tests.support.tiered_partition import TieredPartition


def open_tier(directory: Path, pattern: tuple[str, ...]) -> TieredPartition:
    partition = open_compacted(directory / "p", pattern)
    copy_all(partition)
    return partition


def settings_of(partition: TieredPartition) -> ObjectStoreSettings:
    return ObjectStoreSettings(url=partition.bucket.as_uri())


def offsets_read(partition: TieredPartition, gaps: Gaps, *, parts: int = 1) -> list[Offset]:
    reads = [
        part
        for segment in partition.segments()
        for part in SegmentRead(
            segment, segment.start_offset, segment.end_offset_inclusive + 1
        ).split(parts)
    ]
    storage = ObjectStoreRemoteStorageManager(settings_of(partition))
    columns = read_segments(
        reads, storage, frozenset({"value"}), settings=ReadSettings(4096, gaps=gaps)
    )
    return [offset for _, each in columns for offset in each.offset.tolist()]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_read_that_permits_gaps_gives_the_records_that_are_left(
    tmp_path: Path, pattern: tuple[str, ...], parts: int
) -> None:
    partition = open_tier(tmp_path, pattern)
    of_tier = [offset for offset in offsets_of(pattern) if offset < PER_SEGMENT * len(pattern)]
    assert offsets_read(partition, Gaps.PERMITTED, parts=parts) == of_tier


def test_read_that_permits_no_gap_names_the_offsets_of_an_empty_segment(tmp_path: Path) -> None:
    with pytest.raises(SegmentReadError, match="first=2 last=3 size=0"):
        offsets_read(open_tier(tmp_path, (FULL, EMPTY, FULL)), Gaps.REFUSED)


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_look_up_by_time_goes_on_behind_an_empty_segment(
    tmp_path: Path, pattern: tuple[str, ...]
) -> None:
    partition = open_tier(tmp_path, pattern)
    pieces = [
        SegmentPiece(segment, segment.start_offset, segment.end_offset_inclusive + 1)
        for segment in partition.segments()
    ]
    storage = ObjectStoreRemoteStorageManager(settings_of(partition))
    for offset in range(PER_SEGMENT * len(pattern)):
        found = first_offset_not_before(pieces, storage, 1000 + offset, gaps=Gaps.PERMITTED)
        following = [each for each in offsets_of(pattern) if each >= offset]
        assert found == (following[0] if following[0] < PER_SEGMENT * len(pattern) else None)


@pytest.mark.parametrize("gaps", [Gaps.REFUSED, Gaps.PERMITTED])
def test_object_that_has_lost_its_content_is_no_empty_segment(tmp_path: Path, gaps: Gaps) -> None:
    """A plan from a listing takes the size of the object for that of the segment."""
    partition = open_tier(tmp_path, (FULL, FULL, FULL))
    lost = partition.segments()[1]
    (path,) = partition.bucket.rglob(f"{lost.start_offset:020d}-*.log")
    path.write_bytes(b"")
    with pytest.raises(SegmentReadError, match="start_offset=2 end_offset=4"):
        offsets_read(partition, gaps)
    listed = replace(lost, segment_size_in_bytes=0)
    storage = ObjectStoreRemoteStorageManager(settings_of(partition))
    columns = read_segments(
        [SegmentRead(listed, 2, 4)],
        storage,
        frozenset({"value"}),
        settings=ReadSettings(4096, gaps=gaps),
    )
    with pytest.raises(SegmentReadError, match="object is empty and the segment's indexes are not"):
        list(columns)


@pytest.mark.parametrize("may_have_gaps", [False, True])
def test_scrub_reports_an_empty_segment_as_a_gap(tmp_path: Path, may_have_gaps: bool) -> None:
    partition = open_tier(tmp_path, (FULL, EMPTY, FULL))
    scrubber = SegmentScrubber.of_bucket(settings_of(partition), may_have_gaps=may_have_gaps)
    first, empty, last = partition.segments()
    assert scrubber.scrub(first, None).findings == ()
    assert [finding.kind for finding in scrubber.scrub(empty, first).findings] == (
        [] if may_have_gaps else ["offset-gap"]
    )
    assert scrubber.scrub(last, empty).findings == ()
