"""Producer snapshots (`<offset>.snapshot`): the state of each producer below that offset.

    | at | size | field                                                        |
    |----|------|--------------------------------------------------------------|
    | 0  | 2    | version = 1 (i16)                                            |
    | 2  | 4    | CRC-32C of everything from byte 6 on (u32)                   |
    | 6  | 4    | number of entries (i32)                                      |
    | 10 | 46 n | entries                                                      |

Entry: producer id (i64), producer epoch (i16), last sequence (i32), last offset (i64), offset
delta of the last batch (i32), timestamp (i64), coordinator epoch (i32), first offset of the
ongoing transaction (i64, -1 for none). Only the last batch of a producer is stored. The order of
the entries has no meaning (Kafka writes hash order). Source: Kafka ProducerStateManager.java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from isotherm.errors import CorruptSnapshotError
from isotherm.record.crc32c import crc32c_of_array
from isotherm.segment.offset_index import Buffer
from isotherm.types import Offset, ProducerEpoch, ProducerId, TimestampMs

PRODUCER_SNAPSHOT_VERSION = 1
PRODUCER_SNAPSHOT_ENTRY_SIZE = 46

_HEADER = struct.Struct(">hIi")
_CRC_START = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class ProducerSnapshotEntry(NamedTuple):
    """A producer that has only written a marker has last_sequence and last_offset -1."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp_ms: TimestampMs
    coordinator_epoch: int
    current_transaction_first_offset: Offset


class LastRecord(NamedTuple):
    """The record that keeps a producer's state in the log: the offset of its last data record, or
    None if only a marker of its epoch was seen."""

    data_offset: Offset | None
    epoch: ProducerEpoch


def read_producer_snapshot(buffer: Buffer) -> list[ProducerSnapshotEntry]:
    """Decode a snapshot file.

    Raises CorruptSnapshotError; the caller deletes the file and uses an older snapshot.
    """
    if len(buffer) < _HEADER.size:
        raise CorruptSnapshotError(
            f"producer snapshot is shorter than its header size={len(buffer)}"
        )
    version, crc, count = _HEADER.unpack_from(buffer)
    if version != PRODUCER_SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"producer snapshot has an unknown version version={version}")
    # Before the CRC, which does not say whether the file ends early or is damaged.
    if len(buffer) != _HEADER.size + count * PRODUCER_SNAPSHOT_ENTRY_SIZE:
        raise CorruptSnapshotError(
            f"producer snapshot size disagrees with its count size={len(buffer)} count={count}"
        )
    body = bytes(memoryview(buffer)[_CRC_START:])
    if crc32c_of_array(body) != crc:
        raise CorruptSnapshotError(f"producer snapshot fails its crc expected={crc:08x}")
    entries = memoryview(buffer)[_HEADER.size :]
    return [ProducerSnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(entries)]


def encode_producer_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", PRODUCER_SNAPSHOT_VERSION, crc32c_of_array(body)) + body
