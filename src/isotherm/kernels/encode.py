"""A compiled loop that writes the records of new batches from Arrow columns.

See `isotherm.kernels` for the rules of kernels. A binary column has offsets, data, and a byte for
each row that is 0 for null; no bytes if no row is null.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.batch_fields import HEADER_SIZE
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined, not_inlined
from isotherm.kernels.raw_memory import copy
from isotherm.kernels.record_writer import varint_size, write_varint, zigzag
from isotherm.kernels.tables import BYTES, BYTES_OUT, INT32_OUT, INT64_OUT, table_of

ENCODED = np.dtype(
    [
        # Position of the batch's header in `out`, and of the end of its records.
        ("position", np.int64),
        ("end", np.int64),
        ("first_row", np.int64),
        ("records_count", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        # 1 for LogAppendTime.
        ("timestamp_type", np.int64),
    ]
)

RECORD_OVERHEAD_MAX = 36
"""Size, attributes, timestamp delta, offset delta, sizes of key and value, number of headers."""
RECORD_HEADER_OVERHEAD_MAX = 10
"""Sizes of a header's name and value."""

_INT32S = types.Array(types.int32, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C", readonly=True)
COLUMN = types.Tuple((_INT32S, BYTES, BYTES))


@inlined
def size_of(column, row):
    """The size of a row's bytes; -1 for null."""
    offsets, _, is_valid = column
    if len(is_valid) > 0 and is_valid[row] == 0:
        return np.int64(-1)
    return np.int64(offsets[row + 1]) - np.int64(offsets[row])


@inlined
def _size_with_prefix(size):
    return varint_size(zigzag(size)) + max(size, 0)


@inlined
def _write(out, position, column, row):
    size = size_of(column, row)
    position = write_varint(out, position, zigzag(size))
    if size > 0:
        copy(column[1], np.int64(column[0][row]), size, out, position)
        position += size
    return position


@kernel(
    types.int64(
        *(COLUMN, COLUMN, _INT64S, _INT32S),
        *(_INT32S, COLUMN, COLUMN),
        *(types.int64, BYTES_OUT, table_of(ENCODED)),
    )
)
def encode_records(
    keys,
    values,
    timestamps,
    timestamp_types,
    header_starts,
    header_names,
    header_values,
    batch_size,
    out,
    batches,
):
    """Write all rows as records, in batches of at most `batch_size` bytes before compression. A
    larger record has a batch of its own. Before each batch is room for its header.

    All records of a batch have one timestamp type. With LogAppendTime they have one timestamp, as
    the header has it for all of them. Returns the number of batches.
    """
    count = 0
    position = 0
    end = 0
    base_timestamp = np.int64(0)
    first_row = 0
    for row in range(len(timestamps)):
        timestamp = timestamps[row]
        timestamp_type = np.int64(timestamp_types[row])
        first_header, last_header = header_starts[row], header_starts[row + 1]
        fixed_size = (
            1
            + _size_with_prefix(size_of(keys, row))
            + _size_with_prefix(size_of(values, row))
            + varint_size(zigzag(np.int64(last_header - first_header)))
        )
        for header in range(first_header, last_header):
            fixed_size += _size_with_prefix(size_of(header_names, header))
            fixed_size += _size_with_prefix(size_of(header_values, header))
        size = (
            fixed_size
            + varint_size(zigzag(timestamp - base_timestamp))
            + varint_size(zigzag(np.int64(row - first_row)))
        )
        is_new = count == 0
        if not is_new:
            last = batches[count - 1]
            is_new = (
                position + _size_with_prefix(size) - last.position > batch_size
                or timestamp_type != last.timestamp_type
                or (timestamp_type == 1 and timestamp != last.max_timestamp)
            )
        if is_new:
            batch = batches[count]
            batch.position = position
            batch.first_row = row
            batch.base_timestamp = timestamp
            batch.max_timestamp = timestamp
            batch.timestamp_type = timestamp_type
            count += 1
            position += HEADER_SIZE
            first_row = row
            base_timestamp = timestamp
            size = fixed_size + 2
        position = write_varint(out, position, zigzag(np.int64(size)))
        end = position + size
        out[position] = 0
        position = write_varint(out, position + 1, zigzag(timestamp - base_timestamp))
        position = write_varint(out, position, zigzag(np.int64(row - first_row)))
        position = _write(out, position, keys, row)
        position = _write(out, position, values, row)
        position = write_varint(out, position, zigzag(np.int64(last_header - first_header)))
        for header in range(first_header, last_header):
            position = _write(out, position, header_names, header)
            position = _write(out, position, header_values, header)
        # The sizes were computed before: a wrong one must never become a record.
        if position != end:
            return -1
        current = batches[count - 1]
        current.end = position
        current.records_count = row + 1 - first_row
        current.max_timestamp = max(current.max_timestamp, timestamp)
    return count


@not_inlined
def _murmur2(data, start, size):
    """Kafka's Utils.murmur2."""
    mask = np.uint64(0xFFFFFFFF)
    factor = np.uint64(0x5BD1E995)
    total = (np.uint64(0x9747B28C) ^ np.uint64(size)) & mask
    position = start
    for _ in range(size // 4):
        word = (
            np.uint64(data[position])
            | np.uint64(data[position + 1]) << np.uint64(8)
            | np.uint64(data[position + 2]) << np.uint64(16)
            | np.uint64(data[position + 3]) << np.uint64(24)
        )
        word = (word * factor) & mask
        word ^= word >> np.uint64(24)
        word = (word * factor) & mask
        total = ((total * factor) & mask) ^ word
        position += 4
    rest = size % 4
    if rest > 0:
        for index in range(rest - 1, -1, -1):
            total ^= np.uint64(data[position + index]) << np.uint64(8 * index)
        total = (total * factor) & mask
    total ^= total >> np.uint64(13)
    total = (total * factor) & mask
    total ^= total >> np.uint64(15)
    return np.int64(total & mask)


def _crc32_table():
    sums = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        sums = sums >> np.uint64(1) ^ np.where(sums & 1, np.uint64(0xEDB88320), np.uint64(0))
    return sums


_CRC32 = _crc32_table()


@not_inlined
def _crc32(data, start, size):
    total = np.uint64(0xFFFFFFFF)
    for position in range(start, start + size):
        total = _CRC32[(total ^ np.uint64(data[position])) & np.uint64(0xFF)] ^ (
            total >> np.uint64(8)
        )
    return np.int64(total ^ np.uint64(0xFFFFFFFF))


MURMUR2 = 0
CONSISTENT = 1


@kernel(types.void(COLUMN, COLUMN, *(types.int64,) * 3, INT64_OUT, INT32_OUT))
def assign_partitions(keys, values, partitioner, partitions_count, run_size, sticky, partitions):
    """Assign a partition to each row by its key.

    Rows without keys stay in one partition for `run_size` bytes of values, then go to the next one.
    `sticky` is that partition and its bytes so far: the state before, and then after, these rows.
    """
    for row in range(len(partitions)):
        size = size_of(keys, row)
        if size < 0:
            partitions[row] = sticky[0]
            sticky[1] += max(size_of(values, row), 0) + 1
            if sticky[1] >= run_size:
                sticky[0] = (sticky[0] + 1) % partitions_count
                sticky[1] = 0
        elif partitioner == MURMUR2:
            hashed = _murmur2(keys[1], np.int64(keys[0][row]), size) & 0x7FFFFFFF
            partitions[row] = hashed % partitions_count
        else:
            partitions[row] = _crc32(keys[1], np.int64(keys[0][row]), size) % partitions_count
