"""The rules for the batches of a segment: order, place, leader epochs, and a record for each
offset.
"""

from __future__ import annotations

import struct
import uuid

import pytest

from isotherm.record.batch import build_batch
from isotherm.record.batch_header import ATTRIBUTES_POSITION, DELETE_HORIZON_FLAG
from isotherm.record.batch_table import read_batch_table
from isotherm.remote.history.batch_chain import BatchChain, ChainFault
from isotherm.remote.history.holes import Gaps
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.types import TopicIdPartition

SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(uuid.UUID(int=1), "t", 0), uuid.UUID(int=2)),
    start_offset=10,
    end_offset_inclusive=29,
    max_timestamp_ms=0,
    broker_id=0,
    event_timestamp_ms=0,
    segment_size_in_bytes=1,
    segment_leader_epochs={0: 10, 3: 20},
)
COUNT_POSITION, LAST_DELTA_POSITION = 57, 23


def batch(
    offset: int, size: int = 2, *, count: int | None = None, epoch: int | None = None
) -> bytearray:
    """A batch of `size` offsets with `count` records."""
    count = size if count is None else count
    epoch = (0 if offset < 20 else 3) if epoch is None else epoch
    made = build_batch(
        [(0, None, b"v", ())] * max(count, 1), base_offset=offset, partition_leader_epoch=epoch
    )
    made[COUNT_POSITION : COUNT_POSITION + 4] = struct.pack(">i", count)
    made[LAST_DELTA_POSITION : LAST_DELTA_POSITION + 4] = struct.pack(">i", size - 1)
    return made


def emptied(offset: int, size: int = 2) -> bytearray:
    """A batch whose records compaction has removed."""
    made = batch(offset, size, count=0)[:61]
    made[8:12] = (49).to_bytes(4)
    return made


def of_cleaned_log(made: bytearray) -> bytearray:
    made[ATTRIBUTES_POSITION + 1] |= DELETE_HORIZON_FLAG
    return made


def fault(
    run: list[bytearray], gaps: Gaps = Gaps.REFUSED, next_offset: int = 10, *, is_start: bool = True
) -> ChainFault | None:
    content = b"".join(run)
    table = read_batch_table(content)[0]
    assert len(table) == len(run)
    return BatchChain(SEGMENT, gaps).first_fault(content, table, next_offset, is_start=is_start)


@pytest.mark.parametrize("gaps", Gaps)
@pytest.mark.parametrize(
    ("run", "next_offset", "is_start"),
    [
        ([], 10, True),
        ([batch(10), batch(12, 8), batch(20, 10)], 10, True),
        ([batch(10)], 10, True),
        # A read begins in the middle of a batch.
        ([batch(10, 5), batch(15)], 13, True),
        ([batch(12, 3), batch(15)], 12, True),
        ([batch(28)], 28, False),
        # A batch without an epoch contradicts none.
        ([batch(18, epoch=-1), batch(20, epoch=-1)], 18, False),
    ],
)
def test_whole_run_of_batches_is_sound(
    *, run: list[bytearray], next_offset: int, is_start: bool, gaps: Gaps
) -> None:
    assert fault(run, gaps, next_offset, is_start=is_start) is None


@pytest.mark.parametrize("gaps", Gaps)
@pytest.mark.parametrize(
    ("run", "next_offset", "is_start", "row", "fact"),
    [
        ([batch(8, 4)], 10, True, 0, "other offsets than its segment"),
        ([batch(10, 5)], 13, False, 0, "other offsets than its segment"),
        ([batch(10), batch(11)], 10, True, 1, "other offsets than its segment"),
        ([batch(10), batch(10)], 10, True, 1, "other offsets than its segment"),
        ([batch(26), batch(28, 3)], 26, False, 1, "other offsets than its segment"),
        ([batch(30)], 30, False, 0, "other offsets than its segment"),
        ([batch(18), batch(20, epoch=0)], 18, False, 1, "another leader epoch"),
        ([batch(18, epoch=3)], 18, False, 0, "another leader epoch"),
        ([batch(10), batch(12, 2, count=3)], 10, True, 1, "more records than offsets"),
        ([batch(10, 1, count=2), batch(11, 2, count=3)], 10, True, 0, "more records than offsets"),
    ],
)
def test_batch_that_is_not_of_its_place_is_found(
    *,
    run: list[bytearray],
    next_offset: int,
    is_start: bool,
    row: int,
    fact: str,
    gaps: Gaps,
) -> None:
    found = fault(run, gaps, next_offset, is_start=is_start)
    assert found is not None
    assert (found.row, found.missing) == (row, None)
    assert fact in found.fact


