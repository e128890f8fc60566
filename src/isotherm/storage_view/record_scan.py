"""A bounded look through the records of one partition: what matches, and what it cost. Pure but for `fetch`.

A scan is a row of steps. Each is bounded, and tells where the next one begins: the one who asks shows the
progress, and stops by asking no more.
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
    """Batches that lie one after the other; the first may begin below the wanted offset, the last may be
    cut off. `reads` (requests to the broker, ranges and indexes of the
    bucket) and `size_in_bytes` are what it took to get them."""

    data: memoryview
    tier: Tier
    source: str
    reads: int
    size_in_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Bytes that a key and a value contain; a header by its name, its value, or both. Empty wants all."""

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
    """`next_offset` is that of the first record that was not looked at. One below the end without any
    progress means that the tier did not answer in time."""

    found: tuple[FoundRecord, ...]
    next_offset: Offset
    examined: int
    fetched: tuple[Fetched, ...]


def scan_step(
    fetch: Callable[[Offset], Fetched],
    first: Offset,
    end: Offset,
    wanted: RecordFilter,
    found_max: int,
) -> ScanStep:
    """From `first` until `found_max` records match, the `end`, or what one step may fetch.

    Control records are passed over. Raises CorruptRecordError, and what `fetch` raises.
    """
    found: list[FoundRecord] = []
    fetched: list[Fetched] = []
    examined, offset = 0, first
    while (
        offset < end
        and len(found) < found_max
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
            if wanted.matches(record):
                found.append(FoundRecord(record, batch, fetched[-1].tier))
            if len(found) == found_max or examined == EXAMINED_MAX:
                break
        if offset == before:
            break
    return ScanStep(tuple(found), offset, examined, tuple(fetched))


def _records(
    data: memoryview, first: Offset, end: Offset
) -> Iterator[tuple[Record | None, BatchHeader, Offset]]:
    """Each record of the range, with the offset to go on from; None at the end of a batch."""
    for position, header in iterate_batches(data):
        if header.next_offset <= first:
            continue
        if header.base_offset >= end:
            return
        if not header.is_control:
            for record in _checked(data, position, header):
                if first <= record.offset < end:
                    yield record, header, record.offset + 1
        # Compaction may have taken the last records of a batch, and their offsets stay.
        yield None, header, min(header.next_offset, end)


def _checked(data: memoryview, position: Position, header: BatchHeader) -> list[Record]:
    verify_batch_crc(data, position, header)
    return read_records(data, position, header, DECOMPRESSED_BYTES_MAX)
