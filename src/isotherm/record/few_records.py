"""Checks produced records without the compiled kernels, for the first requests after a start.

It can only accept. A batch that it does not accept, invalid or merely large, is checked by the
kernel. So it needs none of the error messages, and must agree with the kernel in one direction
only. It runs Python per record, so it is limited to few records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import read_records
from isotherm.record.batch_header import BatchHeader, TimestampType, read_batch_header
from isotherm.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from isotherm.record.record_faults import RecordRules
    from isotherm.types import Position, TimestampMs

# Per request; about 5 us each.
FEW_RECORDS_MAX = 500
# Per batch, decompressed.
_PAYLOAD_SIZE_MAX = 1024 * 1024


class Vouched(NamedTuple):
    records_count: int
    largest_timestamp: TimestampMs


def vouch_for(
    records: bytearray | memoryview, rules: RecordRules, count_max: int = FEW_RECORDS_MAX
) -> Vouched | None:
    """The kernel's result for the first batch if it is certainly valid, else None."""
    try:
        header = read_batch_header(records)
        if not 0 < header.records_count <= count_max:
            return None
        largest = _largest_timestamp(records, 0, header, rules)
    except CorruptRecordError:
        return None
    return None if largest is None else Vouched(header.records_count, largest)


def _largest_timestamp(
    records: bytearray | memoryview, position: Position, header: BatchHeader, rules: RecordRules
) -> TimestampMs | None:
    # Refused in any case, and only the kernels' path refuses.
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return None
    largest = NO_TIMESTAMP
    for index, record in enumerate(read_records(records, position, header, _PAYLOAD_SIZE_MAX)):
        timestamp = record.timestamp_ms
        is_timely = rules.timestamp_min <= timestamp <= rules.timestamp_max
        if record.offset - header.base_offset != index or not (
            is_timely or timestamp == NO_TIMESTAMP
        ):
            return None
        if rules.key_required and record.key is None:
            return None
        largest = max(largest, timestamp)
    return largest
