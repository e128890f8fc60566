"""The time index. The bytes are Kafka's; the oracle of look-ups is a linear search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptIndexError
from isotherm.segment.time_index import (
    TimestampOffset,
    check_time_index,
    encode_time_index,
    last_time_index_entry,
    lookup_timestamp,
    read_time_index,
    time_index_entry_count,
    truncated_time_index_size,
)

GOLDEN = bytes.fromhex("0000018bcfe56805000000050000018bcfe568090000000a")
GOLDEN_ENTRIES = [TimestampOffset(1700000000005, 105), TimestampOffset(1700000000009, 110)]


def test_time_index_written_is_kafkas_bytes() -> None:
    assert encode_time_index(GOLDEN_ENTRIES, 100) == GOLDEN


def test_time_index_of_kafka_is_read() -> None:
    assert read_time_index(GOLDEN, 100) == GOLDEN_ENTRIES


def test_time_index_with_preallocated_tail_ignores_the_padding() -> None:
    padded = GOLDEN + bytes(12 * 9)
    assert time_index_entry_count(padded) == 2
    assert last_time_index_entry(padded, 100) == GOLDEN_ENTRIES[-1]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0, (-1, 100)),
        (1700000000004, (-1, 100)),
        (1700000000005, (1700000000005, 105)),
        (1700000000008, (1700000000005, 105)),
        (2**62, (1700000000009, 110)),
    ],
)
def test_lookup_timestamp_returns_the_last_entry_not_above(
    target: int, expected: tuple[int, int]
) -> None:
    assert lookup_timestamp(GOLDEN, 100, target) == expected


@pytest.mark.parametrize(("offset", "size"), [(105, 0), (106, 12), (110, 12), (111, 24)])
def test_truncation_drops_entries_at_or_above_the_offset(offset: int, size: int) -> None:
    assert truncated_time_index_size(GOLDEN, 100, offset) == size


def test_check_with_a_partial_entry_is_refused() -> None:
    with pytest.raises(CorruptIndexError, match="whole number"):
        check_time_index(GOLDEN[:-1], 100)


@pytest.mark.parametrize(
    "last", ["0000018bcfe5680affffffff", "0000018bcfe568040000000a"], ids=["offset", "timestamp"]
)
def test_check_with_an_end_below_the_start_is_refused(last: str) -> None:
    with pytest.raises(CorruptIndexError, match="below its start"):
        check_time_index(GOLDEN[:12] + bytes.fromhex(last), 100)


def test_read_with_an_entry_that_does_not_rise_names_it() -> None:
    with pytest.raises(CorruptIndexError, match="entry=1"):
        read_time_index(GOLDEN[:12] * 2, 100)


@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 9)), max_size=30), st.integers(0, 3000)
)
def test_lookups_agree_with_a_linear_search(steps: list[tuple[int, int]], target: int) -> None:
    entries, timestamp, offset = [], 0, 500
    for timestamp_step, offset_step in steps:
        timestamp, offset = timestamp + timestamp_step, offset + offset_step
        entries.append(TimestampOffset(timestamp, offset))
    buffer = encode_time_index(entries, 500)
    assert read_time_index(buffer, 500) == entries
    below = [entry for entry in entries if entry.timestamp_ms <= target]
    assert lookup_timestamp(buffer, 500, target) == (below or [(-1, 500)])[-1]
    kept = [entry for entry in entries if entry.offset < target]
    assert truncated_time_index_size(buffer, 500, target) == 12 * len(kept)
