"""The transaction index. The bytes are Kafka's."""

from __future__ import annotations

import pytest

from isotherm.errors import CorruptIndexError
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    collect_aborted_transactions,
    encode_transaction_index,
    read_transaction_index,
    truncated_transaction_index_size,
)

GOLDEN = bytes.fromhex("00000000000000000007000000000000000400000000000000050000000000000006")
GOLDEN_ENTRY = AbortedTransaction(7, 4, 5, 6)
ENTRIES = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


def test_transaction_index_written_is_kafkas_bytes() -> None:
    assert encode_transaction_index([GOLDEN_ENTRY]) == GOLDEN


def test_transaction_index_of_kafka_is_read() -> None:
    assert read_transaction_index(GOLDEN, 0) == [GOLDEN_ENTRY]


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected", "complete"),
    [
        (0, 100, [0, 1, 2, 3], False),
        (0, 32, [0, 1, 2], True),
        (0, 35, [0, 1, 2, 3], True),
        (10, 35, [0, 1, 2, 3], True),
        (11, 35, [1, 2, 3], True),
        (20, 41, [2, 3], False),
        (51, 60, [], False),
    ],
)
def test_collect_returns_transactions_that_touch_the_range(
    fetch_offset: int, upper_bound: int, expected: list[int], complete: bool
) -> None:
    """The table of Kafka's TransactionIndexTest.testCollectAbortedTransactions."""
    found = collect_aborted_transactions(ENTRIES, fetch_offset, upper_bound)
    assert found == ([ENTRIES[index] for index in expected], complete)


@pytest.mark.parametrize(("offset", "count"), [(51, 4), (50, 3), (35, 2), (10, 0), (0, 0)])
def test_truncation_drops_transactions_that_ended_at_or_above(offset: int, count: int) -> None:
    assert truncated_transaction_index_size(ENTRIES, offset) == 34 * count


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GOLDEN[:-1], "whole number"),
        (b"\x00\x01" + GOLDEN[2:], "version=1"),
        (GOLDEN * 2, "entry=1"),
    ],
)
def test_read_of_a_damaged_index_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptIndexError, match=message):
        read_transaction_index(data, 0)


def test_read_with_a_transaction_below_the_base_is_refused() -> None:
    with pytest.raises(CorruptIndexError, match="entry=0"):
        read_transaction_index(GOLDEN, 6)


@pytest.mark.parametrize(
    ("entry", "is_right"),
    [
        (AbortedTransaction(7, 4, 5, 6), True),
        (AbortedTransaction(7, 5, 5, 0), True),
        (AbortedTransaction(7, 0, 5, -1), True),
        (AbortedTransaction(7, 6, 5, 6), False),
        (AbortedTransaction(7, -1, 5, 6), False),
        (AbortedTransaction(7, 4, 5, 7), False),
    ],
)
def test_entry_that_contradicts_itself_is_refused(
    entry: AbortedTransaction, *, is_right: bool
) -> None:
    """When a marker is appended, nothing behind it is there yet: the last stable offset is at most
    the one after it."""
    first = AbortedTransaction(3, 1, 2, 3)
    data = encode_transaction_index([first, entry])
    if is_right:
        assert read_transaction_index(data, 0) == [first, entry]
        return
    with pytest.raises(CorruptIndexError, match="contradicts itself base_offset=0 entry=1 "):
        read_transaction_index(data, 0)


def test_transaction_that_began_in_an_earlier_segment_is_right() -> None:
    assert read_transaction_index(GOLDEN, 5) == [GOLDEN_ENTRY]
    assert read_transaction_index(b"", 5) == []


def test_markers_rise_strictly() -> None:
    rising = [AbortedTransaction(7, 4, 5, 6), AbortedTransaction(8, 3, 6, 7)]
    assert read_transaction_index(encode_transaction_index(rising), 0) == rising
    with pytest.raises(
        CorruptIndexError, match="does not rise base_offset=0 entry=1 last_offset=5"
    ):
        read_transaction_index(encode_transaction_index(reversed(rising)), 0)
