"""Searches the records of one partition in bounded steps. Pure, except that `fetch` does I/O.

A scan is a sequence of steps. Each step is bounded, and returns the matches, its cost and the
offset where the next step begins. So the caller can show progress, and cancels a scan by not
calling again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from isotherm.record.batch import Record, read_records
from isotherm.record.batch_header import BatchHeader, iterate_batches, verify_batch_crc
from isotherm.types import Offset, Position

Tier: TypeAlias = Literal["local", "remote"]

FETCHES_MAX = 16
FETCHED_BYTES_MAX = 8 * 1024 * 1024
EXAMINED_MAX = 50_000
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
    name, this value, or both. An empty field matches every record."""

    key: bytes = b""
    value: bytes = b""
    header_name: str = ""
    header_value: bytes = b""

    def matches(self, record: Record) -> bool:
        return (
            self.key in (record.key or b"")
            and self.value in (record.value or b"")
            and (self._wants_any_header() or any(map(self._is_wanted, record.headers)))
        )

    def _wants_any_header(self) -> bool:
        return not self.header_name and not self.header_value

    def _is_wanted(self, header: tuple[str, bytes | None]) -> bool:
        name, value = header
        return self.header_name in ("", name) and self.header_value in (value or b"")


class FoundRecord(NamedTuple):
    record: Record
    batch: BatchHeader
    tier: Tier


@dataclass(frozen=True, slots=True)
class ScanStep:
    """The result of one step. `next_offset` is the offset of the first record that was not
    examined. If it is below the end and did not rise, the tier did not answer in time."""

    found: tuple[FoundRecord, ...]
    next_offset: Offset
    examined: int
    fetched: tuple[Fetched, ...]


def scan_step(
    fetch: Callable[[Offset], Fetched],
    first: Offset,
    end: Offset,
    record_filter: RecordFilter,
    found_max: int,
) -> ScanStep:
    """Search from `first` on until `found_max` records match, `end` is reached, or the limits of
    one step are.

    Control records are skipped. Raises CorruptRecordError, and what `fetch` raises.
    """
    matches: list[FoundRecord] = []
    fetched: list[Fetched] = []
    examined, offset = 0, first
    while (
        offset < end
        and len(matches) < found_max
        and examined < EXAMINED_MAX
        and len(fetched) < FETCHES_MAX
        and sum(each.size_in_bytes for each in fetched) < FETCHED_BYTES_MAX
    ):
        fetched.append(fetch(offset))
        before = offset
        for record, batch, after in _records(fetched[-1].data, offset, end):
            offset = after
            if record is None:
                continue
            examined += 1
            if record_filter.matches(record):
                matches.append(FoundRecord(record, batch, fetched[-1].tier))
            if len(matches) == found_max or examined == EXAMINED_MAX:
                break
        if offset == before:
            # No whole batch came: the tier did not answer in time. The next step fetches again.
            break
    return ScanStep(tuple(matches), offset, examined, tuple(fetched))


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
