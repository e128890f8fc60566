"""Control records: transaction markers, and records of Raft.

A control batch has attribute bit 5 set and base_sequence -1. Its record's key is version i16 (0)
and type i16. The value of a transaction marker is version i16 (0) and coordinator epoch i32.
Consumers never get these records. Unknown types must be skipped.
Source: Kafka ControlRecordType.java, EndTransactionMarker.java.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import BatchHeader, NewRecord, build_batch, read_records
from isotherm.record.varint import ReadBuffer
from isotherm.types import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    Position,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)

_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlRecordType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


_KNOWN_TYPES = frozenset(ControlRecordType) - {ControlRecordType.UNKNOWN}


class ControlRecord(NamedTuple):
    """`coordinator_epoch` is None unless the record is a transaction marker."""

    offset: Offset
    timestamp_ms: TimestampMs
    type: ControlRecordType
    version: int
    coordinator_epoch: int | None
    value: bytes | None

    @property
    def is_transaction_marker(self) -> bool:
        return self.coordinator_epoch is not None


def read_control_records(
    buffer: ReadBuffer, position: Position, header: BatchHeader
) -> list[ControlRecord]:
    """All records of the control batch at `position`. Raises CorruptRecordError on any damage."""
    return [
        _control_record(record.offset, record.timestamp_ms, record.key, record.value)
        for record in read_records(buffer, position, header)
    ]


def read_control_record(
    buffer: ReadBuffer, position: Position, header: BatchHeader
) -> ControlRecord | None:
    """The first record of a control batch (a marker has one); None if compaction removed it."""
    records = read_control_records(buffer, position, header)
    return records[0] if records else None


def _control_record(
    offset: Offset, timestamp_ms: TimestampMs, key: bytes | None, value: bytes | None
) -> ControlRecord:
    # Later versions may append fields to key and value, so extra bytes are no error.
    if key is None or len(key) < _KEY.size:
        raise CorruptRecordError(f"control record has no valid key offset={offset}")
    version, type_id = _KEY.unpack_from(key)
    record_type = (
        ControlRecordType(type_id) if type_id in _KNOWN_TYPES else ControlRecordType.UNKNOWN
    )
    coordinator_epoch = None
    if record_type in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        if value is None or len(value) < _MARKER_VALUE.size:
            raise CorruptRecordError(f"transaction marker has no valid value offset={offset}")
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    return ControlRecord(offset, timestamp_ms, record_type, version, coordinator_epoch, value)


def build_end_transaction_marker(
    marker_type: ControlRecordType,
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    coordinator_epoch: int,
    timestamp_ms: TimestampMs,
    base_offset: Offset = 0,
    partition_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
) -> bytearray:
    """The 78-byte control batch that ends a transaction. `marker_type` is ABORT or COMMIT."""
    assert marker_type in (ControlRecordType.ABORT, ControlRecordType.COMMIT)
    return build_batch(
        [
            NewRecord(
                timestamp_ms,
                _KEY.pack(_VERSION, marker_type),
                _MARKER_VALUE.pack(_VERSION, coordinator_epoch),
            )
        ],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )
