"""Checks of a stretch of batches: which are sound, and which of them a reader gets."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import HEADER_SIZE, build_batch, read_batch_header
from isotherm.record.batch_header import encode_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.reading.checked_batches import (
    BatchPlace,
    CheckedBatches,
    check_batch,
    check_batches,
    check_place,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=1), "t", 0)
START = 1000
"""The position of the stretch in its segment."""


def batch(offset: int, count: int = 2, value: bytes = b"v" * 20) -> bytearray:
    return build_batch([(0, None, value, ())] * count, base_offset=offset, partition_leader_epoch=0)


def metadata(size: int, end_offset_inclusive: int = 99) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=2)),
        start_offset=10,
        end_offset_inclusive=end_offset_inclusive,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=size,
        segment_leader_epochs={0: 10},
    )


def check(data: bytes | bytearray, next_offset: int = 10) -> CheckedBatches | None:
    return check_batches(
        metadata(START + len(data)), memoryview(data), START, START, START + len(data), next_offset
    )


def checked(data: bytes | bytearray) -> CheckedBatches:
    found = check(data)
    assert found is not None
    return found


GOOD = [batch(10), batch(12, 3), batch(20)]
ENDS = [START + len(b"".join(GOOD[: count + 1])) for count in range(3)]


def test_whole_batches_are_found_and_a_cut_one_at_the_end_is_left() -> None:
    found = checked(b"".join(GOOD) + batch(30)[:-1])
    assert (found.start, found.end, found.next_offset) == (START, ENDS[2], 22)
    assert bytes(found.bytes_between(1, 3)) == bytes(GOOD[1] + GOOD[2])
    assert found.end_of(0) == (ENDS[0], 12)


@pytest.mark.parametrize("size", [0, 5, 61, len(GOOD[0]) - 1])
def test_stretch_without_a_whole_batch_has_nothing_to_check(size: int) -> None:
    assert check(GOOD[0][:size]) is None


@pytest.mark.parametrize(
    ("offset", "place"),
    [
        (0, BatchPlace(START, len(GOOD[0]), 10)),
        (11, BatchPlace(START, len(GOOD[0]), 10)),
        (12, BatchPlace(ENDS[0], len(GOOD[1]), 12)),
        (15, BatchPlace(ENDS[1], len(GOOD[2]), 20)),
        (21, BatchPlace(ENDS[1], len(GOOD[2]), 20)),
        (22, None),
    ],
)
def test_batch_is_found_by_the_offset_it_ends_at_or_above(
    offset: int, place: BatchPlace | None
) -> None:
    assert checked(b"".join(GOOD)).find(START, offset) == place


def test_batch_before_the_position_is_not_found() -> None:
    assert checked(b"".join(GOOD)).find(ENDS[0], 0) == BatchPlace(ENDS[0], len(GOOD[1]), 12)


def test_position_at_which_no_batch_begins_is_damage() -> None:
    found = checked(b"".join(GOOD))
    for position in (START + 1, ENDS[2]):
        with pytest.raises(CorruptRecordError, match=f"no batch begins there position={position}"):
            found.find(position, 0)


def test_batches_fit_by_their_end_and_by_their_first_offset() -> None:
    found = checked(b"".join(GOOD))
    assert [found.count_fitting(0, end, 99) for end in (ENDS[0] - 1, ENDS[0], ENDS[1], 9999)] == [
        0,
        1,
        2,
        3,
    ]
    assert [found.count_fitting(0, 9999, offset) for offset in (10, 12, 13, 20, 21)] == [
        0,
        1,
        2,
        2,
        3,
    ]
    assert found.count_fitting(2, ENDS[1], 99) == 0


def damaged(index: int, at: int, value: int) -> bytearray:
    bad = [bytearray(each) for each in GOOD]
    bad[index][at] ^= value
    return bytearray().join(bad)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (16, 1, "magic"),
        (40, 1, "crc"),
        (70, 1, "crc"),
        (5, 0x40, "outside its segment"),
        (1, 0x40, "outside its segment"),
        (15, 1, "another leader epoch"),
        (12, 0x80, "another leader epoch"),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_damaged_batch_hides_none_before_it_and_is_raised_when_it_is_the_first(
    index: int, at: int, value: int, reason: str
) -> None:
    bad = damaged(index, at, value)
    start = [START, *ENDS][index]
    if index > 0:
        assert checked(bad).end == start
    data = memoryview(bad)[start - START :]
    with pytest.raises(CorruptRecordError, match=reason):
        check_batches(metadata(START + len(bad)), data, start, start, START + len(bad), 0)


def test_length_that_reaches_too_far_looks_like_a_batch_that_is_not_there_yet() -> None:
    assert checked(damaged(1, 10, 0x40)).end == ENDS[0]
    assert check(damaged(0, 10, 0x40)) is None


def test_offsets_that_go_back_are_found() -> None:
    before = batch(10, 10) + batch(20)
    assert checked(before + batch(21)).end == START + len(before)
    with pytest.raises(CorruptRecordError, match="offsets go back"):
        check(batch(20), next_offset=21)


@pytest.mark.parametrize("before", [[], [batch(10)]])
def test_batch_that_was_moved_overlaps_the_next(before: list[bytearray]) -> None:
    """Its base offset, which no CRC covers, is one too high. At the beginning of a read only the
    overlap shows that."""
    moved = [*before, batch(13, 3), batch(15), batch(17)]
    if before:
        assert checked(b"".join(moved)).next_offset == 12
    else:
        with pytest.raises(CorruptRecordError, match=r"overlaps the next one .*base_offset=13"):
            check(b"".join(moved), next_offset=0)


@pytest.mark.parametrize("next_offset", [0, 10])
def test_batch_in_its_place_is_right_though_the_next_overlaps_it(next_offset: int) -> None:
    """The batch is at the segment's start, or behind another one."""
    found = check(b"".join([batch(10, 3), batch(13), batch(14)]), next_offset)
    assert found is not None
    assert found.next_offset == 15


