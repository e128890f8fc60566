"""Compiled loops that write batches again with a part of their records.

See `isotherm.kernels` for how kernels are written here and why, tables.py for the tables.
These work on what `locate_records` found and checked: nothing is parsed here.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable

from isotherm.kernels.kernel import kernel
from isotherm.kernels.raw_memory import copy
from isotherm.kernels.record_reader import LOG_APPEND_TIME_FLAG
from isotherm.kernels.tables import BATCHES, BYTES, BYTES_OUT, PLACES, table_of

# What becomes of a batch; rows of `OUTCOME` say so for each of `BATCH`.
DROPPED = 0
COPIED = 1
EMPTIED = 2
REBUILT = 3

OUTCOME = np.dtype(
    [
        ("kind", np.int64),
        # Of the records that are kept, whose places begin at `first_place`.
        ("places_count", np.int64),
        ("first_place", np.int64),
        ("kept_count", np.int64),
        ("max_timestamp", np.int64),
        # 1 when a record without a value is kept.
        ("keeps_tombstone", np.int64),
        # New base timestamp of a batch that is rebuilt: its horizon, or its first record's.
        ("base_timestamp", np.int64),
        # 1 when the base timestamp is a delete horizon.
        ("has_horizon", np.int64),
        # Where the new records lie in `payloads`.
        ("payload_start", np.int64),
        ("payload_end", np.int64),
    ]
)

WRITTEN = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("max_timestamp", np.int64),
        # 1 when the CRC must be set.
        ("is_new", np.int64),
    ]
)

# The most that a record grows by: 9 bytes of timestamp delta, and one of its own size.
RECORD_GROWTH_MAX = 10

_HEADER_SIZE = 61
_LOG_OVERHEAD = 12
_CODEC_MASK = 7
_DELETE_HORIZON_FLAG = 64
_NO_TIMESTAMP = -1

_OUTCOMES = table_of(OUTCOME)
_WRITTEN = table_of(WRITTEN)


@register_jitable(forceinline=True)
def _zigzag(value):
    return np.uint64((value << 1) ^ (value >> 63))


@register_jitable(forceinline=True)
def _varint_size(raw):
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@register_jitable(forceinline=True)
def _write_varint(out, position, raw):
    while raw >= np.uint64(0x80):
        out[position] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
        raw >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(raw)
    return position + 1


@register_jitable(forceinline=True)
def _write_int(out, position, value, size):
    for index in range(size):
        out[position + index] = np.uint8((value >> (8 * (size - 1 - index))) & 0xFF)


@kernel(types.void(BATCHES, PLACES, _OUTCOMES))
def summarize_kept(batches, places, outcomes):
    """Count the records of each batch that are kept; `places` are in the order of `batches`."""
    place_index = 0
    for row_index in range(len(batches)):
        outcome = outcomes[row_index]
        outcome.first_place = place_index
        kept_count = 0
        keeps_tombstone = 0
        max_timestamp = np.int64(_NO_TIMESTAMP)
        while place_index < len(places) and places[place_index].batch == row_index:
            place = places[place_index]
            if place.is_kept:
                if kept_count == 0:
                    outcome.base_timestamp = place.timestamp
                kept_count += 1
                max_timestamp = max(max_timestamp, place.timestamp)
                if place.value_size < 0:
                    keeps_tombstone = 1
            place_index += 1
        outcome.places_count = place_index - outcome.first_place
        outcome.kept_count = kept_count
        outcome.keeps_tombstone = keeps_tombstone
        outcome.max_timestamp = max_timestamp


@kernel(types.int64(BYTES, BYTES, BATCHES, PLACES, _OUTCOMES, BYTES_OUT))
def write_payloads(data, unpacked, batches, places, outcomes, payloads):
    """Write the kept records of every batch that is rebuilt, uncompressed; the bytes written.

    `payloads` has room for what the records had, and RECORD_GROWTH_MAX for each.
    """
    position = 0
    for row_index in range(len(batches)):
        outcome = outcomes[row_index]
        if outcome.kind != REBUILT:
            continue
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        base_offset = row.base_offset
        base_timestamp = outcome.base_timestamp
        outcome.payload_start = position
        first = outcome.first_place
        for place_index in range(first, first + outcome.places_count):
            place = places[place_index]
            if not place.is_kept:
                continue
            timestamp_delta = _zigzag(place.timestamp - base_timestamp)
            offset_delta = _zigzag(place.offset - base_offset)
            key_size = _zigzag(np.int64(place.key_size))
            rest_start = place.key_start
            rest_size = place.end - rest_start
            size = (
                1
                + _varint_size(timestamp_delta)
                + _varint_size(offset_delta)
                + _varint_size(key_size)
                + rest_size
            )
            position = _write_varint(payloads, position, _zigzag(np.int64(size)))
            payloads[position] = 0
            position = _write_varint(payloads, position + 1, timestamp_delta)
            position = _write_varint(payloads, position, offset_delta)
            position = _write_varint(payloads, position, key_size)
            copy(source, rest_start, rest_size, payloads, position)
            position += rest_size
        outcome.payload_end = position
    return position


@kernel(types.UniTuple(types.int64, 2)(BYTES, BYTES, BATCHES, _OUTCOMES, BYTES_OUT, _WRITTEN))
def write_batches(data, payloads, batches, outcomes, out, written):
    """Write what becomes of each batch; the CRC of new ones is left as it was.

    Returns how many batches there are in `out`, and bytes.
    """
    count = 0
    position = 0
    for row_index in range(len(batches)):
        outcome = outcomes[row_index]
        if outcome.kind == DROPPED:
            continue
        row = batches[row_index]
        max_timestamp = row.max_timestamp
        size = row.size
        if outcome.kind == COPIED:
            copy(data, row.position, size, out, position)
        else:
            attributes = row.attributes
            base_timestamp = np.int64(_NO_TIMESTAMP)
            payload_size = 0
            if outcome.kind == REBUILT:
                payload_size = outcome.payload_end - outcome.payload_start
                base_timestamp = outcome.base_timestamp
                if outcome.has_horizon:
                    attributes |= _DELETE_HORIZON_FLAG
                if attributes & LOG_APPEND_TIME_FLAG == 0:
                    max_timestamp = outcome.max_timestamp
            else:
                attributes &= ~(_CODEC_MASK | _DELETE_HORIZON_FLAG)
            size = _HEADER_SIZE + payload_size
            copy(data, row.position, _HEADER_SIZE, out, position)
            _write_int(out, position + 8, size - _LOG_OVERHEAD, 4)
            _write_int(out, position + 21, attributes, 2)
            _write_int(out, position + 27, base_timestamp, 8)
            _write_int(out, position + 35, max_timestamp, 8)
            _write_int(out, position + 57, outcome.kept_count if payload_size else 0, 4)
            copy(payloads, outcome.payload_start, payload_size, out, position + _HEADER_SIZE)
        done = written[count]
        done.position = position
        done.size = size
        done.base_offset = row.base_offset
        done.last_offset = row.base_offset + row.last_offset_delta
        done.max_timestamp = max_timestamp
        done.is_new = outcome.kind != COPIED
        count += 1
        position += size
    return count, position
