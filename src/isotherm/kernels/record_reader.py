"""Functions that read a record, inlined into the loops over records. Compiles nothing by itself.

Damage is detected without a branch after each field. A reader that would pass the end returns a
position beyond it, all later readers then do the same, and the end of the record, which is compared
once, cannot match.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

import numpy as np

from isotherm.kernels.batch_fields import NO_TIMESTAMP, TIMESTAMP_TYPE_FLAG
from isotherm.kernels.parts import inlined
from isotherm.kernels.raw_memory import COPY_ROOM, byte_at

# Bytes that must exist behind a plain record. `read_plain_record` reads fields before it knows that
# they belong to the record, up to 16 bytes behind its end, and `copy_with_room` more.
PLAIN_ROOM = COPY_ROOM
_SHORT_MAX = np.uint64(0x1FFFFF)

# Below every timestamp delta: the largest delta before the first record.
NO_DELTA = np.int64(np.iinfo(np.int64).min)


@inlined
def read_int(data, position, size):
    """Signed big-endian integer of `size` bytes, which the caller has checked to exist."""
    value = np.int64(np.int8(data[position]))
    for index in range(1, size):
        value = (value << 8) | np.int64(data[position + index])
    return value


@inlined
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


@inlined
def _read_groups(data, position, end, size_max):
    """Unsigned varint, and the next position. Nearly all varints of a record have one or two bytes.
    These are read without a loop."""
    if position < end:
        first = byte_at(data, position)
        if first < np.uint64(0x80):
            return first, position + 1
        if position + 1 < end:
            second = byte_at(data, position + 1)
            if second < np.uint64(0x80):
                return first & np.uint64(0x7F) | second << np.uint64(7), position + 2
    return _read_long_groups(data, position, end, size_max)


@inlined
def read_varint(data, position, end):
    """Zigzag integer of 32 bits, and the next position; end + 1 if it is damaged."""
    raw, position = _read_groups(data, position, end, 5)
    low = np.int64(raw & np.uint64(0xFFFFFFFF))
    return (low >> 1) ^ -(low & 1), position


@inlined
def read_varlong(data, position, end):
    """Zigzag integer of 64 bits, and the next position; end + 1 if it is damaged."""
    raw, position = _read_groups(data, position, end, 10)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position


@inlined
def _skip_headers(data, position, end):
    """Skip the headers of a record: next position (end + 1 if damaged), count, sizes."""
    count, position = read_varint(data, position, end)
    names_size = 0
    values_size = 0
    # A count that cannot fit is damage. Without this bound the loop could run very long.
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


@inlined
def read_record(source, position, payload_end):
    """The record at `position`, as positions in `source`; sizes are negative for null.

    The first two results are whether it is damaged, and the next position. The next position
    depends on the record's size only, and no branch depends on another field: so a processor
    starts on later records while it waits for the fields of this one.
    """
    size, start = read_varint(source, position, payload_end)
    # An impossible size is replaced by 0, too small for any record: its end cannot match.
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


@inlined
def _read_short_groups(data, position):
    """Unsigned varint of up to three bytes, and the next position; more than _SHORT_MAX for a
    longer one. Three bytes exist at the position."""
    first = byte_at(data, position)
    if first < np.uint64(0x80):
        return first, position + 1
    second = byte_at(data, position + 1)
    if second < np.uint64(0x80):
        return first & np.uint64(0x7F) | second << np.uint64(7), position + 2
    raw = first & np.uint64(0x7F) | (second & np.uint64(0x7F)) << np.uint64(7)
    return raw | byte_at(data, position + 2) << np.uint64(14), position + 3


@inlined
def _signed(raw):
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))


@inlined
def read_plain_record(source, position, end_max):
    """`read_record` for a plain record: without headers, and with varints of up to three bytes.
    Others, and damaged ones, have a negative end. `position` is before `end_max`, and PLAIN_ROOM
    bytes exist behind that.

    Returns end, timestamp delta, offset delta, key's start and size, value's start and size.
    """
    raw_size, start = _read_short_groups(source, position)
    end = start + _signed(raw_size)
    raw_timestamp, position = _read_short_groups(source, start + 1)
    raw_offset, position = _read_short_groups(source, position)
    raw_key, key_start = _read_short_groups(source, position)
    key_size = _signed(raw_key)
    key_end = key_start + max(key_size, 0)
    raws = raw_size | raw_timestamp | raw_offset | raw_key
    if raws > _SHORT_MAX or end > end_max or key_end >= end:
        return -1, 0, 0, 0, 0, 0, 0
    raw_value, value_start = _read_short_groups(source, key_end)
    value_size = _signed(raw_value)
    headers_start = value_start + max(value_size, 0)
    if raw_value > _SHORT_MAX or headers_start + 1 != end or byte_at(source, end - 1) != 0:
        return -1, 0, 0, 0, 0, 0, 0
    return (
        end,
        _signed(raw_timestamp),
        _signed(raw_offset),
        key_start,
        key_size,
        value_start,
        value_size,
    )


@inlined
def has_max_timestamp_of_records(row):
    """Whether the header's max timestamp must be the largest one of the records. Every leader and
    every cleaner sets it (Kafka: LogValidator, MemoryRecords.filterTo). With LogAppendTime it is
    the time of the append, and records keep their own."""
    return row.records_count > 0 and row.attributes & TIMESTAMP_TYPE_FLAG == 0


@inlined
def is_wrong_max_timestamp(row, largest_delta):
    """Whether the max timestamp of a batch contradicts its records, whose largest timestamp delta
    is given."""
    largest = max(NO_TIMESTAMP, row.base_timestamp + largest_delta)
    return has_max_timestamp_of_records(row) and largest != row.max_timestamp