def test_epoch_is_the_one_that_the_metadata_give_the_offset() -> None:
    """The first batch may lie below the first epoch's start: the log start was inside the
    segment."""
    size = START + len(b"".join(GOOD))
    for epochs, right in (({0: 10}, 3), ({0: 15}, 3), ({0: 10, 1: 20}, 2), ({0: 10, 1: 12}, 1)):
        claimed = replace(metadata(size), segment_leader_epochs=epochs)
        data = memoryview(b"".join(GOOD))
        found = check_batches(claimed, data, START, START, size, 10)
        assert found is not None
        assert len(found.positions) == right


def test_batch_without_an_epoch_contradicts_nothing() -> None:
    data = build_batch([(0, None, b"v", ())], base_offset=10, partition_leader_epoch=-1)
    assert checked(data).end == START + len(data)


CONTRADICTIONS = {
    "marker without the control bit": {"attributes": 0x10, "base_sequence": -1},
    "data with the control bit": {"attributes": 0x30, "base_sequence": 4},
    "data without a sequence": {"attributes": 0, "base_sequence": -1},
    "transaction without a producer": {"attributes": 0x10, "base_sequence": 4, "producer_id": -1},
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("index", [0, 1])
def test_batch_that_contradicts_itself_under_a_right_crc_is_damage(name: str, index: int) -> None:
    fields = CONTRADICTIONS[name]
    producer = {"producer_id": 5, "producer_epoch": 0}
    header = read_batch_header(GOOD[index])._replace(**(producer | fields))
    bad = [*GOOD]
    bad[index] = encode_batch(header, bytes(GOOD[index][HEADER_SIZE:]))
    data = b"".join(bad)
    if index > 0:
        assert checked(data).end == ENDS[index - 1]
    else:
        with pytest.raises(
            CorruptRecordError, match=r"control batch holds|control bit, or neither|has no producer"
        ):
            check(data)


def test_segments_bounds_are_inclusive() -> None:
    data = b"".join(GOOD)
    for end_offset, count in ((22, 3), (21, 3), (20, 2), (14, 2), (13, 1)):
        segment = metadata(START + len(data), end_offset)
        found = check_batches(segment, memoryview(data), START, START, START + len(data), 10)
        assert found is not None
        assert len(found.positions) == count
    before = replace(metadata(START + len(data)), start_offset=11)
    with pytest.raises(CorruptRecordError, match="outside its segment"):
        check_batches(before, memoryview(data), START, START, START + len(data), 0)


def test_place_of_a_batch_is_within_its_segment() -> None:
    header = read_batch_header(GOOD[0])
    size = len(GOOD[0])
    check_place(metadata(START + size, 11), START, header, 10)
    wrong = [
        (metadata(START + size - 1, 11), 10, "reaches beyond its segment"),
        (metadata(START + size, 10), 10, "outside its segment"),
        (replace(metadata(START + size), start_offset=11), 10, "outside its segment"),
        (metadata(START + size, 11), 11, "offsets go back"),
        (
            replace(metadata(START + size), segment_leader_epochs={1: 10}),
            10,
            "epoch=0 expected_epoch=1",
        ),
    ]
    for segment, next_offset, reason in wrong:
        with pytest.raises(CorruptRecordError, match=reason):
            check_place(segment, START, header, next_offset)


def test_single_batch_that_is_cut_off_is_damage() -> None:
    whole = check_batch(metadata(START + len(GOOD[0])), memoryview(GOOD[0]), START, 10)
    assert (whole.start, whole.end, whole.next_offset) == (START, ENDS[0], 12)
    cut = memoryview(GOOD[0])[:-1]
    with pytest.raises(CorruptRecordError, match=f"cut off position={START} size={len(cut)}"):
        check_batch(metadata(START + len(GOOD[0])), cut, START, 10)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_control_batches_are_noted_wherever_they_are(place: int) -> None:
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=[10, 12, 20][place],
    )
    assert not checked(b"".join(GOOD)).has_markers
    assert checked(b"".join([*GOOD[:place], marker, *GOOD[place + 1 :]])).has_markers


def test_bytes_of_batches_cannot_be_written_to() -> None:
    found = checked(bytearray(b"".join(GOOD)))
    assert found.bytes_between(0, 3).readonly
    assert bytes(found.bytes_between(0, 1)) == bytes(GOOD[0])
