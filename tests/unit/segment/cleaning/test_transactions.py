"""When the data and the markers of transactions can be removed by compaction."""

from __future__ import annotations

from isotherm.record.batch import build_batch, read_batch_header
from isotherm.record.control import (
    ControlRecordType,
    build_end_transaction_marker,
    read_control_record,
)
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.segment.transaction_index import AbortedTransaction
from tests.support.filtered_batch import filtered_batch

ABORTED = AbortedTransaction(1, 10, 20, 21)


def data(transactions: CleanedTransactions, offset: int, producer: int = 1, **more: bool) -> bool:
    batch = build_batch(
        [(0, b"k", b"v", ())],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        is_transactional=more.get("is_transactional", True),
    )
    return transactions.on_data_batch(read_batch_header(batch))


def end(
    transactions: CleanedTransactions, offset: int, kind: ControlRecordType, producer: int = 1
) -> bool:
    batch = build_end_transaction_marker(
        kind,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=offset,
    )
    header = read_batch_header(batch)
    return transactions.on_control_batch(header, read_control_record(batch, 0, header))


def announced(*aborted: AbortedTransaction) -> CleanedTransactions:
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    return transactions


def test_data_of_an_aborted_transaction_goes_and_its_marker_stays_for_now() -> None:
    transactions = announced(ABORTED)
    assert not data(transactions, 5), "an earlier transaction of the producer"
    assert data(transactions, 10)
    assert not data(transactions, 12, producer=2)
    assert not data(transactions, 13, is_transactional=False)
    assert not end(transactions, 20, ControlRecordType.ABORT)
    assert transactions.take_retained() == [ABORTED]
    assert transactions.take_retained() == []
    assert not data(transactions, 25), "a later one"


def test_abort_marker_has_served_when_none_of_its_batches_is_left() -> None:
    transactions = announced(ABORTED)
    assert end(transactions, 20, ControlRecordType.ABORT)
    assert transactions.take_retained() == []


def test_commit_marker_has_served_when_none_of_its_batches_is_left() -> None:
    transactions = announced()
    assert not data(transactions, 1)
    assert end(transactions, 2, ControlRecordType.COMMIT, producer=2)
    assert not end(transactions, 3, ControlRecordType.COMMIT)
    assert end(transactions, 4, ControlRecordType.COMMIT)


def test_transaction_that_each_of_its_segments_announces_counts_once() -> None:
    transactions = announced(ABORTED)
    assert data(transactions, 10)
    transactions.add_aborted([ABORTED])
    assert data(transactions, 15)
    assert not end(transactions, 20, ControlRecordType.ABORT)
    assert not data(transactions, 22)
    assert transactions.take_retained() == [ABORTED]


def test_emptied_marker_has_served() -> None:
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
    )
    header = read_batch_header(filtered_batch(marker, []))
    assert announced().on_control_batch(header, None)


def test_other_control_records_stay() -> None:
    batch = build_batch([(0, b"\0\0\0\2", b"\0\0", ())], is_control=True)
    header = read_batch_header(batch)
    assert not announced().on_control_batch(header, read_control_record(batch, 0, header))
