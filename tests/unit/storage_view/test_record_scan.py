"""One step of a scan: what it finds, where it ends, and that it is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.storage_view import record_scan
from isotherm.storage_view.record_scan import Fetched, RecordFilter, ScanStep, scan_step
from isotherm.types import Offset

ALL = RecordFilter()
PER_BATCH = 10


def batch(base: Offset, *, is_control: bool = False) -> bytes:
    records = [
        NewRecord(n, b"k%d" % n, b"v%d" % n, [("parity", b"even" if n % 2 == 0 else b"odd")])
        for n in range(base, base + PER_BATCH)
    ]
    return bytes(build_batch(records, base_offset=base, is_control=is_control))


class Log:
    """A log of batches of ten records. A fetch returns the batch that holds the offset and a part
    of the next."""

    def __init__(self, control: Sequence[Offset] = ()) -> None:
        self.control = control
        self.fetches: list[Offset] = []

    def fetch(self, offset: Offset) -> Fetched:
        self.fetches.append(offset)
        base = offset - offset % PER_BATCH
        data = batch(base, is_control=base in self.control) + batch(base + PER_BATCH)[:80]
        return Fetched(memoryview(data), "remote", "bucket", 1, len(data), 0.0)


def step(log: Log, first: Offset, end: Offset, wanted: RecordFilter, found_max: int) -> ScanStep:
    return scan_step(log.fetch, first, end, wanted, found_max)


def offsets(found: ScanStep) -> list[Offset]:
    return [each.record.offset for each in found.found]


def test_scan_begins_within_a_batch_and_ends_with_what_was_wanted() -> None:
    log = Log()
    found = step(log, 7, 100, ALL, 5)
    assert offsets(found) == [7, 8, 9, 10, 11]
    assert (found.next_offset, found.examined, log.fetches) == (12, 5, [7, 10])


def test_next_step_goes_on_where_the_last_ended() -> None:
    log, at, seen = Log(), 3, []
    while at < 57:
        found = step(log, at, 57, ALL, 4)
        seen += offsets(found)
        at = found.next_offset
    assert (seen, at) == (list(range(3, 57)), 57)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (RecordFilter(key=b"k1"), [1, *range(10, 20)]),
        (RecordFilter(value=b"v2"), [2, *range(20, 30)]),
        (RecordFilter(value=b"2", header_name="parity", header_value=b"odd"), [21, 23, 25, 27, 29]),
        (RecordFilter(header_value=b"od", key=b"k1"), [1, 11, 13, 15, 17, 19]),
        (RecordFilter(header_name="par"), []),
    ],
)
def test_filters_look_at_key_value_and_headers(
    wanted: RecordFilter, expected: list[Offset]
) -> None:
    assert offsets(step(Log(), 0, 30, wanted, 50)) == expected


def test_control_records_are_passed_over() -> None:
    found = step(Log(control=[10]), 5, 30, ALL, 50)
    assert offsets(found) == [*range(5, 10), *range(20, 30)]
    assert (found.next_offset, found.examined) == (30, 15)


def test_a_step_without_a_match_is_bounded() -> None:
    log = Log()
    found = step(log, 0, 10_000, RecordFilter(key=b"none"), 50)
    assert len(log.fetches) == record_scan.FETCHES_MAX
    assert found.next_offset == record_scan.FETCHES_MAX * PER_BATCH
    assert not found.found


def test_records_looked_at_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_scan, "EXAMINED_MAX", 13)
    assert step(Log(), 0, 100, RecordFilter(key=b"none"), 50).next_offset == 13


def test_tier_that_gives_nothing_ends_the_step() -> None:
    nothing = Fetched(memoryview(b""), "remote", "broker", 1, 0, 0.5)
    found = scan_step(lambda _: nothing, 5, 10, ALL, 50)
    assert (found.next_offset, len(found.fetched)) == (5, 1)


def test_damaged_batch_is_an_error_that_names_it() -> None:
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    fetched = Fetched(memoryview(damaged), "local", "broker", 1, len(damaged), 0.0)
    with pytest.raises(CorruptRecordError, match="base_offset=0"):
        scan_step(lambda _: fetched, 0, 10, ALL, 50)
