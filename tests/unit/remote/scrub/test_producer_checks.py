"""The checks of a segment's transactions and producers on small logs that are laid out by hand."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.scrub.log_batches import LogBatches, read_log_batches
from isotherm.remote.scrub.producer_checks import (
    ProducersBefore,
    Transactions,
    check_producer_batches,
    check_producer_snapshot,
    check_transaction_index_entries,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, encode_producer_snapshot
from isotherm.segment.transaction_index import AbortedTransaction, encode_transaction_index
from isotherm.types import TopicIdPartition
from tests.support.filtered_batch import filtered_batch

OWNER = TopicIdPartition(uuid.UUID(int=1), "t", 0)
NOW = 10
# No producer had an open transaction before the segment; and: nothing is known of them.
NONE, UNKNOWN = ProducersBefore.of([]), None


def written(
    offset: int,
    producer: int,
    sequence: int,
    *,
    count: int = 1,
    epoch: int = 0,
    plain: bool = False,
) -> bytes:
    batch = build_batch(
        [(NOW, b"k", b"v", ())] * count,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=not plain,
    )
    return bytes(batch)


def ended(offset: int, producer: int, *, commits: bool = False, epoch: int = 0) -> bytes:
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT if commits else ControlRecordType.ABORT,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=3,
        timestamp_ms=NOW,
        base_offset=offset,
    )
    return bytes(marker)


def of(producer: int, *, open_since: int = -1, last: int = 99, sequence: int = 9) -> Any:
    """The entry of a producer in the snapshot before the segment."""
    return ProducerSnapshotEntry(producer, 0, sequence, last, 0, NOW, -1, open_since)


def read(*log: bytes) -> LogBatches:
    content = memoryview(b"".join(log))
    found = read_log_batches([content], len(content))
    assert found.problems == ()
    return found


def segment(end: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(OWNER, uuid.UUID(int=2)),
        start_offset=100,
        end_offset_inclusive=end,
        max_timestamp_ms=NOW,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_in_bytes=1,
        segment_leader_epochs={0: 100},
    )


# Two transactions that overlap, both aborted.
TWO = (written(100, 7, 0, count=2), written(102, 8, 0), ended(103, 7), ended(104, 8))


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (NONE, [(7, 100, 103, 102), (8, 102, 104, 105)]),
        # Not even the transactions in the segment are known to begin there.
        (UNKNOWN, [(7, 100, 103, 104), (8, 102, 104, 105)]),
        (ProducersBefore.of([of(8, open_since=50)]), [(7, 100, 103, 50), (8, 50, 104, 105)]),
        # One that is open throughout holds the last stable offset.
        (ProducersBefore.of([of(9, open_since=60)]), [(7, 100, 103, 60), (8, 102, 104, 60)]),
        (ProducersBefore.of([of(9, open_since=0)]), [(7, 100, 103, 0), (8, 102, 104, 0)]),
    ],
)
def test_aborted_transactions_follow_from_the_batches_and_the_segment_before(
    before: ProducersBefore | None, expected: list[tuple[int, ...]]
) -> None:
    assert Transactions(read(*TWO), before).aborted() == expected


def test_transaction_that_begins_with_its_marker_has_no_data_here() -> None:
    assert Transactions(read(ended(100, 7)), NONE).aborted() == []
    before = ProducersBefore.of([of(7, open_since=40)])
    assert Transactions(read(ended(100, 7)), before).aborted() == [(7, 40, 100, 101)]


def test_second_transaction_of_a_producer_begins_after_its_marker() -> None:
    log = (
        written(100, 7, 0),
        ended(101, 7, commits=True),
        written(102, 7, 1),
        written(103, 7, 2),
        ended(104, 7),
        written(105, 7, 3),
    )
    before = ProducersBefore.of([of(7, open_since=40, sequence=-1)])
    assert Transactions(read(*log), before).aborted() == [(7, 102, 104, 105)]


# The transaction index


def index_facts(
    *entries: tuple[int, ...],
    log: Sequence[bytes] = TWO,
    before: ProducersBefore | None = NONE,
    end: int = 104,
) -> list[str]:
    batches = read(*log)
    index = encode_transaction_index(AbortedTransaction(*entry) for entry in entries)
    found = check_transaction_index_entries(
        index or None, batches, Transactions(batches, before), segment(end)
    )
    assert all(each.kind is FindingKind.WRONG_TRANSACTION_INDEX for each in found)
    return [each.detail for each in found]


def test_transaction_index_of_the_batches_is_right() -> None:
    assert index_facts((7, 100, 103, 102), (8, 102, 104, 105)) == []
    assert index_facts(log=[written(100, 7, 0), ended(101, 7, commits=True)], end=101) == []


@pytest.mark.parametrize(
    ("entries", "fact"),
    [
        ([(7, 101, 103, 102), (8, 102, 104, 105)], "first_offset=101 expected=100"),
        ([(7, 99, 103, 102), (8, 102, 104, 105)], "first_offset=99 expected=100"),
        ([(7, 100, 103, 103), (8, 102, 104, 105)], "last_stable_offset=103 expected=102"),
        ([(7, 100, 103, 102)], "not listed producer_id=8 first_offset=102 marker=104"),
        (
            [(7, 100, 103, 102), (8, 102, 104, 105), (9, 100, 105, 105)],
            "marker is not in the log producer_id=9 last_offset=105",
        ),
        (
            [(9, 100, 102, 103), (7, 100, 103, 102), (8, 102, 104, 105)],
            "not an abort of its producer producer_id=9 last_offset=102",
        ),
    ],
)
def test_transaction_index_that_tells_something_else_is_wrong(
    entries: list[tuple[int, ...]], fact: str
) -> None:
    (detail,) = index_facts(*entries)
    assert fact in detail


def test_marker_in_a_gap_of_the_log_is_not_in_the_log() -> None:
    log = (written(100, 7, 0), ended(104, 7))
    facts = index_facts((7, 100, 102, 103), (7, 100, 104, 105), log=log)
    assert len(facts) == 1
    assert "marker is not in the log" in facts[0]


@pytest.mark.parametrize(
    ("first", "is_right"), [(0, True), (99, True), (100, False), (101, False), (102, True)]
)
def test_transaction_whose_start_is_unknown_begins_here_or_below(
    first: int, is_right: bool
) -> None:
    """102 is its first batch here. 100 and 101 are in the segment, but another producer's."""
    log = [written(100, 6, 0, plain=True), written(101, 6, 1, plain=True)]
    log += [written(102, 7, 0), ended(103, 7)]
    facts = index_facts((7, first, 103, 100), log=log, before=UNKNOWN, end=103)
    assert len(facts) == (not is_right)
    assert all("expected=102 or below the segment" in fact for fact in facts)


