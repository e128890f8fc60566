"""Compiled loops that rewrite batches without some of their records.

See `isotherm.kernels` for the rules of kernels, and tables.py for the tables.
`locate_records` has found and checked the records: nothing is parsed here.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

from typing import Any

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.batch_fields import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
)
from isotherm.kernels.crc import CRC_START, HAS_INSTRUCTION, crc32c
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined
from isotherm.kernels.raw_memory import copy
from isotherm.kernels.record_writer import varint_size, write_int, write_varint, zigzag
from isotherm.kernels.tables import BATCHES, BYTES, BYTES_OUT, PLACES, table_of

# The outcome of a batch: `kind` of its row in `OUTCOME`.
DROPPED = 0
COPIED = 1
EMPTIED = 2
REBUILT = 3

OUTCOME = np.dtype(
    [
        ("kind", np.int64),
        # The places of all records of the batch: their number, and the index of the first one.
        ("places_count", np.int64),
        ("first_place", np.int64),
        # The number of the kept records, and their highest timestamp.
        ("kept_count", np.int64),
        ("max_timestamp", np.int64),
        # 1 if a kept record has no value.
        ("keeps_tombstone", np.int64),
        # New base timestamp of a rebuilt batch: its delete horizon, or that of its first record.
        ("base_timestamp", np.int64),
        # 1 if the base timestamp is a delete horizon.
        ("has_horizon", np.int64),
        # Position in `payloads` of the new records of a batch with a codec.
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

# The bytes by which a record can grow: its timestamp delta by 9, and its size by one.
RECORD_GROWTH_MAX = 10


_OUTCOMES = table_of(OUTCOME)
_WRITTEN = table_of(WRITTEN)


@kernel(types.void(BATCHES, PLACES, _OUTCOMES))
def summarize_kept(batches, places, outcomes):
    """Summarize the kept records of each batch. `places` are in the order of `batches`."""
    place_index = 0
    for row_index in range(len(batches)):
        outcome = outcomes[row_index]
        outcome.first_place = place_index
        kept_count = 0
        keeps_tombstone = 0
        max_timestamp = NO_TIMESTAMP
        while place_index < len(places) and places[place_index].batch == row_index:
            place = places[place_index]
            if place.is_kept:
                # A batch without a delete horizon gets the timestamp of its first record, like a
                # new one.
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


@inlined
def _write_records(source, row, places, outcome, out, position):
    """Write the kept records of a rebuilt batch, not compressed; returns their end in `out`."""
    base_offset = row.base_offset
    base_timestamp = outcome.base_timestamp
    first = outcome.first_place
    for place_index in range(first, first + outcome.places_count):
        place = places[place_index]
        if not place.is_kept:
            continue
        timestamp_delta = zigzag(place.timestamp - base_timestamp)
        offset_delta = zigzag(place.offset - base_offset)
        key_size = zigzag(np.int64(place.key_size))
        # The bytes of key, value and headers are copied at once. Only the fields before them
        # change, as the timestamp delta depends on the new base timestamp.
        rest_start = place.key_start
        rest_size = place.end - rest_start
        size = (
            1
            + varint_size(timestamp_delta)
            + varint_size(offset_delta)
            + varint_size(key_size)
            + rest_size
        )
        position = write_varint(out, position, zigzag(np.int64(size)))
        out[position] = 0
        position = write_varint(out, position + 1, timestamp_delta)
        position = write_varint(out, position, offset_delta)
        position = write_varint(out, position, key_size)
        copy(source, rest_start, rest_size, out, position)
        position += rest_size
    return position


@kernel(types.int64(BYTES, BYTES, BATCHES, PLACES, _OUTCOMES, BYTES_OUT))
def write_payloads(data, unpacked, batches, places, outcomes, payloads):
    """Write the kept records of every rebuilt batch with a codec, not compressed; returns the bytes
    written.

    `payloads` has room for the size of the old records, plus RECORD_GROWTH_MAX for each.
    """
    position = 0
    for row_index in range(len(batches)):
        outcome = outcomes[row_index]
        row = batches[row_index]
        if outcome.kind != REBUILT or row.attributes & CODEC_MASK == 0:
            continue
        source = unpacked if row.is_unpacked else data
        outcome.payload_start = position
        position = _write_records(source, row, places, outcome, payloads, position)
        outcome.payload_end = position
    return position


@kernel(
    types.UniTuple(types.int64, 2)(
        *(BYTES, BYTES, BATCHES, PLACES, _OUTCOMES),
        *(BYTES_OUT, _WRITTEN),
    )
)
def write_batches(data, payloads, batches, places, outcomes, out, written):
    """Write the remaining batches. Those rebuilt with a codec have their records in `payloads`. The
    CRC of new ones is not set.

    Returns the number of batches in `out`, and its size in bytes.
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
            base_timestamp = NO_TIMESTAMP
            payload_size = 0
            payload = position + HEADER_SIZE
            if outcome.kind == REBUILT:
                if attributes & CODEC_MASK:
                    payload_size = outcome.payload_end - outcome.payload_start
                    copy(payloads, outcome.payload_start, payload_size, out, payload)
                else:
                    payload_size = (
                        _write_records(data, row, places, outcome, out, payload) - payload
                    )
                base_timestamp = outcome.base_timestamp
                if outcome.has_horizon:
                    attributes |= DELETE_HORIZON_FLAG
                if attributes & TIMESTAMP_TYPE_FLAG == 0:
                    max_timestamp = outcome.max_timestamp
            else:
                # A batch without records has neither codec nor horizon. Its base timestamp is -1
                # and its max timestamp stays, as in Kafka's writeEmptyHeader.
                attributes &= ~(CODEC_MASK | DELETE_HORIZON_FLAG)
            size = HEADER_SIZE + payload_size
            # The other fields stay: an emptied batch keeps the producer's last sequence number.
            # Positions of the fields as in isotherm.record.batch_header.
            copy(data, row.position, HEADER_SIZE, out, position)
            write_int(out, position + 8, size - LOG_OVERHEAD, 4)
            write_int(out, position + 21, attributes, 2)
            write_int(out, position + 27, base_timestamp, 8)
            write_int(out, position + 35, max_timestamp, 8)
            # An emptied batch has a payload of 0 bytes; its old payload is not copied.
            write_int(out, position + 57, outcome.kept_count if payload_size else 0, 4)
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


def _set_crcs(out, written):
    """Set the CRCs of the new batches in `out`."""
    for index in range(len(written)):
        row = written[index]
        if row.is_new:
            crc = crc32c(out, row.position + CRC_START, row.position + row.size)
            write_int(out, row.position + CRC_START - 4, np.int64(crc), 4)


# None on a processor without the instruction.
set_crcs: Any = kernel(types.void(BYTES_OUT, _WRITTEN))(_set_crcs) if HAS_INSTRUCTION else None
