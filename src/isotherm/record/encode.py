"""Builds record batches from Arrow columns, without Python per record.

    key, value        binary, may be null
    headers           list of (key string, value binary); the column may be missing
    timestamp         milliseconds
    timestamp_type    0 CreateTime, 1 LogAppendTime: Kafka's numbers

The batches are those of a producer without idempotence: no producer id, offsets without gaps. A
codec is called once for each batch.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.errors import RecordTooLargeError
from isotherm.record.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_LAYOUT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_FLAG,
)
from isotherm.record.batch_table import byte_array
from isotherm.record.compression import CompressionType, compress
from isotherm.record.crc32c import crc32c_of_array
from isotherm.record.filter import FilteredBatches

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch_table import ByteArray, Int32Array
    from isotherm.types import LeaderEpoch, Offset

    BinaryColumn: TypeAlias = tuple[Int32Array, ByteArray, ByteArray]

_LOG_OVERHEAD = 12
_MAGIC = 2
_NO_PRODUCER = (-1, -1, -1)
_CRC = struct.Struct(">I")
_CRC_POSITION = 17


class Partitioner(enum.Enum):
    """The partition of a record: by Kafka's default hash of the key, by librdkafka's CRC-32 of it,
    or as a column says."""

    MURMUR2 = "murmur2"
    CONSISTENT = "consistent"
    COLUMN = "column"


def encode_batches(
    rows: pa.RecordBatch,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    *,
    compression: CompressionType,
    batch_size: int,
    max_message_bytes: int,
    level: int | None = None,
) -> FilteredBatches:
    """Batches of at most `batch_size` bytes before compression, from `base_offset` on.

    Raises RecordTooLargeError for a record whose batch is larger than `max_message_bytes`.
    """
    from isotherm.kernels import encode as kernels
    from isotherm.kernels.filter import WRITTEN

    timestamps = rows["timestamp"].to_numpy(zero_copy_only=False)
    types = rows["timestamp_type"].to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    keys, values = binary_column(rows["key"]), binary_column(rows["value"])
    starts, names, header_values = _headers(rows)
    size_max = (
        (kernels.RECORD_OVERHEAD_MAX + HEADER_SIZE) * len(rows)
        + kernels.RECORD_HEADER_OVERHEAD_MAX * int(starts[-1] - starts[0])
        + sum(
            int(parts[0][-1]) - int(parts[0][0]) for parts in (keys, values, names, header_values)
        )
    )
    out = np.empty(size_max, dtype=np.uint8)
    encoded = np.empty(len(rows), dtype=kernels.ENCODED)
    count = kernels.encode_records(
        keys, values, timestamps, types, starts, names, header_values, batch_size, out, encoded
    )
    assert count >= 0, "the kernel wrote another size than it had computed"
    encoded = encoded[:count]
    written = np.zeros(count, dtype=WRITTEN)
    written["base_offset"] = base_offset + encoded["first_row"]
    written["last_offset"] = written["base_offset"] + encoded["records_count"] - 1
    written["max_timestamp"] = encoded["max_timestamp"]
    written["is_new"] = 1
    parts = _finish(out, encoded, written, leader_epoch, compression, level)
    sizes = written["size"]
    if len(sizes) and int(sizes.max()) > max_message_bytes:
        row = int(np.argmax(sizes))
        raise RecordTooLargeError(
            f"record is larger than max.message.bytes offset={int(written['base_offset'][row])}"
            f" size={int(sizes[row])} max.message.bytes={max_message_bytes}"
            " hint='raise max.message.bytes of the topic'"
        )
    return FilteredBatches(parts, written)


def _finish(
    out: npt.NDArray[np.uint8],
    encoded: npt.NDArray[np.void],
    written: npt.NDArray[np.void],
    leader_epoch: LeaderEpoch,
    compression: CompressionType,
    level: int | None,
) -> memoryview:
    """Compress the records, write headers and CRCs, and set positions and sizes. Python runs once
    for each batch."""
    parts: list[npt.NDArray[np.uint8]] = []
    position = 0
    for row, (at, end, _, records, base_ms, max_ms, kind) in enumerate(encoded.tolist()):
        payload = out.data[at + HEADER_SIZE : end]
        attributes = int(compression) | (TIMESTAMP_TYPE_FLAG if kind else 0)
        if compression is not CompressionType.NONE:
            packed = compress(compression, payload, level)
            batch = np.empty(HEADER_SIZE + len(packed), dtype=np.uint8)
            batch[HEADER_SIZE:] = np.frombuffer(packed, dtype=np.uint8)
            parts.append(batch)
        else:
            batch = out[at:end]
        size = len(batch)
        HEADER_LAYOUT.pack_into(
            batch.data, 0, int(written["base_offset"][row]), size - _LOG_OVERHEAD, leader_epoch,
            _MAGIC, 0, attributes, records - 1, base_ms, max_ms, *_NO_PRODUCER, records,
        )  # fmt: skip
        _CRC.pack_into(batch.data, _CRC_POSITION, crc32c_of_array(batch[ATTRIBUTES_POSITION:]))
        written["position"][row], written["size"][row] = position, size
        position += size
    # Without a codec the batches stand side by side in the kernel's output.
    return np.concatenate(parts).data if parts else out.data[:position]


def binary_column(array: Any) -> BinaryColumn:
    """An Arrow array as kernels take it: offsets, data, and a byte for each row that is 0 for
    null."""
    if array.type not in (pa.binary(), pa.string()):
        array = array.cast(pa.binary())
    _, offsets, data = array.buffers()
    is_valid = b""
    if array.null_count:
        is_valid = array.is_valid().to_numpy(zero_copy_only=False).tobytes()
    return (
        _int32s(offsets)[array.offset : array.offset + len(array) + 1],
        byte_array(b"" if data is None else data),
        byte_array(is_valid),
    )


def _int32s(buffer: Any) -> Int32Array:
    # An empty array may have no buffer. Read-only, like all arrays of kernels.
    return np.frombuffer(bytes(4) if buffer is None else buffer, dtype=np.int32)


def _headers(rows: pa.RecordBatch) -> tuple[Int32Array, BinaryColumn, BinaryColumn]:
    """Where the headers of each row begin, with one more row; their names, and their values."""
    if "headers" not in rows.schema.names:
        none = binary_column(pa.array([], pa.binary()))
        return np.zeros(len(rows) + 1, dtype=np.int32), none, none
    lists: Any = rows["headers"]
    starts = _int32s(lists.buffers()[1])[lists.offset : lists.offset + len(lists) + 1]
    headers = lists.values
    if lists.null_count:
        # Arrow lets a null list have any offsets. For a record it is a list without headers.
        sizes = lists.value_lengths().fill_null(0).to_numpy()
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        headers = lists.flatten()
    return starts, binary_column(headers.field(0)), binary_column(headers.field(1))


def assign_partitions(
    keys: Any,
    values: Any,
    partitioner: Partitioner,
    partitions_count: int,
    *,
    run_size: int,
    sticky: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """The partition of each row by its key. Rows without a key stay in one partition for
    `run_size` bytes; `sticky` is that partition and its bytes so far, and is brought up to date."""
    from isotherm.kernels import encode as kernels

    kinds = {Partitioner.MURMUR2: kernels.MURMUR2, Partitioner.CONSISTENT: kernels.CONSISTENT}
    partitions = np.empty(len(keys), dtype=np.int32)
    kernels.assign_partitions(
        *(binary_column(keys), binary_column(values), kinds[partitioner]),
        *(partitions_count, run_size, sticky, partitions),
    )
    return partitions