def test_transaction_without_batches_here_began_below() -> None:
    log = (written(100, 6, 0, plain=True), ended(101, 7))
    assert index_facts((7, 99, 101, 100), log=log, before=UNKNOWN, end=101) == []
    (detail,) = index_facts((7, 100, 101, 100), log=log, before=UNKNOWN, end=101)
    assert "first_offset=100 expected=below the segment" in detail
    assert index_facts(log=log, before=UNKNOWN, end=101) == [], "it may have had no data"


def test_compacted_segment_need_not_have_the_start_of_a_transaction() -> None:
    compacted = filtered_batch(written(100, 7, 0, count=2), {1})
    log = (compacted, ended(102, 7))
    assert index_facts((7, 40, 102, 20), log=log, end=102) == []
    wrong, missed = index_facts((7, 40, 103, 20), log=log, end=102)
    assert "marker is not in the log" in wrong
    assert "not listed producer_id=7 first_offset=100 marker=102" in missed


def test_five_problems_of_an_index_are_named() -> None:
    log = [written(100 + number, 10 + number, 0) for number in range(7)]
    log += [ended(107 + number, 10 + number) for number in range(7)]
    assert len(index_facts(log=log, end=113)) == 5


# Batches


def batch_facts(
    *log: bytes, before: ProducersBefore | None = NONE
) -> list[tuple[FindingKind, str]]:
    batches = read(*log)
    return [
        (batch.kind, batch.detail)
        for batch in check_producer_batches(batches, Transactions(batches, before))
    ]


