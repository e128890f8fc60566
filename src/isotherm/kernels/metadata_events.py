"""Compiled decoding of metadata records. Importing this module loads Numba and the kernel.

Only the plain form that Kafka and Isotherm write is decoded. Any other record is marked ODD and
decoded in Python, one by one: unknown tags, epochs out of order, lengths with too many bytes, and
damage of any kind. For the format of values see serde.py of isotherm.remote.metadata, for keys
keys.py, and for the rules of kernels isotherm.kernels. Nothing outside the given arrays is read,
whatever the bytes contain.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.event_table import (
    ADD,
    EPOCH_SIZE,
    EVENT,
    NOTHING,
    ODD,
    PARTITION_DELETE,
    PARTITION_TOMBSTONE,
    PUT,
    TOMBSTONE,
    UPDATE,
)
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined
from isotherm.kernels.record_reader import read_int
from isotherm.kernels.tables import BYTES, table_of

_FRAME_VERSION = 1
_VERSION_MAX = 1
_ID_SIZE = 16
_KEY_ID_SIZE = 22
_STATE_MAX = 3
_PARTITION_STATE_MAX = 2
_INT32_MAX = 2**31 - 1
_INT32_MIN = -(2**31)
_TENTH_OF_MAX = (2**63 - 1) // 10
# FNV-1a of 64 bits, the offset basis as a signed number.
_FNV_OFFSET = -3750763034362895579
_FNV_PRIME = 1099511628211

_INT32 = types.Array(types.int32, 1, "C", readonly=True)
_BOOLEANS = types.Array(types.boolean, 1, "C", readonly=True)
_COLUMN = types.Tuple((BYTES, _INT32, _BOOLEANS))
_EVENTS = table_of(EVENT)


@inlined
def _read_length(data, position, end):
    """An unsigned varint of up to 4 bytes, and the next position; end + 1 if there is none."""
    value = np.int64(0)
    for index in range(4):
        if position + index >= end:
            return np.int64(0), end + 1
        byte = np.int64(data[position + index])
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    return np.int64(0), end + 1


@inlined
def _read_place(data, position, end, row, is_vouched):
    """Read topic name, topic id and partition into `row`; the next position, end + 1 if odd."""
    size, position = _read_length(data, position, end)
    size -= 1
    if size < 0 or size + _ID_SIZE + 5 > end - position:
        return end + 1
    name_hash = np.int64(_FNV_OFFSET)
    for index in range(size):
        byte = np.int64(data[position + index])
        # Only the hash of the name is kept. Bytes beyond ASCII may be invalid UTF-8, which only
        # Python checks.
        if byte >= 0x80 and not is_vouched:
            return end + 1
        name_hash = (name_hash ^ byte) * np.int64(_FNV_PRIME)
    position += size
    row.name_hash = name_hash
    row.topic_high = read_int(data, position, 8)
    row.topic_low = read_int(data, position + 8, 8)
    row.partition = read_int(data, position + 16, 4)
    if data[position + 20] != 0:
        return end + 1
    return position + 21


@inlined
def _read_epochs(data, position, end, row):
    """Skip the epochs of a segment, which must ascend; the next position, end + 1 if odd."""
    count, position = _read_length(data, position, end)
    count -= 1
    if count <= 0 or count * EPOCH_SIZE > end - position:
        return end + 1
    row.epochs_start = position
    row.epochs_count = count
    last = np.int64(_INT32_MIN) - 1
    for _ in range(count):
        epoch = read_int(data, position, 4)
        if epoch <= last or data[position + 12] != 0:
            return end + 1
        last = epoch
        position += EPOCH_SIZE
    return position


@inlined
def _read_custom_metadata(data, position, end, row):
    size, position = _read_length(data, position, end)
    size -= 1
    if position > end or size > end - position:
        return end + 1
    row.custom_start = position
    row.custom_size = size
    return position + max(size, 0)


@inlined
def _read_tags(data, position, end, row, is_segment):
    """Read the tagged fields at the end of a value; whether they are in plain form."""
    if position >= end:
        return False
    count = np.int64(data[position])
    position += 1
    last = np.int64(-1)
    for _ in range(count):
        # Tags and sizes are read as single bytes: larger ones are varints, and odd in any case.
        if end - position < 3:
            return False
        tag = np.int64(data[position])
        size = np.int64(data[position + 1])
        position += 2
        if tag <= last or size > end - position:
            return False
        if is_segment and tag == 0 and size == 1 and data[position] <= 1:
            row.txn_index_empty = data[position]
        elif tag == (1 if is_segment else 0) and size == 4:
            row.leader = read_int(data, position, 4)
        elif is_segment or tag != 1 or size != 8:
            return False
        last = tag
        position += size
    return position == end


@inlined
def _read_segment(data, position, end, row):
    """Read the fields after the id of a segment, in api key 0; whether they are in plain form."""
    if end - position < 36:
        return False
    row.start = read_int(data, position, 8)
    row.end = read_int(data, position + 8, 8)
    row.broker = read_int(data, position + 16, 4)
    row.max_timestamp = read_int(data, position + 20, 8)
    row.event_timestamp = read_int(data, position + 28, 8)
    if row.start < 0 or row.end < row.start:
        return False
    position = _read_epochs(data, position + 36, end, row)
    if end - position < 4:
        return False
    row.size = read_int(data, position, 4)
    position = _read_custom_metadata(data, position + 4, end, row)
    if position >= end or data[position] > _STATE_MAX:
        return False
    row.state = data[position]
    return _read_tags(data, position + 1, end, row, True)


@inlined
def _read_update(data, position, end, row):
    """Read the fields after the id of a segment, in api key 1; whether they are in plain form."""
    if end - position < 12:
        return False
    row.broker = read_int(data, position, 4)
    row.event_timestamp = read_int(data, position + 4, 8)
    position = _read_custom_metadata(data, position + 12, end, row)
    if position >= end or data[position] > _STATE_MAX:
        return False
    row.state = data[position]
    return _read_tags(data, position + 1, end, row, False)


@inlined
def _read_partition_delete(data, position, end, row):
    if end - position < 13 or data[position + 12] > _PARTITION_STATE_MAX:
        return False
    row.broker = read_int(data, position, 4)
    row.event_timestamp = read_int(data, position + 4, 8)
    row.state = data[position + 12]
    return _read_tags(data, position + 13, end, row, False)


@inlined
def _read_value(data, position, end, row, is_vouched):
    """The kind of the event in a value, without its key."""
    if end - position < 3 or data[position] != _FRAME_VERSION or data[position + 2] > _VERSION_MAX:
        return ODD
    api_key = data[position + 1]
    position = _read_place(data, position + 3, end, row, is_vouched)
    if position > end:
        return ODD
    if api_key == PARTITION_DELETE:
        return PARTITION_DELETE if _read_partition_delete(data, position, end, row) else ODD
    if api_key > UPDATE or end - position < _ID_SIZE + 1 or data[position + _ID_SIZE] != 0:
        return ODD
    row.id_high = read_int(data, position, 8)
    row.id_low = read_int(data, position + 8, 8)
    position += _ID_SIZE + 1
    if api_key == ADD:
        return ADD if _read_segment(data, position, end, row) else ODD
    return UPDATE if _read_update(data, position, end, row) else ODD


@inlined
def _sextet(byte):
    """The six bits of a base64url character; 64 for any other byte."""
    if 65 <= byte <= 90:
        return byte - 65
    if 97 <= byte <= 122:
        return byte - 71
    if 48 <= byte <= 57:
        return byte + 4
    if byte == 45:
        return np.int64(62)
    return np.int64(63) if byte == 95 else np.int64(64)


@inlined
def _read_key_id(data, position):
    """Halves of the topic id in 22 base64url characters, and whether it is valid."""
    high = np.uint64(0)
    low = np.uint64(0)
    last = np.int64(0)
    for index in range(_KEY_ID_SIZE):
        last = _sextet(np.int64(data[position + index]))
        if last == 64:
            return np.int64(0), np.int64(0), False
        # 22 characters have 132 bits: the last one has 2 bits of the id and 4 bits of padding,
        # which must be 0. Otherwise several keys would name one topic.
        if index == _KEY_ID_SIZE - 1:
            high = (high << np.uint64(2)) | (low >> np.uint64(62))
            low = (low << np.uint64(2)) | np.uint64(last >> 4)
        else:
            high = (high << np.uint64(6)) | (low >> np.uint64(58))
            low = (low << np.uint64(6)) | np.uint64(last)
    return np.int64(high), np.int64(low), last & 15 == 0


@inlined
def _read_digits(data, position, end):
    """A decimal number without leading zeros, and the position after it; -1 if there is none."""
    value = np.int64(0)
    start = position
    while position < end and 48 <= data[position] <= 57:
        # One more digit could overflow.
        if value > _TENTH_OF_MAX:
            return np.int64(-1), position
        value = value * 10 + (np.int64(data[position]) - 48)
        position += 1
    if position == start or (data[start] == 48 and position - start > 1):
        return np.int64(-1), position
    return value, position


@inlined
def _read_key(data, position, end):
    """Parse a key: 1 for a segment's, 0 for a partition's, -1 for neither; then topic id halves,
    partition, end offset and leader epoch."""
    if end - position <= _KEY_ID_SIZE or data[position + _KEY_ID_SIZE] != 58:
        return -1, np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    high, low, is_id = _read_key_id(data, position)
    partition, position = _read_digits(data, position + _KEY_ID_SIZE + 1, end)
    if not is_id or partition < 0 or partition > _INT32_MAX:
        return -1, high, low, partition, np.int64(0), np.int64(0)
    if position == end:
        return 0, high, low, partition, np.int64(0), np.int64(0)
    if data[position] != 58:
        return -1, high, low, partition, np.int64(0), np.int64(0)
    end_offset, position = _read_digits(data, position + 1, end)
    if end_offset < 0 or position >= end or data[position] != 58:
        return -1, high, low, partition, end_offset, np.int64(0)
    sign = np.int64(1)
    position += 1
    if position < end and data[position] == 45:
        sign = np.int64(-1)
        position += 1
    leader, position = _read_digits(data, position, end)
    is_bad = leader < 0 or (leader == 0 and sign < 0) or leader > _INT32_MAX or position != end
    return -1 if is_bad else 1, high, low, partition, end_offset, sign * leader


@kernel(types.int64(_COLUMN, _COLUMN, types.boolean, _EVENTS))
def decode_events(keys, values, is_vouched, events):
    """Fill `events` from columns of (data, Arrow offsets, is null); returns how many are ODD.

    With `is_vouched`, Python has decoded every odd record before and found it valid. Topic names
    may then contain any bytes.
    """
    key_data, key_ends, key_nulls = keys
    value_data, value_ends, value_nulls = values
    odd_count = 0
    for index in range(len(events)):
        row = events[index]
        # The table is not initialized. These two fields are tagged, so a value may lack them.
        row.leader = -1
        row.txn_index_empty = 0
        kind = ODD
        is_segment_key = -1
        high = low = partition = end_offset = leader = np.int64(0)
        if not key_nulls[index]:
            is_segment_key, high, low, partition, end_offset, leader = _read_key(
                key_data, np.int64(key_ends[index]), np.int64(key_ends[index + 1])
            )
        if not value_nulls[index]:
            kind = _read_value(
                value_data,
                np.int64(value_ends[index]),
                np.int64(value_ends[index + 1]),
                row,
                is_vouched,
            )
            # Level 1: the key and the value must name the same segment or partition.
            if not key_nulls[index]:
                is_same = (
                    high == row.topic_high and low == row.topic_low and partition == row.partition
                )
                if not is_same or is_segment_key < 0:
                    kind = ODD
                elif kind == ADD and is_segment_key == 1:
                    kind = PUT if end_offset == row.end and leader == row.leader else ODD
                elif kind != PARTITION_DELETE or is_segment_key == 1:
                    kind = ODD
        # A key without a value is a tombstone of level 1. All of its fields are in the key.
        elif is_segment_key >= 0:
            kind = TOMBSTONE if is_segment_key == 1 else PARTITION_TOMBSTONE
            row.topic_high = high
            row.topic_low = low
            row.partition = partition
            row.end = end_offset
            row.leader = leader
        elif is_vouched and not key_nulls[index]:
            kind = NOTHING
        row.kind = kind
        odd_count += kind == ODD
    return odd_count