def test_fault_names_what_was_expected_and_what_is_there() -> None:
    found = fault([batch(18), batch(20, 4, count=1, epoch=2)], Gaps.PERMITTED, 18, is_start=False)
    assert found is not None
    assert found.fact == (
        "batch has another leader epoch than its segment base_offset=20 next_offset=24"
        " records_count=1 expected_from=20 expected_to=30 epoch=2 expected_epoch=3"
    )


def test_bytes_of_records_without_a_count_are_found_and_an_emptied_batch_is_sound() -> None:
    found = fault([batch(10), batch(12, count=0)], Gaps.PERMITTED)
    assert found is not None
    assert (found.row, found.fact[:40]) == (1, "batch has bytes of records, but no count")
    assert fault([batch(10), emptied(12), batch(14)], Gaps.PERMITTED) is None


@pytest.mark.parametrize(
    ("run", "next_offset", "is_start", "row", "missing"),
    [
        ([batch(12)], 10, True, 0, (10, 12)),
        ([batch(12)], 11, False, 0, (11, 12)),
        ([batch(10), batch(13)], 10, True, 1, (12, 13)),
        ([batch(10), batch(12), batch(20), batch(24)], 10, True, 2, (14, 20)),
    ],
)
def test_offsets_missing_between_batches_are_named_unless_gaps_are_permitted(
    *,
    run: list[bytearray],
    next_offset: int,
    is_start: bool,
    row: int,
    missing: tuple[int, int],
) -> None:
    for gaps in (Gaps.REFUSED, Gaps.WHERE_CLEANED):
        found = fault(run, gaps, next_offset, is_start=is_start)
        assert found is not None
        assert (found.row, found.missing) == (row, missing)
        first, end = missing
        assert found.fact == f"offsets are missing before a batch first={first} last={end - 1}"
    assert fault(run, Gaps.PERMITTED, next_offset, is_start=is_start) is None


def test_batch_with_fewer_records_than_offsets_shows_a_cleaned_log() -> None:
    run = [batch(10), batch(12, 4, count=1), batch(18)]
    found = fault(run)
    assert found is not None
    assert (found.row, found.missing) == (1, (12, 16))
    assert found.fact == "batch lacks records first=12 last=15"
    for gaps in (Gaps.WHERE_CLEANED, Gaps.PERMITTED):
        assert fault(run, gaps) is None


@pytest.mark.parametrize("marked", [0, 1])
def test_delete_horizon_shows_a_cleaned_log(marked: int) -> None:
    run = [batch(10), batch(14)]
    run[marked] = of_cleaned_log(run[marked])
    assert fault(run, Gaps.WHERE_CLEANED) is None
    found = fault(run, Gaps.REFUSED)
    assert found is not None
    assert found.missing == (12, 14)


def test_first_of_a_gap_and_a_fault_is_named() -> None:
    gap_first = fault([batch(12), batch(14, epoch=3)])
    assert gap_first is not None
    assert (gap_first.row, gap_first.missing) == (0, (10, 12))
    fault_first = fault([batch(10, epoch=3), batch(14)])
    assert fault_first is not None
    assert (fault_first.row, fault_first.missing) == (0, None)
    # In one batch the fault explains more than the gap.
    both = fault([batch(12, epoch=3)])
    assert both is not None
    assert (both.row, both.missing) == (0, None)


def test_batch_that_contradicts_itself_is_found() -> None:
    sound = batch(10)
    bad = batch(12)
    bad[ATTRIBUTES_POSITION + 1] |= 0x10
    found = fault([sound, bad], Gaps.PERMITTED)
    assert found is not None
    assert found.row == 1
    assert "transactional batch has no producer" in found.fact


def test_run_in_which_every_batch_lacks_records_is_no_usual_run() -> None:
    run = [batch(10, 4, count=1), batch(14, 3, count=2)]
    found = fault(run)
    assert found is not None
    assert (found.row, found.missing) == (0, (10, 14))
    assert fault(run, Gaps.WHERE_CLEANED) is None
    empty = fault([batch(10, 4, count=0)], Gaps.PERMITTED)
    assert empty is not None
    assert "but no count" in empty.fact