def test_batch_inside_a_transaction_of_its_producer_is_transactional() -> None:
    for log, before in (
        ((written(100, 7, 0), written(101, 7, 1, plain=True), ended(102, 7)), NONE),
        (
            (written(101, 7, 10, plain=True), ended(102, 7)),
            ProducersBefore.of([of(7, open_since=40)]),
        ),
        ((written(100, 7, 0), written(101, 7, 1, plain=True)), NONE),
    ):
        ((kind, detail),) = batch_facts(*log, before=before)
        assert kind is FindingKind.WRONG_HEADER
        assert "base_offset=101 producer_id=7" in detail
    assert batch_facts(written(100, 7, 0), written(101, 8, 0, plain=True), ended(102, 7)) == []
    assert batch_facts(written(100, 7, 0), ended(101, 7), written(102, 7, 1, plain=True)) == []


@pytest.mark.parametrize(
    ("log", "wrong"),
    [
        ((written(100, 7, 4, count=2, plain=True), written(102, 7, 6, plain=True)), []),
        ((written(100, 7, 4, count=2, plain=True), written(102, 7, 7, plain=True)), [102]),
        ((written(100, 7, 4, count=2, plain=True), written(102, 7, 5, plain=True)), [102]),
        # A new state of the producer, or a new epoch, begins at 0.
        ((written(100, 7, 4, plain=True), written(101, 7, 0, plain=True)), []),
        ((written(100, 7, 4, plain=True), written(101, 7, 0, epoch=1, plain=True)), []),
        ((written(100, 7, 4, plain=True), written(101, 7, 5, epoch=1, plain=True)), [101]),
        # Sequences wrap.
        ((written(100, 7, 2**31 - 1, plain=True), written(101, 7, 0, plain=True)), []),
        (
            (
                written(100, 7, 2**31 - 2, count=3, plain=True),
                written(103, 7, 1, plain=True),
            ),
            [],
        ),
        ((written(100, 7, 4, plain=True), written(101, 8, 9, plain=True)), []),
    ],
)
def test_sequences_of_a_producer_have_no_gap(log: tuple[bytes, ...], wrong: list[int]) -> None:
    found = batch_facts(*log)
    assert [kind for kind, _ in found] == [FindingKind.WRONG_SEQUENCE] * len(wrong)
    for (_, detail), offset in zip(found, wrong, strict=True):
        assert f"base_offset={offset} " in detail


def test_producer_may_have_the_id_0() -> None:
    """Kafka's first producer id."""
    gap = (written(100, 0, 4, plain=True), written(101, 0, 6, plain=True))
    assert [kind for kind, _ in batch_facts(*gap)] == [FindingKind.WRONG_SEQUENCE]
    inside = (written(100, 0, 0), written(101, 0, 1, plain=True))
    assert [kind for kind, _ in batch_facts(*inside)] == [FindingKind.WRONG_HEADER]
    assert index_facts((0, 100, 101, 102), log=[written(100, 0, 0), ended(101, 0)], end=101) == []
    wrong = ENTRY._replace(producer_id=0, last_sequence=5)
    facts = snapshot_facts(wrong, log=[written(100, 0, 0, count=2, plain=True)], end=101)
    assert len(facts) == 1


@pytest.mark.parametrize(
    ("before", "sequence", "is_right"),
    [
        (of(7, sequence=9), 10, True),
        (of(7, sequence=9), 11, False),
        (of(7, sequence=9), 9, False),
        (of(7, sequence=9), 0, True),
        (of(7, sequence=2**31 - 1), 0, True),
        (of(7, sequence=9)._replace(producer_epoch=1), 11, True),
        (of(8, sequence=9), 11, True),
    ],
)
def test_first_batch_of_a_producer_continues_the_segment_before(
    before: ProducerSnapshotEntry, sequence: int, is_right: bool
) -> None:
    log = written(100, 7, sequence, plain=True)
    assert (batch_facts(log, before=ProducersBefore.of([before])) == []) is is_right
    assert batch_facts(log, before=UNKNOWN) == []


# Producer snapshots


ENTRY = ProducerSnapshotEntry(7, 0, 1, 101, 1, NOW, -1, -1)


def snapshot_facts(
    *entries: ProducerSnapshotEntry,
    log: Sequence[bytes],
    before: ProducersBefore | None = NONE,
    end: int,
) -> list[str]:
    batches = read(*log)
    found = check_producer_snapshot(
        encode_producer_snapshot(entries), batches, Transactions(batches, before), segment(end)
    )
    assert all(each.kind is FindingKind.WRONG_PRODUCER_SNAPSHOT for each in found)
    return [each.detail for each in found]


