"""Reading metadata events from a `MetadataTopic`, each named by partition and offset if damaged."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.serde import RemoteLogMetadataEvent, decode_event
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset

DEFAULT_READ_MAX_BYTES = 1024 * 1024


def decode_record(record: MetadataTopicRecord) -> RemoteLogMetadataEvent:
    """The event of one record; CorruptMetadataError naming the record when it has none."""
    if record.value is None:
        raise corrupt_record(record, "a tombstone has no place at feature level 0")
    try:
        return decode_event(record.value)
    except CorruptMetadataError as error:
        raise corrupt_record(record, str(error)) from error


def corrupt_record(record: MetadataTopicRecord, reason: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"metadata record cannot be applied topic={REMOTE_LOG_METADATA_TOPIC}"
        f" partition={record.partition} offset={record.offset} reason={reason!r}"
    )


def iterate_records(
    topic: MetadataTopic, partition: int, *, read_max_bytes: int = DEFAULT_READ_MAX_BYTES
) -> Iterator[MetadataTopicRecord]:
    """Every record of a metadata partition up to the end seen when the iteration began."""
    position, end = topic.offsets(partition)
    while position < end:
        records = topic.read(partition, position, read_max_bytes)
        if not records:
            return
        for record in records:
            if record.offset >= end:
                return
            yield record
        position = next_offset(records, position)


def next_offset(records: list[MetadataTopicRecord], position: Offset) -> Offset:
    """Where to read on after `records`."""
    return records[-1].offset + 1 if records else position
