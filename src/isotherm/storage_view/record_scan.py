"""Searches records, from the oldest or the newest on, in bounded steps. Pure, except that `fetch`
does I/O.

A scan is a sequence of steps. Each step is bounded, and returns the matches, its cost and the
offset where the next step begins. So the caller can show progress, and cancels a scan by not
calling again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from isotherm.record.batch import Record, read_records
from isotherm.record.batch_header import BatchHeader, iterate_batches, verify_batch_crc
from isotherm.storage_view.json_condition import JsonCondition
from isotherm.types import Offset, Position

Tier: TypeAlias = Literal["local", "remote"]

FETCHES_MAX = 16
FETCHED_BYTES_MAX = 8 * 1024 * 1024
EXAMINED_MAX = 50_000
WINDOW_OFFSETS_MAX = 20_000  # of a search from the newest on
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024  # of one batch


@dataclass(frozen=True, slots=True)
class Fetched:
    """Consecutive batches, and what it cost to get them. The first batch may begin below the wanted
    offset, and the last may be cut off. `reads` counts requests to the broker, or ranges and
    indexes of the bucket. `size_in_bytes` is the size of all that was read."""

    data: memoryview
    tier: Tier
    source: str
    reads: int
    size_in_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Matches records whose key and value contain these bytes, and that have a header with this
    name, this value, or both. An empty field matches every record, and so does no condition."""

    key: bytes = b""
    value: bytes = b""
    header_name: str = ""
    header_value: bytes = b""
    condition: JsonCondition | None = None

    def matches(self, record: Record) -> bool:
        return (
            self.key in (record.key or b"")
            and self.value in (record.value or b"")
            and (self._wants_any_header() or any(map(self._is_wanted, record.headers)))
            and self._meets_condition(record)
        )

    def _meets_condition(self, record: Record) -> bool:
        if self.condition is None:
            return True
        return self.condition.matches(record.key if self.condition.part == "key" else record.value)

    def _wants_any_header(self) -> bool:
        return not self.header_name and not self.header_value

    def _is_wanted(self, header: tuple[str, bytes | None]) -> bool:
        name, value = header
        return self.header_name in ("", name) and self.header_value in (value or b"")


@dataclass(slots=True)
class StepLimits:
    """What is left of a step, which may read several partitions."""

    fetches: int = field(default_factory=lambda: FETCHES_MAX)
    fetched_bytes: int = field(default_factory=lambda: FETCHED_BYTES_MAX)
    examined: int = field(default_factory=lambda: EXAMINED_MAX)

    @property
    def is_used_up(self) -> bool:
        return self.fetches <= 0 or self.fetched_bytes <= 0 or self.examined <= 0

    def note(self, fetched: Fetched) -> None:
        self.fetches -= 1
        self.fetched_bytes -= fetched.size_in_bytes


class FoundRecord(NamedTuple):
    record: Record
    batch: BatchHeader
    tier: Tier


@dataclass(frozen=True, slots=True)
class ScanStep:
    """The result of one step. `next_offset` is the offset of the first record that was not
    examined; of a step from the newest on, it is the offset after the last one that was not. If it
    did not move and is not at the end, the tier did not answer in time, or nothing was left of the
    limits."""

    matches: tuple[FoundRecord, ...]
    next_offset: Offset
    examined: int
    fetched: tuple[Fetched, ...]


def scan_step(
    fetch: Callable[[Offset], Fetched],
    first: Offset,
    end: Offset,
    record_filter: RecordFilter,
    found_max: int,
    limits: StepLimits | None = None,
) -> ScanStep:
    """Search from `first` on until `found_max` records match, `end` is reached, or the limits of
    one step are. What the step takes is subtracted from `limits`.

    Control records are skipped. Raises CorruptRecordError, and what `fetch` raises.
    """
    limits = StepLimits() if limits is None else limits
    matches: list[FoundRecord] = []
    fetched: list[Fetched] = []
    examined, offset = 0, first
    while offset < end and len(matches) < found_max and not limits.is_used_up:
        fetched.append(fetch(offset))
        limits.note(fetched[-1])
        before = offset
        for record, batch, after in _records(fetched[-1].data, offset, end):
            offset = after
            if record is None:
                continue
            examined += 1
            limits.examined -= 1
            if record_filter.matches(record):
                matches.append(FoundRecord(record, batch, fetched[-1].tier))
            if len(matches) == found_max or limits.examined == 0:
                break
        if offset == before:
            # No whole batch came: the tier did not answer in time. The next step fetches again.
            break
    return ScanStep(tuple(matches), offset, examined, tuple(fetched))


