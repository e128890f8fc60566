"""Compiled decoding of records, and of their headers, into Arrow columns."""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.batch_fields import TIMESTAMP_TYPE_FLAG
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined
from isotherm.kernels.raw_memory import copy, copy_with_room, put_at
from isotherm.kernels.record_reader import (
    NO_DELTA,
    PLAIN_ROOM,
    is_wrong_max_timestamp,
    read_plain_record,
    read_record,
    read_varint,
)
from isotherm.kernels.tables import (
    BATCHES,
    BYTES,
    BYTES_OUT,
    INT32_OUT,
    INT64_OUT,
    ROWS_OUT,
)

_BINARY_OUT = types.Tuple((INT32_OUT, BYTES_OUT, BYTES_OUT))


@inlined
def _null_mask(size, row):
    """The mask to AND into the byte of an Arrow validity bitmap that has the bit of `row`."""
    return ~np.uint8((1 if size < 0 else 0) << (row & 7))


@inlined
def _read_plain_or_other(source, position, plain_end_max, payload_end):
    """Whether the record at `position` is plain, then the results of `read_record`."""
    if position < plain_end_max:
        (
            end,
            timestamp_delta,
            offset_delta,
            key_start,
            key_size,
            value_start,
            value_size,
        ) = read_plain_record(source, position, plain_end_max)
        if end >= 0:
            return (
                True,
                False,
                end,
                timestamp_delta,
                offset_delta,
                key_start,
                key_size,
                value_start,
                value_size,
                end - 1,
                0,
                0,
                0,
            )
    return False, *read_record(source, position, payload_end)


@inlined
def _append(source, start, size, has_room, column, row, column_size):
    """Append the bytes, null if `size` is negative, to a binary column that has `row` rows and
    `column_size` bytes; its new size. `has_room` is for `copy_with_room`."""
    ends, validity, data = column
    if size < 0:
        validity[row >> 3] &= _null_mask(size, row)
        size = 0
    if has_room:
        copy_with_room(source, start, size, data, column_size)
    else:
        copy(source, start, size, data, column_size)
    column_size += size
    put_at(ends, row + 1, column_size)
    return column_size


@inlined
def _fill_timestamp_types(batch, timestamps, timestamp_types, first, end):
    """Set the types of the rows [first, end), and with LogAppendTime their timestamps."""
    is_log_append_time = batch.attributes & TIMESTAMP_TYPE_FLAG != 0
    for row in range(first, end):
        put_at(timestamp_types, row, is_log_append_time)
    if is_log_append_time:
        for row in range(first, end):
            put_at(timestamps, row, batch.max_timestamp)


@kernel(
    types.UniTuple(types.int64, 8)(
        *(BYTES, BYTES, BATCHES, types.int64, types.int64),
        *(ROWS_OUT, _BINARY_OUT, _BINARY_OUT, INT64_OUT),
    )
)
def decode_records(
    data, unpacked, batches, offset_start, offset_end, rows, keys, values, headers_positions
):
    """Decode all records of `batches` with offsets in [offset_start, offset_end) into columns.

    `rows` is (offsets, timestamps, timestamp types). `keys` and `values` are (ends, validity,
    data): Arrow offsets with the first set to 0, an Arrow bitmap with all bits set, and the bytes.
    `headers_positions` gets the position of each record's headers, or -1 - position if they lie in
    `unpacked`. The arrays have the sizes that counts and payload sizes in `batches` require. Empty
    ends or positions leave the column out. The bytes of keys and values need COPY_ROOM more than
    the payloads, which are overwritten.

    Nearly all records are plain, and take a short path with few variables, which stay in the
    processor's registers. `read_record` decides about all others.

    Returns the row and the index of a damaged record (-1 and -1 for none; the index is -1 if the
    batch's max timestamp differs from its records'), the number of decoded records, the bytes of
    keys, the bytes of values, the number of headers, and the bytes of their names and values.
    """
    offsets, timestamps, timestamp_types = rows
    with_keys = len(keys[0]) > 0
    with_values = len(values[0]) > 0
    with_headers = len(headers_positions) > 0
    count = keys_size = values_size = headers_total = names_total = header_values_total = 0
    for row_index in range(len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        is_unpacked = row.is_unpacked
        position = row.payload_start
        payload_end = row.payload_end
        plain_end_max = min(payload_end, len(source) - PLAIN_ROOM)
        base_offset = row.base_offset
        last_offset_delta = row.last_offset_delta
        base_timestamp = row.base_timestamp
        largest_delta = NO_DELTA
        first_of_batch = count
        for index in range(row.records_count):
            (
                is_plain,
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
            ) = _read_plain_or_other(source, position, plain_end_max, payload_end)
            # The fields are used only after this single check; `read_record` explains why. It comes
            # before the test of the range, so that damage outside of the range is found too.
            if is_damaged or offset_delta < 0 or offset_delta > last_offset_delta:
                return row_index, index, 0, 0, 0, 0, 0, 0
            # Neighbours of a record with headers have some, too, and are not tried as plain ones.
            plain_end_max = np.int64(0) if headers_count else plain_end_max
            # Over all records, also those outside the range: the header's value covers them all.
            largest_delta = max(largest_delta, timestamp_delta)
            offset = base_offset + offset_delta
            if offset < offset_start or offset >= offset_end:
                continue
            put_at(offsets, count, offset)
            put_at(timestamps, count, base_timestamp + timestamp_delta)
            if with_keys:
                keys_size = _append(source, key_start, key_size, is_plain, keys, count, keys_size)
            if with_values:
                values_size = _append(
                    source, value_start, value_size, is_plain, values, count, values_size
                )
            if with_headers:
                headers_positions[count] = -1 - headers_start if is_unpacked else headers_start
                headers_total += headers_count
                names_total += names_size
                header_values_total += header_values_size
            count += 1
        # Bytes after the last record are damage, too: Kafka's reader refuses them.
        if position != payload_end:
            return row_index, row.records_count, 0, 0, 0, 0, 0, 0
        if is_wrong_max_timestamp(row, largest_delta):
            return row_index, -1, 0, 0, 0, 0, 0, 0
        _fill_timestamp_types(row, timestamps, timestamp_types, first_of_batch, count)
    return -1, -1, count, keys_size, values_size, headers_total, names_total, header_values_total


@kernel(types.void(BYTES, BYTES, INT64_OUT, INT32_OUT, _BINARY_OUT, _BINARY_OUT))
def decode_headers(data, unpacked, headers_positions, list_ends, names, values):
    """Decode the headers that `decode_records` has located, and thereby checked.

    `list_ends` are the Arrow offsets of the lists. For `names` and `values` see `decode_records`.
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
