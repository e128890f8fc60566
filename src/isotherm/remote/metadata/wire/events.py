"""Decodes records of the metadata topic into changes, and iterates over them in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.wire.keys import (
    MetadataKey,
    PartitionKey,
    SegmentKey,
    parse_key,
    partition_key,
    segment_key,
)
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent, decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TopicIdPartition

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_READ_MAX_BYTES = 1024 * 1024


class MetadataChange(NamedTuple):
    """The change of one record.

    key     event
    None    an event, level 0
    a key   the whole state of the segment or partition that the key names, level 1
    a key   None: a tombstone
    """

    key: MetadataKey | None
    event: RemoteLogMetadataEvent | None

    @property
    def place(self) -> PartitionKey:
        """The user partition, without its topic's name: a tombstone has none."""
        if self.key is not None:
            return PartitionKey(self.key.topic_id, self.key.partition)
        assert self.event is not None
        return partition_key(partition_of(self.event))


def decode_record(record: MetadataTopicRecord) -> MetadataChange:
    """Decode a record. Raises CorruptMetadataError, which names the record, if it has no
    meaning."""
    try:
        return decode_change(record.key, record.value)
    except CorruptMetadataError as error:
        raise corrupt_record(record, str(error)) from error


def decode_change(key: bytes | None, value: bytes | None) -> MetadataChange:
    """Same as `decode_record`, without the record's place for the error."""
    if key is None:
        if value is None:
            raise CorruptMetadataError("a record without a key and a value means nothing")
        event = decode_event(value)
        partition_of(event)
        return MetadataChange(None, event)
    parsed = parse_key(key)
    if value is None:
        return MetadataChange(parsed, None)
    event = decode_event(value)
    expected = _key_of(event)
    if expected != parsed:
        raise CorruptMetadataError(f"record is not about its key key={parsed} value={expected}")
    return MetadataChange(parsed, event)


def partition_of(event: RemoteLogMetadataEvent) -> TopicIdPartition:
    """The user partition of an event.

    Raises CorruptMetadataError for a segment snapshot, which names none and belongs in no topic.
    """
    match event:
        case RemoteLogSegmentMetadata() | RemotePartitionDeleteMetadata():
            return event.topic_id_partition
        case RemoteLogSegmentMetadataUpdate():
            return event.segment_id.topic_id_partition
    raise CorruptMetadataError(f"a segment snapshot names no partition segment={event.id}")


def corrupt_record(record: MetadataTopicRecord, reason: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"metadata record cannot be applied topic={REMOTE_LOG_METADATA_TOPIC}"
        f" partition={record.partition} offset={record.offset} reason={reason!r}"
    )


def iterate_records(
    topic: MetadataTopic,
    partition: int,
    *,
    start_offset: Offset = 0,
    end_offset: Offset | None = None,
) -> Iterator[MetadataTopicRecord]:
    """Iterate over the records of a metadata partition in [start_offset, end_offset): from the
    first kept record on at the earliest, and by default to the end at the start of the
    iteration."""
    first, end = topic.offsets(partition)
    if end_offset is not None:
        end = end_offset
    position = max(first, start_offset)
    while position < end:
        records = topic.read(partition, position, DEFAULT_READ_MAX_BYTES)
        if not records:
            return
        for record in records:
            if record.offset >= end:
                return
            yield record
        position = next_offset(records, position)


def iterate_columns(
    topic: MetadataTopic, partition: int, *, start_offset: Offset
) -> Iterator[MetadataColumns]:
    """Same as `iterate_records`, with the records of each read as columns."""
    first, end = topic.offsets(partition)
    position = max(first, start_offset)
    while position < end:
        columns = topic.read_columns(partition, position, DEFAULT_READ_MAX_BYTES)
        if columns.next_offset <= position:
            return
        position = columns.next_offset
        count = int(np.searchsorted(columns.offset, end))
        yield MetadataColumns(
            columns.offset[:count],
            columns.key.slice(0, count),
            columns.value.slice(0, count),
            columns.next_offset,
        )


def next_offset(records: list[MetadataTopicRecord], position: Offset) -> Offset:
    """The offset at which the read after `records` starts; `position` if there are none."""
    return records[-1].offset + 1 if records else position


def _key_of(event: RemoteLogMetadataEvent) -> SegmentKey | PartitionKey:
    match event:
        case RemoteLogSegmentMetadata():
            return segment_key(
                event.topic_id_partition, event.end_offset_inclusive, event.broker_leader_epoch
            )
        case RemotePartitionDeleteMetadata():
            return partition_key(event.topic_id_partition)
    raise CorruptMetadataError("only the state of a segment or a partition has a key")


def columns_of(records: Sequence[MetadataTopicRecord], start_offset: Offset) -> MetadataColumns:
    """Convert record objects to columns."""
    return MetadataColumns(
        offset=np.array([record.offset for record in records], dtype=np.int64),
        key=binary_array([record.key for record in records]),
        value=binary_array([record.value for record in records]),
        next_offset=records[-1].offset + 1 if records else start_offset,
    )


def binary_array(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Not by `pa.array`: it imports pandas where that is installed, 0.2 s and 36 MB."""
    import pyarrow as pa  # not above: reading events one by one does without it

    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    is_there = np.array([value is not None for value in values], np.bool_)
    data = b"".join(value or b"" for value in values)
    buffers: list[Any] = [
        pa.py_buffer(np.packbits(is_there, bitorder="little").data),
        pa.py_buffer(offsets.data),
        pa.py_buffer(data),
    ]
    from_buffers: Any = pa.BinaryArray.from_buffers  # typed as an array of any kind
    column: pa.BinaryArray = from_buffers(pa.binary(), len(values), buffers)
    return column


def joined_columns(parts: Sequence[MetadataColumns]) -> MetadataColumns:
    """Concatenate adjacent runs, at least one."""
    import pyarrow as pa

    return MetadataColumns(
        np.concatenate([part.offset for part in parts]),
        pa.concat_arrays([part.key for part in parts]),
        pa.concat_arrays([part.value for part in parts]),
        parts[-1].next_offset,
    )
