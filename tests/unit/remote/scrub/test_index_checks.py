"""The checks of a segment's log and indexes at their borders: what Kafka writes is accepted, and
one more or less is not."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from isotherm.record.batch import NewRecord, TimestampType, build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.scrub.findings import FindingKind, Problem
from isotherm.remote.scrub.index_checks import (
    check_epoch_checkpoint,
    check_offset_index_entries,
    check_time_index_entries,
)
from isotherm.remote.scrub.log_batches import (
    LogBatches,
    check_epochs,
    check_offsets,
    check_same_batches,
    check_timestamp_types,
    read_log_batches,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, encode_leader_epoch_checkpoint
from isotherm.segment.offset_index import OffsetPosition, encode_offset_index
from isotherm.segment.time_index import TimestampOffset, encode_time_index
from isotherm.types import TopicIdPartition
from tests.support.filtered_batch import filtered_batch

OWNER = TopicIdPartition(uuid.UUID(int=1), "t", 0)
BASE = 100
# First offset, number of records, timestamp.
ROWS = [(100, 3, 10), (103, 1, 30), (104, 2, 20), (106, 1, 40)]


def batch(offset: int, count: int = 1, timestamp_ms: int = 10, **more: Any) -> bytes:
    records: list[NewRecord | tuple[int, bytes | None, bytes | None, Sequence[Any]]] = [
        (timestamp_ms, b"k", b"v", ())
    ] * count
    return bytes(build_batch(records, base_offset=offset, **more))


LOG = [batch(*row) for row in ROWS]
POSITIONS = [sum(map(len, LOG[:number])) for number in range(len(LOG))]


def read(log: Sequence[bytes], block_size: int = 10**6) -> LogBatches:
    content = memoryview(b"".join(log))
    blocks = [content[at : at + block_size] for at in range(0, len(content), block_size)]
    return read_log_batches(blocks, len(content))


def segment(
    end: int = 106, *, start: int = BASE, epochs: Mapping[int, int] | None = None
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(OWNER, uuid.UUID(int=2)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=40,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_in_bytes=1,
        segment_leader_epochs=epochs or {0: start},
    )


# Offset index


def offset_problems(*entries: tuple[int, int]) -> list[Problem]:
    """Entries are (offset, number of the batch in the log)."""
    index = encode_offset_index(
        [OffsetPosition(offset, POSITIONS[number]) for offset, number in entries], BASE
    )
    return check_offset_index_entries(index, read(LOG), segment())


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [(103, 1)],
        [(103, 1), (105, 2), (106, 3)],
        # One append of several batches: its last offset, and the position of its first batch.
        [(105, 1), (106, 3)],
        [(102, 0), (106, 1)],
    ],
)
def test_offset_index_as_any_kafka_writes_it_is_right(entries: list[tuple[int, int]]) -> None:
    assert offset_problems(*entries) == []


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([(104, 2)], [0]),
        ([(102, 1)], [0]),
        ([(103, 1), (104, 2), (106, 3)], [1]),
        ([(105, 1), (106, 2)], [0]),
        ([(103, 2), (105, 3)], [0, 1]),
    ],
    ids=["within a batch", "below it", "the second", "overlapping", "both too early"],
)
def test_offset_index_that_leads_elsewhere_is_wrong(
    entries: list[tuple[int, int]], wrong: list[int]
) -> None:
    found = offset_problems(*entries)
    assert [problem.kind for problem in found] == [FindingKind.WRONG_OFFSET_INDEX] * len(wrong)
    for problem, number in zip(found, wrong, strict=True):
        offset, at = entries[number]
        assert f"entry={number} offset={offset} position={POSITIONS[at]}" in problem.detail


def test_offset_index_with_a_position_within_a_batch_is_wrong() -> None:
    index = encode_offset_index([OffsetPosition(103, POSITIONS[1] + 1)], BASE)
    assert len(check_offset_index_entries(index, read(LOG), segment())) == 1


def test_index_that_ends_within_an_entry_is_wrong() -> None:
    (problem,) = check_offset_index_entries(b"\0" * 7, read(LOG), segment())
    assert problem.kind is FindingKind.WRONG_OFFSET_INDEX
    (problem,) = check_time_index_entries(b"\0" * 7, read(LOG), segment())
    assert problem.kind is FindingKind.WRONG_TIME_INDEX


def test_index_of_a_log_without_batches_leads_nowhere() -> None:
    index = encode_offset_index([OffsetPosition(103, 70)], BASE)
    assert len(check_offset_index_entries(index, read([]), segment())) == 1
    assert check_offset_index_entries(b"", read([]), segment()) == []
    times = encode_time_index([TimestampOffset(5, 100)], BASE)
    assert check_time_index_entries(times, read([]), segment()) == []


def test_five_wrong_entries_are_named() -> None:
    wrong = [OffsetPosition(BASE + 1 + number, 1 + number) for number in range(7)]
    index = encode_offset_index(wrong, BASE)
    found = check_offset_index_entries(index, read(LOG), segment())
    assert [each.detail.split("entry=")[1][0] for each in found] == ["0", "1", "2", "3", "4"]
    times = [TimestampOffset(1 + number, BASE) for number in range(7)]
    found = check_time_index_entries(encode_time_index(times, BASE), read(LOG), segment())
    assert [each.detail.split("entry=")[1][0] for each in found] == ["0", "1", "2", "3", "4"]


# Time index


def time_problems(*entries: tuple[int, int], log: Sequence[bytes] = LOG) -> list[str]:
    index = encode_time_index([TimestampOffset(*entry) for entry in entries], BASE)
    found = check_time_index_entries(index, read(log), segment())
    assert all(problem.kind is FindingKind.WRONG_TIME_INDEX for problem in found)
    return [problem.detail for problem in found]


@pytest.mark.parametrize(
    "entries",
    [
        [(40, 106)],
        [(10, 102), (30, 103), (40, 106)],
        # The largest timestamp so far, at a later offset or within its batch.
        [(10, 100), (30, 105), (40, 106)],
    ],
)
def test_time_index_as_any_kafka_writes_it_is_right(entries: list[tuple[int, int]]) -> None:
    assert time_problems(*entries) == []


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ([(11, 102), (40, 106)], 0),
        ([(10, 103), (40, 106)], 0),
        ([(20, 105), (40, 106)], 0),
        ([(10, 102), (30, 102), (40, 106)], 1),
        ([(40, 107)], 0),
        ([(10, 102), (41, 106)], 1),
    ],
    ids=["other time", "other batch", "not the largest", "too early", "beyond", "closing"],
)
def test_time_index_that_tells_another_time_is_wrong(
    entries: list[tuple[int, int]], wrong: int
) -> None:
    (detail,) = time_problems(*entries)
    time_ms, offset = entries[wrong]
    assert f"entry={wrong} timestamp_ms={time_ms} offset={offset}" in detail


@pytest.mark.parametrize(("entries", "closing"), [([], -1), ([(10, 102), (30, 103)], 30)])
def test_time_index_ends_with_the_largest_timestamp(
    entries: list[tuple[int, int]], closing: int
) -> None:
    (detail,) = time_problems(*entries)
    assert detail.endswith(f"timestamp_ms={closing} expected=40")


def test_time_index_of_records_without_timestamps_may_be_empty() -> None:
    assert time_problems(log=[batch(100, timestamp_ms=-1)]) == []
    # An entry of time 0 at the base offset is twelve zeros, as is padding.
    assert time_problems((0, 100), log=[batch(100, timestamp_ms=0)]) == []
    assert len(time_problems(log=[batch(100, timestamp_ms=1)])) == 1


def test_time_index_with_an_offset_between_batches_is_wrong() -> None:
    log = [batch(100, timestamp_ms=10), batch(105, timestamp_ms=10)]
    assert time_problems((10, 100), log=log) == time_problems((10, 105), log=log) == []
    assert len(time_problems((10, 103), log=log)) == 1


# Leader epochs


def epoch_log(*epochs: int) -> LogBatches:
    return read(
        [batch(BASE + number, partition_leader_epoch=epoch) for number, epoch in enumerate(epochs)]
    )


def epoch_problems(
    *entries: tuple[int, int], epochs: Mapping[int, int], log: LogBatches, end: int = 102
) -> list[str]:
    checkpoint = encode_leader_epoch_checkpoint([EpochEntry(*entry) for entry in entries])
    found = check_epoch_checkpoint(checkpoint, log, segment(end, epochs=epochs))
    assert all(problem.kind is FindingKind.WRONG_EPOCH_CHECKPOINT for problem in found)
    return [problem.detail for problem in found]


def test_epoch_checkpoint_has_the_epochs_of_the_segment_and_those_before() -> None:
    log, epochs = epoch_log(1, 1, 3), {1: 100, 3: 102}
    assert epoch_problems((1, 100), (3, 102), epochs=epochs, log=log) == []
    assert epoch_problems((0, 0), (1, 50), (3, 102), epochs=epochs, log=log) == []


@pytest.mark.parametrize(
    ("entries", "fact"),
    [
        ([(1, 100), (3, 101)], "checkpoint and metadata differ"),
        ([(1, 100)], "checkpoint and metadata differ"),
        ([(3, 100), (1, 102)], "entries do not rise entries=3:100,1:102"),
        ([(1, 100), (3, 102), (4, 103)], "beyond the segment entries=4:103"),
    ],
)
def test_epoch_checkpoint_that_tells_another_history_is_wrong(
    entries: list[tuple[int, int]], fact: str
) -> None:
    log, epochs = epoch_log(1, 1, 3), {1: 100, 3: 102}
    (detail,) = epoch_problems(*entries, epochs=epochs, log=log)
    assert fact in detail


def test_epoch_checkpoint_is_held_against_the_batches() -> None:
    epochs = {1: 100, 3: 102}
    (detail,) = epoch_problems((1, 100), (3, 102), epochs=epochs, log=epoch_log(1, 3, 3))
    assert "than the checkpoint says batches=1" in detail
    assert "base_offset=101 epoch=3 expected=1" in detail
    segment_of_none = segment(102, epochs=epochs)
    (problem,) = check_epoch_checkpoint(b"rubbish", epoch_log(1, 1, 3), segment_of_none)
    assert problem.kind is FindingKind.WRONG_EPOCH_CHECKPOINT


def test_batches_with_a_wrong_epoch_are_counted_and_the_first_is_named() -> None:
    log = epoch_log(1, 2, 2, 1)
    (problem,) = check_epochs(log, {1: 100}, FindingKind.WRONG_EPOCH, "the metadata")
    position = int(log.rows["position"][1])
    assert "batches=2 " in problem.detail
    assert f"first_position={position} base_offset=101 epoch=2 expected=1" in problem.detail
    assert check_epochs(log, {1: 100, 2: 101}, FindingKind.WRONG_EPOCH, "x") != []
    assert check_epochs(epoch_log(1, 2), {1: 100, 2: 101}, FindingKind.WRONG_EPOCH, "x") == []


# Offsets


def offset_facts(log: Sequence[bytes], end: int, **more: bool) -> list[tuple[FindingKind, str]]:
    settings = {"may_have_gaps": False, **more}
    return [
        (problem.kind, problem.detail)
        for problem in check_offsets(read(log), segment(end), **settings)
    ]


def test_offsets_of_a_whole_segment_are_right() -> None:
    assert offset_facts(LOG, 106) == []


def test_segment_without_a_batch_has_wrong_offsets() -> None:
    assert offset_facts([], 106) == [(FindingKind.WRONG_OFFSETS, "segment holds no batch")]


def test_batch_below_the_one_before_it_or_above_the_end_has_wrong_offsets() -> None:
    (found,) = offset_facts([*LOG[:2], batch(103, 3), LOG[3]], 106)
    assert found[0] is FindingKind.WRONG_OFFSETS
    assert f"position={POSITIONS[2]} base_offset=103 expected_min=104" in found[1]
    ((kind, detail),) = offset_facts([batch(99), batch(100)], 100)
    assert (kind, "base_offset=99 expected_min=100" in detail) == (FindingKind.WRONG_OFFSETS, True)
    ((kind, detail),) = offset_facts(LOG, 105)
    assert kind is FindingKind.WRONG_OFFSETS
    assert "last_offset=106 end_offset=105" in detail


def test_gaps_are_named_unless_the_segment_may_have_them() -> None:
    log = [batch(101), batch(102, 2), batch(105)]
    assert offset_facts(log, 107) == [
        (FindingKind.OFFSET_GAP, f"offsets have no batch first={first} last={last}")
        for first, last in ((100, 100), (104, 104), (106, 107))
    ]
    assert offset_facts(log, 107, may_have_gaps=True) == []
    compacted = filtered_batch(batch(102, 2), {0})
    assert offset_facts([batch(101), compacted, batch(105)], 107) == []
    with_horizon = filtered_batch(batch(102, 2), {0, 1}, delete_horizon_ms=5)
    assert offset_facts([batch(101), with_horizon, batch(105)], 107) == []


def test_ten_problems_of_a_kind_are_named() -> None:
    log = [batch(BASE + 2 * number) for number in range(13)]
    assert len(offset_facts(log, BASE + 24)) == 10
    assert len(offset_facts([batch(BASE)] * 13, BASE)) == 10


# The same offsets in two segments


def test_repeated_batch_is_no_conflict() -> None:
    """Its offsets are wrong, which is another problem."""
    repeating = read([LOG[0], LOG[1], LOG[1], LOG[2]])
    ours = read(LOG)
    for one, other in ((repeating, ours), (ours, repeating), (repeating, read(LOG[3:]))):
        assert check_same_batches(one, other, "S") == []
    assert len(check_same_batches(repeating, read([batch(103, 1, 31)]), "S")) == 1


def test_batches_of_two_segments_are_the_same_unless_one_was_compacted() -> None:
    other = batch(103, 1, 31)
    ours, theirs = read(LOG), read([other, LOG[3]])
    (problem,) = check_same_batches(ours, theirs, "S")
    assert problem.kind is FindingKind.CONFLICTING_SEGMENT
    assert "batches=1 base_offset=103 epoch=-1 segment=S" in problem.detail
    assert check_same_batches(ours, read(LOG[1:]), "S") == []
    # Of another epoch, or with other borders.
    later = batch(103, 1, 31, partition_leader_epoch=1)
    assert check_same_batches(ours, read([later, batch(104, 3)]), "S") != []
    assert check_same_batches(ours, read([later]), "S") == []
    compacted = filtered_batch(batch(104, 2), {0})
    assert check_same_batches(ours, read([other, compacted]), "S") == []
    assert check_same_batches(read([other, compacted]), ours, "S") == []


# Timestamp types


def types(*is_append_time: bool) -> list[bytes]:
    return [
        batch(
            BASE + number,
            timestamp_type=TimestampType.LOG_APPEND_TIME if each else TimestampType.CREATE_TIME,
        )
        for number, each in enumerate(is_append_time)
    ]


@pytest.mark.parametrize(
    ("is_append_time", "odd"),
    [
        ((False, True, False), [1]),
        ((True, False, True, True), [1]),
        ((True, False, False), []),
        ((False, False, True), []),
        ((False, True, True, False), []),
        ((True, False), []),
        ((False, True, False, False, True, False), [1, 4]),
    ],
)
def test_batch_with_another_timestamp_type_than_both_neighbours_is_odd(
    is_append_time: tuple[bool, ...], odd: list[int]
) -> None:
    log = types(*is_append_time)
    found = check_timestamp_types(read(log))
    assert [problem.kind for problem in found] == [FindingKind.WRONG_TIMESTAMP] * len(odd)
    for problem, number in zip(found, odd, strict=True):
        position = sum(map(len, log[:number]))
        assert problem.detail.endswith(f"position={position} base_offset={BASE + number}")


def test_markers_have_the_timestamp_type_of_their_coordinator() -> None:
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=10,
        base_offset=101,
    )
    first, _, last = types(True, True, True)
    assert check_timestamp_types(read([first, bytes(marker), last])) == []


# Reading


@pytest.mark.parametrize("block_size", [1, 11, 12, 61, 100, 10**6])
def test_log_is_read_alike_however_its_blocks_are_cut(block_size: int) -> None:
    found = read(LOG, block_size)
    assert found.problems == ()
    assert found.size == sum(map(len, LOG))
    assert found.rows["position"].tolist() == POSITIONS
    assert found.rows["base_offset"].tolist() == [100, 103, 104, 106]
    assert found.rows["last_offset"].tolist() == [102, 103, 105, 106]
    assert found.rows["max_timestamp"].tolist() == [10, 30, 20, 40]
    assert not found.is_cleaned


@pytest.mark.parametrize("block_size", [61, 100, 10**6])
def test_problems_are_placed_in_the_log(block_size: int) -> None:
    log = [bytearray(each) for each in LOG]
    log[2][-1] ^= 1
    (problem,) = read([bytes(each) for each in log], block_size).problems
    assert problem.kind is FindingKind.WRONG_CRC
    assert f"position={POSITIONS[2]}" in problem.detail
    wrong = batch(106, is_transactional=True)
    (problem,) = read([*LOG[:3], wrong], block_size).problems
    assert problem.kind is FindingKind.WRONG_HEADER
    assert f"position={POSITIONS[3]} base_offset=106 producer_id=-1" in problem.detail
    header = read([LOG[3]]).rows[0]
    assert header["base_offset"] == 106


@pytest.mark.parametrize("block_size", [61, 100, 10**6])
def test_batches_after_a_damaged_size_are_unknown(block_size: int) -> None:
    log = [bytearray(each) for each in LOG]
    log[2][8] = 0x7F  # the highest byte of the size
    found = read([bytes(each) for each in log], block_size)
    (problem,) = found.problems
    assert problem.kind is FindingKind.DAMAGED_BATCH
    assert found.rows["base_offset"].tolist() == [100, 103]
    assert found.size == POSITIONS[2]


def test_log_that_ends_within_a_batch_is_damaged() -> None:
    (problem,) = read([*LOG[:3], LOG[3][:-1]]).problems
    assert problem.kind is FindingKind.DAMAGED_BATCH


def test_fields_of_producers_and_markers_are_read() -> None:
    written = batch(100, 2, producer_id=7, producer_epoch=3, base_sequence=5, is_transactional=True)
    marker = build_end_transaction_marker(
        ControlRecordType.ABORT,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=9,
        timestamp_ms=10,
        base_offset=102,
    )
    found = read([written, bytes(marker), batch(103)])
    rows = found.rows
    assert rows["producer_id"].tolist() == [7, 7, -1]
    assert rows["producer_epoch"].tolist() == [3, 3, -1]
    assert rows["base_sequence"].tolist() == [5, -1, -1]
    assert rows["coordinator_epoch"].tolist() == [-1, 9, -1]
    assert found.is_control.tolist() == [False, True, False]
    assert found.is_transactional.tolist() == [True, True, False]
