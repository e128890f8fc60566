"""A live segment as one row of bytes, which the cache keeps instead of objects.

    start offset i64, end offset (inclusive) i64, max timestamp i64, event timestamp i64,
    broker i32, size i32, broker leader epoch i32, state i8, flags u8, epochs count u32,
    [epoch i32, offset i64] ascending, custom metadata to the end

Big-endian. A row takes some 120 bytes of memory, its objects would take about 900, and one broker
may have to know a million live segments. Segment id and partition are not in the row.
Rows live in memory only: their layout may change at will, together with segment_columns.py.
"""

from __future__ import annotations

import struct

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.segment.leader_epochs import EpochSpan, cut_at_epochs
from isotherm.types import BrokerId, LeaderEpoch, Offset, TimestampMs

HAS_CUSTOM_METADATA = 1
TXN_INDEX_EMPTY = 2

HEAD = struct.Struct(">qqqqiiibBI")
EPOCH = struct.Struct(">iq")

_BOUNDS = struct.Struct(">qq")
_EVENT_TIMESTAMP_AND_BROKER = struct.Struct(">qi")
_EVENT_POSITION = 24
_INT32 = struct.Struct(">i")
_SIZE_POSITION = 36
_LEADER_POSITION = 40
_STATE_POSITION = 44
_FLAGS_POSITION = 45
_EPOCHS_COUNT = struct.Struct(">I")
_EPOCHS_COUNT_POSITION = 46

_STATES = tuple(RemoteLogSegmentState)


def pack_segment(metadata: RemoteLogSegmentMetadata) -> bytes:
    flags = TXN_INDEX_EMPTY if metadata.txn_index_empty else 0
    if metadata.custom_metadata is not None:
        flags |= HAS_CUSTOM_METADATA
    epochs = metadata.segment_leader_epochs
    head = HEAD.pack(
        metadata.start_offset,
        metadata.end_offset_inclusive,
        metadata.max_timestamp_ms,
        metadata.event_timestamp_ms,
        metadata.broker_id,
        metadata.segment_size_in_bytes,
        metadata.broker_leader_epoch,
        metadata.state,
        flags,
        len(epochs),
    )
    packed = b"".join(EPOCH.pack(epoch, offset) for epoch, offset in epochs.items())
    return head + packed + (metadata.custom_metadata or b"")


def unpack_segment(segment_id: RemoteLogSegmentId, row: bytes) -> RemoteLogSegmentMetadata:
    start, end, max_timestamp, event_timestamp, broker, size, leader, state, flags, epochs = (
        HEAD.unpack_from(row)
    )
    custom_start = HEAD.size + epochs * EPOCH.size
    return RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=max_timestamp,
        broker_id=broker,
        event_timestamp_ms=event_timestamp,
        segment_size_in_bytes=size,
        segment_leader_epochs=dict(EPOCH.iter_unpack(row[HEAD.size : custom_start])),
        state=_STATES[state],
        custom_metadata=row[custom_start:] if flags & HAS_CUSTOM_METADATA else None,
        txn_index_empty=bool(flags & TXN_INDEX_EMPTY),
        broker_leader_epoch=leader,
    )


def update_row(row: bytes, update: RemoteLogSegmentMetadataUpdate) -> bytes:
    """The row after `update`, whose custom metadata replaces the old one even if it is None."""
    return replace_state(
        row,
        update.state,
        update.custom_metadata,
        update.broker_id,
        update.event_timestamp_ms,
    )


def replace_state(
    row: bytes,
    state: int,
    custom_metadata: bytes | None,
    broker_id: BrokerId,
    event_timestamp_ms: TimestampMs,
) -> bytes:
    flags = row[_FLAGS_POSITION] & ~HAS_CUSTOM_METADATA
    if custom_metadata is not None:
        flags |= HAS_CUSTOM_METADATA
    return b"".join(
        (
            row[:_EVENT_POSITION],
            _EVENT_TIMESTAMP_AND_BROKER.pack(event_timestamp_ms, broker_id),
            row[_SIZE_POSITION:_STATE_POSITION],
            bytes((state, flags)),
            row[_EPOCHS_COUNT_POSITION : _custom_start(row)],
            custom_metadata or b"",
        )
    )


def row_state(row: bytes) -> RemoteLogSegmentState:
    return _STATES[row[_STATE_POSITION]]


def row_size_in_bytes(row: bytes) -> int:
    (size,) = _INT32.unpack_from(row, _SIZE_POSITION)
    return int(size)


def row_has_txn_index(row: bytes) -> bool:
    return not row[_FLAGS_POSITION] & TXN_INDEX_EMPTY


def row_order(row: bytes) -> bytes:
    """A sort key: start offset, then end offset. Big-endian bytes sort like the numbers, because
    neither is ever negative."""
    return row[: _BOUNDS.size]


def row_key(row: bytes) -> tuple[Offset, LeaderEpoch]:
    """The part of a level-1 key that is the segment's own: end offset and broker leader epoch."""
    _, end = _BOUNDS.unpack_from(row)
    (leader,) = _INT32.unpack_from(row, _LEADER_POSITION)
    return end, leader


def row_spans(row: bytes) -> list[EpochSpan]:
    """Same as `epoch_spans` of the decoded segment."""
    _, end = _BOUNDS.unpack_from(row)
    return cut_at_epochs(list(EPOCH.iter_unpack(row[HEAD.size : _custom_start(row)])), end)


def _custom_start(row: bytes) -> int:
    (count,) = _EPOCHS_COUNT.unpack_from(row, _EPOCHS_COUNT_POSITION)
    return HEAD.size + int(count) * EPOCH.size
