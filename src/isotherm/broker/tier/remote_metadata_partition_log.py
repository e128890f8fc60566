"""Batches of metadata records, and reads of them from a partition's log.

Shared by all MetadataTopics.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import Header, Record, build_batch, iterate_batches, read_records
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.types import Offset

_COLUMNS = frozenset({"key", "value"})
_OFFSET_MAX = 2**63 - 1


DECIDED_AT = "decided.at"
"""A header of an audited event: the end offset of the metadata partition when it was decided, as
i64.
"""

_DECIDED_AT_VALUE = struct.Struct(">q")


def metadata_batch(records: Sequence[NewMetadataRecord]) -> bytearray:
    return build_batch(
        [(record.timestamp_ms, record.key, record.value, _headers_of(record)) for record in records]
    )


def _headers_of(record: NewMetadataRecord) -> tuple[Header, ...]:
    if record.decided_at is None:
        return ()
    return ((DECIDED_AT, _DECIDED_AT_VALUE.pack(record.decided_at)),)


def _decided_at(record: Record) -> Offset | None:
    for name, value in record.headers:
        if name == DECIDED_AT and value is not None and len(value) == _DECIDED_AT_VALUE.size:
            return int(_DECIDED_AT_VALUE.unpack(value)[0])
    return None


def read_metadata_records(
    log: PartitionLog, partition: int, start_offset: Offset, max_bytes: int
) -> list[MetadataTopicRecord]:
    """See `MetadataTopic.read`."""
    position = start_offset
    while True:
        batches = _read(log, position, max_bytes)
        records, next_offset = records_of_batches(batches, partition, start_offset)
        # The cleaner may leave batches without records. They are skipped, since no records would
        # mean the end.
        if records or next_offset <= position:
            return records
        position = next_offset


def records_of_batches(
    batches: memoryview, partition: int, start_offset: Offset
) -> tuple[list[MetadataTopicRecord], Offset]:
    """The records from `start_offset` on, and the offset after the last batch; 0 without
    batches.
    """
    records = [
        MetadataTopicRecord(
            partition,
            record.offset,
            record.timestamp_ms,
            record.key,
            record.value,
            _decided_at(record),
        )
        for place, header in iterate_batches(batches)
        if not header.is_control
        for record in read_records(batches, place, header)
        if record.offset >= start_offset
    ]
    return records, max((header.next_offset for _, header in iterate_batches(batches)), default=0)


def read_metadata_columns(
    log: PartitionLog, start_offset: Offset, max_bytes: int
) -> MetadataColumns:
    """See `MetadataTopic.read_columns`."""
    return columns_of_batches(_read(log, start_offset, max_bytes), start_offset)


def columns_of_batches(batches: memoryview, start_offset: Offset) -> MetadataColumns:
    # Imported on use, because it loads Arrow and the kernels.
    from isotherm.record.columns import decode_columns

    decoded = decode_columns(batches, offset_range=(start_offset, _OFFSET_MAX), columns=_COLUMNS)
    assert decoded.key is not None
    assert decoded.value is not None
    return MetadataColumns(
        offset=decoded.offset,
        key=decoded.key,
        value=decoded.value,
        next_offset=max(start_offset, decoded.next_offset),
    )


def _read(log: PartitionLog, start_offset: Offset, max_bytes: int) -> memoryview:
    return log.read(
        start_offset, max_bytes, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True
    ).records
