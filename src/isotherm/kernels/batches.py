"""A compiled scan of batch headers."""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

from isotherm.kernels import types
from isotherm.kernels.batch_fields import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    OFFSET_MAX,
)
from isotherm.kernels.kernel import kernel
from isotherm.kernels.record_reader import read_int
from isotherm.kernels.tables import BATCHES, BYTES

_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD
_CODEC_MAX = 4


@kernel(types.UniTuple(types.int64, 3)(BYTES, BATCHES))
def scan_headers(data, batches):
    """Fill `batches` with the complete batches from the start of `data`.

    Returns their count, the position after the last one, and 1 if a header that no writer produces
    follows (`read_batch_header` names the reason), else 0.
    """
    position = 0
    count = 0
    while len(data) - position >= LOG_OVERHEAD:
        length = read_int(data, position + 8, 4)
        # The whole batch, not its header alone: a last batch that is cut off is no damage, whatever
        # the bytes of its header that have arrived contain.
        if length > len(data) - position - LOG_OVERHEAD:
            return count, position, 0
        # A length of at least 49 also proves that the rest of the header is in the buffer.
        if length < _LENGTH_MIN or data[position + 16] != MAGIC:
            return count, position, 1
        row = batches[count]
        row.position = position
        row.size = length + LOG_OVERHEAD
        row.base_offset = read_int(data, position, 8)
        row.crc = read_int(data, position + 17, 4) & 0xFFFFFFFF
        row.attributes = read_int(data, position + 21, 2)
        row.last_offset_delta = read_int(data, position + 23, 4)
        row.base_timestamp = read_int(data, position + 27, 8)
        row.max_timestamp = read_int(data, position + 35, 8)
        row.producer_id = read_int(data, position + 43, 8)
        row.records_count = read_int(data, position + 57, 4)
        row.payload_start = position + HEADER_SIZE
        row.payload_end = position + row.size
        row.is_unpacked = 0
        if (
            row.base_offset < 0
            or row.last_offset_delta < 0
            # Subtracted, not added: the sum could overflow 64 bits.
            or row.base_offset >= OFFSET_MAX - row.last_offset_delta
            or row.records_count < 0
            or row.attributes & CODEC_MASK > _CODEC_MAX
        ):
            return count, position, 1
        count += 1
        position += row.size
    return count, position, 0