def newest_step(
    fetch: Callable[[Offset], Fetched],
    first: Offset,
    end: Offset,
    record_filter: RecordFilter,
    found_max: int,
    limits: StepLimits,
) -> ScanStep:
    """Search from `end` back to `first`; the newest record is the first that is returned.

    Logs are only read forwards, so a window before the end is read, and then the one before it.
    A window that two fetches do not cover by half is begun anew with as many offsets as they had,
    and one that was covered is followed by a larger one.
    """
    matches: list[FoundRecord] = []
    fetched: list[Fetched] = []
    examined, size, size_max = 0, found_max, WINDOW_OFFSETS_MAX
    while end > first and len(matches) < found_max and not limits.is_used_up:
        start = max(first, end - size)
        window = _window(fetch, start, end, record_filter, limits)
        fetched += window.fetched
        examined += window.examined
        if window.next_offset == start:
            break  # the tier did not answer in time
        if window.next_offset < end:
            size = window.next_offset - start
            size_max = 2 * size  # four fetches cover as many
            continue
        matches += window.matches[::-1]
        end = start
        size = min(4 * size, size_max)
    if len(matches) > found_max:
        del matches[found_max:]
        end = matches[-1].record.offset
    return ScanStep(tuple(matches), end, examined, tuple(fetched))


def _window(
    fetch: Callable[[Offset], Fetched],
    start: Offset,
    end: Offset,
    record_filter: RecordFilter,
    limits: StepLimits,
) -> ScanStep:
    """All that matches from `start` to `end`, unless its first fetches cover too little of it."""
    matches: list[FoundRecord] = []
    fetched: list[Fetched] = []
    examined, offset = 0, start
    while offset < end and not limits.is_used_up:
        fetched.append(fetch(offset))
        limits.note(fetched[-1])
        before = offset
        for record, batch, after in _records(fetched[-1].data, offset, end):
            offset = after
            if record is None:
                continue
            examined += 1
            limits.examined -= 1
            if record_filter.matches(record):
                matches.append(FoundRecord(record, batch, fetched[-1].tier))
        if offset == before and _begins_at_or_after(fetched[-1].data, end):
            offset = end  # compaction has left no record of the window
        # The first fetch may begin at the end of a large batch, so it does not tell.
        if offset == before or (len(fetched) > 1 and end - offset > offset - start):
            break
    return ScanStep(tuple(matches), offset, examined, tuple(fetched))


def _begins_at_or_after(data: memoryview, offset: Offset) -> bool:
    return any(header.base_offset >= offset for _, header in iterate_batches(data))


def _records(
    data: memoryview, first: Offset, end: Offset
) -> Iterator[tuple[Record | None, BatchHeader, Offset]]:
    """Yield each record of the range, and the offset after it.

    At the end of a batch the record is None.
    """
    for position, header in iterate_batches(data):
        if header.next_offset <= first:
            continue
        if header.base_offset >= end:
            return
        if not header.is_control:
            for record in _checked(data, position, header):
                if first <= record.offset < end:
                    yield record, header, record.offset + 1
        # Compaction may have removed the last records of a batch, but their offsets count as
        # examined.
        yield None, header, min(header.next_offset, end)


def _checked(data: memoryview, position: Position, header: BatchHeader) -> list[Record]:
    verify_batch_crc(data, position, header)
    return read_records(data, position, header, DECOMPRESSED_BYTES_MAX)
