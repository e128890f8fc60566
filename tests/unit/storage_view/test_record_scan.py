"""One step of a scan: what it finds, where it ends, and that it is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.storage_view import record_scan
from isotherm.storage_view.json_condition import json_condition
from isotherm.storage_view.record_scan import (
    Fetched,
    RecordFilter,
    ScanStep,
    StepLimits,
    newest_step,
    scan_step,
)
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
    return [each.record.offset for each in found.matches]


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
    assert not found.matches


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


def newest(
    log: Log, first: Offset, end: Offset, wanted: RecordFilter, found_max: int, limits: StepLimits
) -> ScanStep:
    return newest_step(log.fetch, first, end, wanted, found_max, limits)


def test_newest_records_come_first_and_the_next_step_goes_on_below_them() -> None:
    log, end, seen = Log(), 57, []
    while end > 3:
        found = newest(log, 3, end, ALL, 4, StepLimits())
        seen += offsets(found)
        end = found.next_offset
    assert seen == list(range(56, 2, -1))


def test_search_for_the_newest_reads_larger_windows_while_nothing_matches() -> None:
    log = Log()
    wanted = RecordFilter(key=b"k123")
    found = newest(log, 0, 400, wanted, 1, StepLimits(fetches=60))
    assert offsets(found) == [123]
    # 28 fetches have what is above; windows begin within batches.
    assert len(log.fetches) <= 28 * 2
    assert found.examined < 400


def test_window_that_a_fetch_does_not_cover_is_begun_anew_nearer_to_the_end() -> None:
    log = Log()
    found = newest(log, 0, 1000, ALL, 500, StepLimits(fetches=3))
    # Two fetches had 20 of 500 offsets: the next window has 20.
    assert log.fetches == [500, 510, 980]
    assert (found.matches, found.next_offset) == ((), 1000)
    found = newest(log, 0, 1000, ALL, 500, StepLimits(fetches=4))
    assert offsets(found) == list(range(999, 979, -1))
    assert found.next_offset == 980


def test_step_for_the_newest_ends_at_its_limits_and_says_where() -> None:
    limits = StepLimits(fetches=2)
    log = Log()
    found = newest(log, 0, 1000, RecordFilter(key=b"none"), 10, limits)
    assert len(log.fetches) == 2
    assert limits.is_used_up
    assert (found.matches, found.next_offset < 1000) == ((), True)


def test_several_scans_share_the_limits_of_a_step() -> None:
    limits, log = StepLimits(fetches=3), Log()
    first = scan_step(log.fetch, 0, 20, ALL, 100, limits)
    second = scan_step(log.fetch, 0, 20, ALL, 100, limits)
    assert (first.next_offset, second.next_offset, len(log.fetches)) == (20, 10, 3)


def test_window_in_which_compaction_left_nothing_is_passed() -> None:
    log = Log()

    def fetch(offset: Offset) -> Fetched:
        """Offsets 10 to 89 are gone: a fetch of one gives the batch from 90 on."""
        return log.fetch(90 if 10 <= offset < 90 else offset)

    found = newest_step(fetch, 0, 100, ALL, 15, StepLimits())
    assert offsets(found) == [*range(99, 89, -1), *range(9, 4, -1)]


def test_tier_that_gives_nothing_ends_the_step_for_the_newest() -> None:
    nothing = Fetched(memoryview(b""), "remote", "broker", 1, 0, 0.0)
    found = newest_step(lambda _: nothing, 0, 100, ALL, 5, StepLimits())
    assert (found.matches, found.next_offset, len(found.fetched)) == ((), 100, 1)


def test_condition_is_met_by_the_part_that_it_names() -> None:
    log = Log()
    wanted = RecordFilter(condition=json_condition("value.n = 1"))
    assert scan_step(log.fetch, 0, 20, wanted, 5).matches == ()
