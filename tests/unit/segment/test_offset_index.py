"""The offset index. The bytes are Kafka's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptIndexError
from isotherm.segment.offset_index import (
    OffsetPosition,
    check_offset_index,
    encode_offset_index,
    fetch_upper_bound,
    last_offset_index_entry,
    lookup_offset,
    lookup_range,
    offset_index_entry_count,
    read_offset_index,
    truncated_offset_index_size,
)

GOLDEN = bytes.fromhex("00000005000010680000000a00002134")
GOLDEN_ENTRIES = [OffsetPosition(105, 0x1068), OffsetPosition(110, 0x2134)]


def rising_entries() -> st.SearchStrategy[list[OffsetPosition]]:
    steps = st.tuples(st.integers(1, 50), st.integers(61, 9000))
    return st.lists(steps, max_size=40).map(_accumulated)


def _accumulated(steps: list[tuple[int, int]]) -> list[OffsetPosition]:
    entries, offset, position = [], 1000, 0
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        entries.append(OffsetPosition(offset, position))
    return entries


def test_offset_index_written_is_kafkas_bytes() -> None:
    assert encode_offset_index(GOLDEN_ENTRIES, 100) == GOLDEN


def test_offset_index_of_kafka_is_read() -> None:
    assert read_offset_index(GOLDEN, 100) == GOLDEN_ENTRIES


def test_offset_index_with_preallocated_tail_ignores_the_padding() -> None:
    padded = GOLDEN + bytes(80)
    assert offset_index_entry_count(padded) == 2
    assert read_offset_index(padded, 100) == GOLDEN_ENTRIES
    assert lookup_offset(padded, 100, 10**6) == GOLDEN_ENTRIES[-1]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (99, (100, 0)),
        (104, (100, 0)),
        (105, (105, 0x1068)),
        (109, (105, 0x1068)),
        (110, (110, 0x2134)),
        (10**12, (110, 0x2134)),
    ],
)
def test_lookup_offset_returns_the_last_entry_not_above(
    target: int, expected: tuple[int, int]
) -> None:
    assert lookup_offset(GOLDEN, 100, target) == expected


def test_lookup_offset_in_an_empty_index_returns_the_segment_start() -> None:
    assert lookup_offset(b"", 100, 500) == (100, 0)
    assert lookup_offset(bytes(64), 100, 500) == (100, 0)


@pytest.mark.parametrize(
    ("start_position", "size", "expected"),
    [
        (0, 0x1068, (105, 0x1068)),
        (0, 0x1069, (110, 0x2134)),
        (0, 0x2135, None),
        (0x1068, 1, (110, 0x2134)),
    ],
)
def test_fetch_upper_bound_is_the_first_entry_at_or_after_the_end(
    start_position: int, size: int, expected: tuple[int, int] | None
) -> None:
    assert fetch_upper_bound(GOLDEN, 100, OffsetPosition(100, start_position), size) == expected


@pytest.mark.parametrize(("offset", "size"), [(100, 0), (105, 0), (106, 8), (110, 8), (111, 16)])
def test_truncation_drops_entries_at_or_above_the_offset(offset: int, size: int) -> None:
    assert truncated_offset_index_size(GOLDEN, 100, offset) == size


def test_check_with_a_partial_entry_is_refused() -> None:
    with pytest.raises(CorruptIndexError, match="whole number"):
        check_offset_index(GOLDEN + b"\x00", 100)


def test_check_with_last_offset_below_the_base_is_refused() -> None:
    with pytest.raises(CorruptIndexError, match="below the segment's base"):
        check_offset_index(bytes.fromhex("ffffffff00000100"), 100)


@pytest.mark.parametrize("second", ["0000000500002134", "0000000a00001068"])
def test_read_with_an_entry_that_does_not_rise_names_it(second: str) -> None:
    with pytest.raises(CorruptIndexError, match="entry=1"):
        read_offset_index(GOLDEN[:8] + bytes.fromhex(second), 100)


@given(rising_entries(), st.integers(990, 4000), st.integers(0, 200_000), st.integers(0, 64))
def test_lookups_agree_with_a_linear_search(
    entries: list[OffsetPosition], target: int, size: int, padding: int
) -> None:
    buffer = encode_offset_index(entries, 1000) + bytes(8 * padding)
    assert read_offset_index(buffer, 1000) == entries
    below = [entry for entry in entries if entry.offset <= target]
    assert lookup_offset(buffer, 1000, target) == (below or [(1000, 0)])[-1]
    start = (below or [OffsetPosition(1000, 0)])[-1].position
    within = [entry.position for entry in entries if entry.position <= start + size]
    assert lookup_range(buffer, 1000, target, size) == (start, max(within, default=0))
    assert last_offset_index_entry(buffer, 1000) == (entries or [(1000, 0)])[-1]
    kept = [entry for entry in entries if entry.offset < target]
    assert truncated_offset_index_size(buffer, 1000, target) == 8 * len(kept)


@given(st.binary(max_size=200))
def test_read_of_any_bytes_gives_entries_or_corrupt_index(data: bytes) -> None:
    try:
        entries = read_offset_index(data, 7)
    except CorruptIndexError:
        return
    assert encode_offset_index(entries, 7) == data[: 8 * len(entries)]


@given(rising_entries(), st.integers(0, 400_000), st.integers(0, 100_000), st.integers(0, 9))
def test_upper_bound_agrees_with_a_linear_search(
    entries: list[OffsetPosition], start: int, size: int, padding: int
) -> None:
    buffer = encode_offset_index(entries, 1000) + bytes(8 * padding)
    above = [entry for entry in entries if entry.position >= start + size]
    found = fetch_upper_bound(buffer, 1000, OffsetPosition(1000, start), size)
    assert found == (above[0] if above else None)
    assert offset_index_entry_count(buffer) == len(entries)


@pytest.mark.parametrize("cut", [1, 7])
def test_partial_entry_at_the_end_is_no_entry(cut: int) -> None:
    assert offset_index_entry_count(GOLDEN[:-cut]) == 1
    assert lookup_offset(GOLDEN[:-cut], 100, 10**6) == GOLDEN_ENTRIES[0]
    assert offset_index_entry_count(GOLDEN[:cut]) == 0


def test_last_offset_may_be_the_base_offset() -> None:
    at_base = encode_offset_index([OffsetPosition(100, 61)], 100)
    check_offset_index(at_base, 100)
    assert read_offset_index(at_base, 100) == [OffsetPosition(100, 61)]


@pytest.mark.parametrize("offset", [99, 100 + 2**31])
def test_entry_that_does_not_fit_is_not_written(offset: int) -> None:
    """The log rolls before."""
    with pytest.raises(AssertionError):
        encode_offset_index([OffsetPosition(offset, 61)], 100)
    encode_offset_index([OffsetPosition(100, 61), OffsetPosition(99 + 2**31, 62)], 100)


def test_range_of_a_read_in_the_middle_of_an_index() -> None:
    entries = [OffsetPosition(100 + 10 * number, 100 * number) for number in range(1, 11)]
    buffer = encode_offset_index(entries, 100)
    for first in range(11):
        for size in (0, 99, 100, 101, 350, 5000):
            found = lookup_range(buffer, 100, 100 + 10 * first, size)
            last = min(100 * first + size // 100 * 100, 1000)
            assert found == (100 * first, last)
