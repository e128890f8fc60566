"""The time index. The bytes are Kafka's; the oracle of look-ups is a linear search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptIndexError
from isotherm.record.batch import BatchHeader, build_batch, read_batch_header
from isotherm.segment.time_index import (
    SkippedBy,
    TimestampOffset,
    check_time_index,
    encode_time_index,
    last_entries_before,
    last_time_index_entry,
    last_timestamp_ms,
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


@pytest.mark.parametrize("second", ["0000018bcfe568090000000a", "0000018bcfe5680900000005"])
def test_read_with_offsets_that_do_not_fall_is_right(second: str) -> None:
    assert len(read_time_index(GOLDEN[:12] + bytes.fromhex(second), 100)) == 2


def test_read_with_an_offset_that_falls_names_it() -> None:
    with pytest.raises(CorruptIndexError, match="entry=1"):
        read_time_index(GOLDEN[:12] + bytes.fromhex("0000018bcfe5680900000004"), 100)


def test_index_of_one_entry_at_the_base_is_right() -> None:
    at_base = encode_time_index([TimestampOffset(7, 100)], 100)
    check_time_index(at_base, 100)
    assert read_time_index(at_base, 100) == [TimestampOffset(7, 100)]
    check_time_index(b"", 100)
    assert last_time_index_entry(b"", 100) == TimestampOffset(-1, 100)


def test_last_timestamp_of_an_index_without_padding() -> None:
    assert last_timestamp_ms(GOLDEN) == 1700000000009
    assert last_timestamp_ms(GOLDEN[:12]) == 1700000000005
    assert last_timestamp_ms(b"") == -1


@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 9)), max_size=30),
    st.integers(0, 3000),
    st.integers(0, 9),
)
def test_lookups_agree_with_a_linear_search(
    steps: list[tuple[int, int]], target: int, padding: int
) -> None:
    entries, timestamp, offset = [], 0, 500
    for timestamp_step, offset_step in steps:
        timestamp, offset = timestamp + timestamp_step, offset + offset_step
        entries.append(TimestampOffset(timestamp, offset))
    buffer = encode_time_index(entries, 500) + bytes(12 * padding)
    assert read_time_index(buffer, 500) == entries
    below = [entry for entry in entries if entry.timestamp_ms <= target]
    assert lookup_timestamp(buffer, 500, target) == (below or [(-1, 500)])[-1]
    assert last_time_index_entry(buffer, 500) == (entries or [(-1, 500)])[-1]
    older = [entry for entry in entries if entry.timestamp_ms < target]
    for count in (1, 2, 5):
        assert last_entries_before(buffer, 500, target, count) == older[-count:]
    kept = [entry for entry in entries if entry.offset < target]
    assert truncated_time_index_size(buffer, 500, target) == 12 * len(kept)


def header(base_offset: int, max_timestamp: int) -> BatchHeader:
    """A batch of three offsets."""
    records = [(max_timestamp - 2, None, b"", ()), (max_timestamp, None, b"", ())]
    return read_batch_header(
        build_batch([*records, (max_timestamp - 1, None, b"", ())], base_offset=base_offset)
    )


BATCHES = [header(10, 50), header(13, 70), header(16, 60), header(19, 90)]


@pytest.mark.parametrize("offsets", [(10, 13), (11, 14), (12, 15)])
def test_entries_that_name_the_batches_of_their_times_are_right(offsets: tuple[int, int]) -> None:
    skipped = SkippedBy([TimestampOffset(50, offsets[0]), TimestampOffset(70, offsets[1])])
    for batch in BATCHES:
        skipped.pass_batch(batch)
    skipped.end(BATCHES[3])
    SkippedBy().end()


@pytest.mark.parametrize(
    "entries",
    [
        [(51, 10), (70, 13)],
        [(49, 10), (70, 13)],
        [(50, 10), (69, 13)],
        [(50, 13), (70, 14)],
        [(50, 9), (70, 13)],
        [(50, 10), (70, 12)],
        [(50, 10), (70, 16)],
    ],
)
def test_entry_that_names_another_batch_is_found(entries: list[tuple[int, int]]) -> None:
    skipped = SkippedBy(TimestampOffset(*entry) for entry in entries)

    def pass_all() -> None:
        for batch in BATCHES:
            skipped.pass_batch(batch)

    with pytest.raises(CorruptIndexError, match="leads to no batch of its time"):
        pass_all()


def test_entry_behind_the_record_that_was_found_is_wrong() -> None:
    """Its time is lower than the record's, so a batch before the record should have had it."""
    for last in (BATCHES[0], None):
        skipped = SkippedBy([TimestampOffset(50, 10), TimestampOffset(55, 14)])
        skipped.pass_batch(BATCHES[0])
        with pytest.raises(CorruptIndexError, match="offset=14 timestamp_ms=55"):
            skipped.end(last)
    # An entry for the very batch that has the record is right.
    skipped = SkippedBy([TimestampOffset(50, 10)])
    skipped.end(BATCHES[0])


@pytest.mark.parametrize("offset", [99, 100 + 2**31])
def test_entry_that_does_not_fit_is_not_written(offset: int) -> None:
    """The log rolls before."""
    with pytest.raises(AssertionError):
        encode_time_index([TimestampOffset(5, offset)], 100)


@pytest.mark.parametrize("offset", [100, 350, 99 + 2**31])
def test_entry_has_its_offset_relative_to_the_base(offset: int) -> None:
    entry = TimestampOffset(5, offset)
    encoded = encode_time_index([entry], 100)
    assert encoded == (5).to_bytes(8) + (offset - 100).to_bytes(4)
    assert read_time_index(encoded, 100) == [entry]