def test_snapshot_of_the_batches_is_right() -> None:
    plain = [written(100, 7, 0, count=2, plain=True)]
    assert snapshot_facts(ENTRY, log=plain, end=101) == []
    assert snapshot_facts(log=plain, end=101) == [], "a broker forgets idle producers"
    is_open = ENTRY._replace(current_transaction_first_offset=100)
    transactional = [written(100, 7, 0, count=2)]
    assert snapshot_facts(is_open, log=transactional, end=101) == []
    ended_too = ENTRY._replace(coordinator_epoch=3)
    assert snapshot_facts(ended_too, log=[*transactional, ended(102, 7)], end=102) == []
    # The marker of a higher epoch drops the batches of the lower one.
    dropped = ProducerSnapshotEntry(7, 1, -1, -1, 0, NOW, 3, -1)
    assert snapshot_facts(dropped, log=[*transactional, ended(102, 7, epoch=1)], end=102) == []


@pytest.mark.parametrize(
    "field",
    [
        "producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms",
        "current_transaction_first_offset",
    ],
)  # fmt: skip
def test_field_of_a_snapshot_that_differs_from_the_log_is_named(field: str) -> None:
    other = ENTRY._replace(**{field: getattr(ENTRY, field) + 1})
    facts = snapshot_facts(other, log=[written(100, 7, 0, count=2, plain=True)], end=102)
    assert facts
    assert f"field={field} " in facts[0]


def test_producer_with_an_open_transaction_is_never_forgotten() -> None:
    (detail,) = snapshot_facts(log=[written(100, 7, 0)], end=100)
    assert "lacks a producer with an open transaction producer_id=7 first_offset=100" in detail
    before = ProducersBefore.of([of(9, open_since=40)])
    (detail,) = snapshot_facts(log=[written(100, 7, 0, plain=True)], before=before, end=100)
    assert "producer_id=9 first_offset=40" in detail


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        (of(9, last=102), "last batch is beyond the segment"),
        (of(9, last=101), "last batch is not in the log"),
        (of(9, last=100), "last batch is not in the log"),
        (of(9, last=-1, open_since=102), "transaction begins beyond the segment"),
        (of(9, last=-1, open_since=101), "last batch is not in the log"),
    ],
)
def test_producer_that_did_not_write_here_has_no_batch_here(
    entry: ProducerSnapshotEntry, fact: str
) -> None:
    log = [written(100, 7, 0, count=2, plain=True)]
    (detail,) = snapshot_facts(ENTRY, entry, log=log, before=UNKNOWN, end=101)
    assert fact in detail
    assert "producer_id=9" in detail


def test_idle_producer_is_as_it_was_before() -> None:
    log = [written(100, 7, 0, count=2, plain=True)]
    before = ProducersBefore.of([of(9)])
    assert snapshot_facts(ENTRY, of(9), log=log, before=before, end=101) == []
    (detail,) = snapshot_facts(ENTRY, of(9, sequence=8), log=log, before=before, end=101)
    assert "field=last_sequence snapshot=8 before=9" in detail
    # Nothing is known of it before, so nothing contradicts it.
    assert snapshot_facts(ENTRY, of(9, sequence=8), log=log, before=UNKNOWN, end=101) == []
    assert snapshot_facts(ENTRY, of(9), log=log, before=NONE, end=101) == []


def test_marker_leaves_the_last_batch_of_the_segment_before() -> None:
    log = [ended(100, 7)]
    before = ProducersBefore.of([of(7, open_since=40)])
    right = of(7)._replace(coordinator_epoch=3)
    assert snapshot_facts(right, log=log, before=before, end=100) == []
    (detail,) = snapshot_facts(right._replace(last_sequence=8), log=log, before=before, end=100)
    assert "field=last_sequence snapshot=8 log=9" in detail
    (detail,) = snapshot_facts(
        right._replace(current_transaction_first_offset=40), log=log, before=before, end=100
    )
    assert "field=current_transaction_first_offset snapshot=40 log=-1" in detail


def test_snapshot_that_cannot_be_read_is_wrong() -> None:
    batches = read(*TWO)
    for check, data in (
        (check_producer_snapshot, b"rubbish"),
        (check_transaction_index_entries, b"rubbish"),
    ):
        assert len(check(data, batches, Transactions(batches, NONE), segment(104))) == 1
