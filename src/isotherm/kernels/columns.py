"""Compiled loops over record batches. Importing this module loads Numba and all kernels.

Kernels have one signature each, given in advance: with a warm cache the import only reads machine
code. Numba's cache notices changes of this file alone, so what they inline lives here too.
They run without the GIL, allocate nothing, and read no byte outside of what they are given,
whatever the bytes say. Small functions are inlined by force.

How damage is noticed without a test after each field: a reader that finds its bytes outside the
bound returns a position behind the bound, all later readers then do the same, and the record's
end, which is compared once, cannot match.

Buffers are read-only uint8 arrays; rows of `BATCH` describe batches (isotherm.record.batch_header
has the format). Plain integers stand for the enumerations because kernels know only numbers.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable

from isotherm.kernels.kernel import kernel
from isotherm.kernels.raw_memory import byte_at, copy

BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("crc", np.int64),
        ("attributes", np.int64),
        ("records_count", np.int64),
        # Where the records lie: in the buffer, or in `unpacked` when `is_unpacked` is not 0.
        ("payload_start", np.int64),
        ("payload_end", np.int64),
        ("is_unpacked", np.int64),
    ]
)

# Where a record lies: `key_start` and `end` are positions in what its batch was decoded from.
PLACE = np.dtype(
    [
        ("offset", np.int64),
        # Of the batch with LogAppendTime.
        ("timestamp", np.int64),
        ("key_start", np.int64),
        ("end", np.int64),
        # Index of the row.
        ("batch", np.int32),
        # -1 for null.
        ("key_size", np.int32),
        ("value_size", np.int32),
        ("is_kept", np.int32),
    ]
)

# Results of `check_records`.
RECORDS_VALID = 0
RECORD_DAMAGED = 1
OFFSET_NOT_CONSECUTIVE = 2
KEY_MISSING = 3
TIMESTAMP_OUT_OF_RANGE = 4

_LOG_OVERHEAD = 12
_HEADER_SIZE = 61
_LENGTH_MIN = 49
_MAGIC = 2
_CODEC_MASK = 7
_CODEC_MAX = 4
_LOG_APPEND_TIME_FLAG = 8
_OFFSET_MAX = 2**63 - 1
_NO_TIMESTAMP = -1

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES_OUT = types.Array(types.uint8, 1, "C")
_INT8_OUT = types.Array(types.int8, 1, "C")
_INT32_OUT = types.Array(types.int32, 1, "C")
_INT64_OUT = types.Array(types.int64, 1, "C")
_ROWS_OUT = types.Tuple((_INT64_OUT, _INT64_OUT, _INT8_OUT))
_BINARY_OUT = types.Tuple((_INT32_OUT, _BYTES_OUT, _BYTES_OUT))
_BATCHES = types.Array(numba.from_dtype(BATCH), 1, "C")
_PLACES = types.Array(numba.from_dtype(PLACE), 1, "C")


@register_jitable(forceinline=True)
def _read_int(data, position, size):
    """Signed big-endian integer of `size` bytes; the caller has checked that they are there."""
    value = np.int64(np.int8(data[position]))
    for index in range(1, size):
        value = (value << 8) | np.int64(data[position + index])
    return value


@register_jitable(forceinline=True)
def _read_long_groups(data, position, end, size_max):
    raw = np.uint64(0)
    shift = np.uint64(0)
    for index in range(size_max):
        if position + index >= end:
            return np.uint64(0), end + 1
        byte = byte_at(data, position + index)
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return raw, position + index + 1
        shift += np.uint64(7)
    return np.uint64(0), end + 1


@register_jitable(forceinline=True)
def _read_groups(data, position, end, size_max):
    """Unsigned varint, of one or two bytes as nearly all are, and the next position."""
    if position < end:
        first = byte_at(data, position)
        if first < np.uint64(0x80):
            return first, position + 1
        if position + 1 < end:
            second = byte_at(data, position + 1)
            if second < np.uint64(0x80):
                return first & np.uint64(0x7F) | second << np.uint64(7), position + 2
    return _read_long_groups(data, position, end, size_max)


@register_jitable(forceinline=True)
def read_varint(data, position, end):
    """Zigzag integer of 32 bits and the next position, which is end + 1 when it is damaged."""
    raw, position = _read_groups(data, position, end, 5)
    low = np.int64(raw & np.uint64(0xFFFFFFFF))
    return (low >> 1) ^ -(low & 1), position


@register_jitable(forceinline=True)
def read_varlong(data, position, end):
    """Zigzag integer of 64 bits and the next position, which is end + 1 when it is damaged."""
    raw, position = _read_groups(data, position, end, 10)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position


@register_jitable(forceinline=True)
def _null_mask(size, row):
    """What to and into the byte of an Arrow validity bitmap that has the bit of `row`."""
    return ~np.uint8((1 if size < 0 else 0) << (row & 7))


@kernel(
    [types.UniTuple(types.int64, 3)(_BYTES, _BATCHES)],
)
def scan_headers(data, batches):
    """Fill `batches` with the complete batches from the start of `data`.

    Returns how many there are, the position after the last one, and 1 if the bytes there are a
    header that no writer produces (`read_batch_header` says why), else 0.
    """
    position = 0
    count = 0
    while len(data) - position >= _LOG_OVERHEAD:
        length = _read_int(data, position + 8, 4)
        if length > len(data) - position - _LOG_OVERHEAD:
            return count, position, 0
        if length < _LENGTH_MIN or data[position + 16] != _MAGIC:
            return count, position, 1
        row = batches[count]
        row.position = position
        row.size = length + _LOG_OVERHEAD
        row.base_offset = _read_int(data, position, 8)
        row.crc = _read_int(data, position + 17, 4) & 0xFFFFFFFF
        row.attributes = _read_int(data, position + 21, 2)
        row.last_offset_delta = _read_int(data, position + 23, 4)
        row.base_timestamp = _read_int(data, position + 27, 8)
        row.max_timestamp = _read_int(data, position + 35, 8)
        row.producer_id = _read_int(data, position + 43, 8)
        row.records_count = _read_int(data, position + 57, 4)
        row.payload_start = position + _HEADER_SIZE
        row.payload_end = position + row.size
        row.is_unpacked = 0
        if (
            row.base_offset < 0
            or row.last_offset_delta < 0
            or row.base_offset >= _OFFSET_MAX - row.last_offset_delta
            or row.records_count < 0
            or row.attributes & _CODEC_MASK > _CODEC_MAX
        ):
            return count, position, 1
        count += 1
        position += row.size
    return count, position, 0


@register_jitable(forceinline=True)
def _skip_headers(data, position, end):
    """Walk over the headers of a record: next position (end + 1: damaged), how many, bytes."""
    count, position = read_varint(data, position, end)
    names_size = 0
    values_size = 0
    if count < 0 or count > end - position:
        return end + 1, 0, 0, 0
    for _ in range(count):
        size, position = read_varint(data, position, end)
        if size < 0 or size > end - position:
            return end + 1, 0, 0, 0
        names_size += size
        position += size
        size, position = read_varint(data, position, end)
        if size > end - position:
            return end + 1, 0, 0, 0
        if size > 0:
            values_size += size
            position += size
    return position, count, names_size, values_size


@register_jitable(forceinline=True)
def _read_record(source, position, payload_end):
    """The record at `position`, as places in `source`; sizes are below 0 where there is null.

    First come whether it is damaged, and the next position. No test stands between the two that
    hangs on anything but the record's size: a processor is then several records ahead of the one
    whose fields it waits for.
    """
    size, start = read_varint(source, position, payload_end)
    # One that cannot be is taken for 0, which is too small for a record: its end cannot match.
    end = start + size if 0 <= size <= payload_end - start else start
    timestamp_delta, position = read_varlong(source, start + 1, end)
    offset_delta, position = read_varint(source, position, end)
    key_size, key_start = read_varint(source, position, end)
    value_size, value_start = read_varint(source, key_start + max(key_size, 0), end)
    headers_start = value_start + max(value_size, 0)
    headers_end, headers_count, names_size, header_values_size = _skip_headers(
        source, headers_start, end
    )
    return (
        headers_end != end,
        end,
        timestamp_delta,
        offset_delta,
        key_start,
        key_size,
        value_start,
        value_size,
        headers_start,
        headers_count,
        names_size,
        header_values_size,
    )


@kernel(
    [
        types.UniTuple(types.int64, 8)(
            *(_BYTES, _BYTES, _BATCHES, types.int64, types.int64),
            *(_ROWS_OUT, _BINARY_OUT, _BINARY_OUT, _INT64_OUT),
        )
    ],
)
def decode_records(
    data, unpacked, batches, offset_start, offset_end, rows, keys, values, headers_positions
):
    """Decode all records of `batches` with offsets in [offset_start, offset_end) into columns.

    `rows` is (offsets, timestamps, timestamp types). `keys` and `values` are (ends, validity,
    data): Arrow offsets, of which the first is set to 0, an Arrow bitmap with all bits set, and
    the bytes. `headers_positions` gets where each record's headers begin, as -1 - position when
    they lie in `unpacked`. Arrays are as long as the counts and payload sizes in `batches` say;
    empty ends or positions mean that the column is not wanted.

    Returns row and index of a damaged record (or -1, -1), the number of records decoded, bytes of
    keys and of values, number of headers, bytes of their names and of their values.
    """
    offsets, timestamps, timestamp_types = rows
    key_ends, key_validity, key_data = keys
    value_ends, value_validity, value_data = values
    count = keys_size = values_size = headers_total = names_total = header_values_total = 0
    for row_index in range(len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        is_unpacked = row.is_unpacked
        position = row.payload_start
        base_offset = row.base_offset
        is_log_append_time = row.attributes & _LOG_APPEND_TIME_FLAG != 0
        for index in range(row.records_count):
            (
                is_damaged,
                position,
                timestamp_delta,
                offset_delta,
                key_start,
                key_size,
                value_start,
                value_size,
                headers_start,
                headers_count,
                names_size,
                header_values_size,
            ) = _read_record(source, position, row.payload_end)
            if is_damaged or offset_delta < 0 or offset_delta > row.last_offset_delta:
                return row_index, index, 0, 0, 0, 0, 0, 0
            offset = base_offset + offset_delta
            if offset < offset_start or offset >= offset_end:
                continue
            offsets[count] = offset
            timestamp = row.base_timestamp + timestamp_delta
            timestamps[count] = row.max_timestamp if is_log_append_time else timestamp
            timestamp_types[count] = is_log_append_time
            if len(key_ends):
                key_validity[count >> 3] &= _null_mask(key_size, count)
                key_size = max(key_size, 0)
                copy(source, key_start, key_size, key_data, keys_size)
                keys_size += key_size
                key_ends[count + 1] = keys_size
            if len(value_ends):
                value_validity[count >> 3] &= _null_mask(value_size, count)
                value_size = max(value_size, 0)
                copy(source, value_start, value_size, value_data, values_size)
                values_size += value_size
                value_ends[count + 1] = values_size
            if len(headers_positions):
                headers_positions[count] = -1 - headers_start if is_unpacked else headers_start
                headers_total += headers_count
                names_total += names_size
                header_values_total += header_values_size
            count += 1
        if position != row.payload_end:
            return row_index, row.records_count, 0, 0, 0, 0, 0, 0
    return -1, -1, count, keys_size, values_size, headers_total, names_total, header_values_total


@kernel(
    [types.UniTuple(types.int64, 3)(_BYTES, _BYTES, _BATCHES, _PLACES)],
)
def locate_records(data, unpacked, batches, places):
    """Fill `places` with where each record of `batches` lies, marked as kept.

    Returns row and index of a damaged record (or -1, -1), and the number of records.
    """
    count = 0
    for row_index in range(len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        position = row.payload_start
        base_offset = row.base_offset
        base_timestamp = row.base_timestamp
        is_log_append_time = row.attributes & _LOG_APPEND_TIME_FLAG != 0
        for index in range(row.records_count):
            (
                is_damaged,
                position,
                timestamp_delta,
                offset_delta,
                key_start,
                key_size,
                _,
                value_size,
            ) = _read_record(source, position, row.payload_end)[:8]
            if is_damaged or offset_delta < 0 or offset_delta > row.last_offset_delta:
                return row_index, index, 0
            place = places[count]
            place.offset = base_offset + offset_delta
            place.timestamp = (
                row.max_timestamp if is_log_append_time else base_timestamp + timestamp_delta
            )
            place.key_start = key_start
            place.end = position
            place.batch = row_index
            place.key_size = key_size
            place.value_size = value_size
            place.is_kept = 1
            count += 1
        if position != row.payload_end:
            return row_index, row.records_count, 0
    return -1, -1, count


@kernel(
    [types.void(_BYTES, _BYTES, _INT64_OUT, _INT32_OUT, _BINARY_OUT, _BINARY_OUT)],
)
def decode_headers(data, unpacked, headers_positions, list_ends, names, values):
    """Decode the headers whose places `decode_records` found, and thereby checked.

    `list_ends` are the Arrow offsets of the lists; `names` and `values` as in `decode_records`.
    """
    name_ends, _, name_data = names
    value_ends, value_validity, value_data = values
    count = 0
    names_size = 0
    values_size = 0
    for record_index in range(len(headers_positions)):
        position = headers_positions[record_index]
        source = data
        if position < 0:
            source = unpacked
            position = -1 - position
        end = len(source)
        headers_count, position = read_varint(source, position, end)
        for _ in range(headers_count):
            size, position = read_varint(source, position, end)
            copy(source, position, size, name_data, names_size)
            names_size += size
            name_ends[count + 1] = names_size
            size, position = read_varint(source, position + size, end)
            value_validity[count >> 3] &= _null_mask(size, count)
            size = max(size, 0)
            copy(source, position, size, value_data, values_size)
            values_size += size
            value_ends[count + 1] = values_size
            position += size
            count += 1
        list_ends[record_index + 1] = count


@kernel(
    [
        types.UniTuple(types.int64, 3)(
            *(_BYTES, types.int64, types.int64),
            *(types.boolean, types.int64, types.int64),
        )
    ],
)
def check_records(
    payload,
    records_count,
    base_timestamp,
    key_required,
    timestamp_min,
    timestamp_max,
):
    """Check the records of one produced batch; offsets must count up from the base by one.

    Timestamps other than -1 must lie in [timestamp_min, timestamp_max].

    Returns the verdict, the index of the record it is about, and the largest timestamp: of the
    records, or the one that is out of range.
    """
    position = 0
    largest_timestamp = np.int64(_NO_TIMESTAMP)
    for index in range(records_count):
        is_damaged, position, timestamp_delta, offset_delta, _, key_size = _read_record(
            payload, position, len(payload)
        )[:6]
        if is_damaged:
            return RECORD_DAMAGED, index, 0
        if offset_delta != index:
            return OFFSET_NOT_CONSECUTIVE, index, 0
        if key_required and key_size < 0:
            return KEY_MISSING, index, 0
        timestamp = base_timestamp + timestamp_delta
        if timestamp != _NO_TIMESTAMP and not timestamp_min <= timestamp <= timestamp_max:
            return TIMESTAMP_OUT_OF_RANGE, index, timestamp
        largest_timestamp = max(largest_timestamp, timestamp)
    if position != len(payload):
        return RECORD_DAMAGED, records_count, 0
    return RECORDS_VALID, -1, largest_timestamp
