"""Metadata records in a partition's log, shared by all MetadataTopics over local logs."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches, read_records
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.types import Offset

_COLUMNS = frozenset({"key", "value"})
_OFFSET_MAX = 2**63 - 1


def metadata_batch(records: Sequence[NewMetadataRecord]) -> bytearray:
    return build_batch([(each.timestamp_ms, each.key, each.value, ()) for each in records])


def read_metadata_records(
    log: PartitionLog, partition: int, start_offset: Offset, max_bytes: int
) -> list[MetadataTopicRecord]:
    """See `MetadataTopic.read`."""
    position = start_offset
    while True:
        batches = _read(log, position, max_bytes)
        records = [
            MetadataTopicRecord(
                partition, record.offset, record.timestamp_ms, record.key, record.value
            )
            for place, header in iterate_batches(batches)
            if not header.is_control
            for record in read_records(batches, place, header)
            if record.offset >= start_offset
        ]
        # The cleaner may leave batches without records in between.
        if records or not batches:
            return records
        headers = (header.next_offset for _, header in iterate_batches(batches))
        position = max(headers, default=position)


def read_metadata_columns(
    log: PartitionLog, start_offset: Offset, max_bytes: int
) -> MetadataColumns:
    """See `MetadataTopic.read_columns`."""
    # Imported here, not above: it loads Arrow and the kernels.
    from isotherm.record.columns import decode_columns

    decoded = decode_columns(
        _read(log, start_offset, max_bytes),
        offset_range=(start_offset, _OFFSET_MAX),
        columns=_COLUMNS,
    )
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
