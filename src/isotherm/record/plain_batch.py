"""The frequent case of a produced batch, checked and given its offset in one pass.

A batch is plain if a client sent it alone in its request's field, the log keeps it as it is, and
`record.validation` would find no fault in it. For a plain batch the result is that of
`validate_and_assign_offsets`, at a tenth of the calls. Any other batch is left untouched to that
function, which names the fault or changes the batch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch_header import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CODECS,
    HEADER_LAYOUT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from isotherm.record.compression import COMPRESSION_TYPE_MAX, DECOMPRESSED_SIZE_MAX, decompress
from isotherm.record.crc import crc32c
from isotherm.types import NO_PRODUCER_ID

if TYPE_CHECKING:
    from isotherm.record.record_faults import RecordRules
    from isotherm.types import LeaderEpoch, Offset

_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_ATTRIBUTES_OF_PLAIN_BATCHES = CODEC_MASK | TRANSACTIONAL_FLAG


def assign_to_plain_batch(
    records: bytearray | memoryview,
    rules: RecordRules,
    *,
    size_max: int,
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
) -> BatchHeader | None:
    """Set the leader's fields of a plain batch in place; its new header.

    None if the batch is not plain; then nothing has changed. `size_max` is max.message.bytes. Uses
    the compiled kernels. The topic must keep the codec and the timestamps of the producer.
    """
    size = len(records)
    if not HEADER_SIZE < size <= size_max:
        return None
    fields = HEADER_LAYOUT.unpack_from(records)
    base_offset, length, _, magic, crc, attributes, last_offset_delta = fields[:7]
    base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count = fields[7:]
    codec = attributes & CODEC_MASK
    if (
        base_offset != 0
        or length != size - LOG_OVERHEAD
        or magic != MAGIC
        or attributes & ~_ATTRIBUTES_OF_PLAIN_BATCHES
        or codec > COMPRESSION_TYPE_MAX
        or count <= 0
        or count != last_offset_delta + 1
    ):
        return None
    if producer_id > NO_PRODUCER_ID:
        if base_sequence < 0 or producer_epoch < 0:
            return None
    elif attributes & TRANSACTIONAL_FLAG:
        return None
    content = memoryview(records)
    if crc32c(content[ATTRIBUTES_POSITION:]) != crc:
        return None
    payload = content[HEADER_SIZE:]
    if codec:
        try:
            payload = memoryview(decompress(CODECS[codec], payload, DECOMPRESSED_SIZE_MAX))
        except CorruptRecordError:
            return None
    # Imported here, not above: Numba is loaded when the first batch is checked.
    from isotherm.kernels import produced as kernels

    verdict, _, largest_timestamp = kernels.check_records(
        np.frombuffer(payload.toreadonly(), dtype=np.uint8),
        count,
        base_timestamp,
        rules.key_required,
        rules.timestamp_min,
        rules.timestamp_max,
    )
    if verdict != kernels.RECORDS_VALID or largest_timestamp != max_timestamp:
        return None
    _OFFSET_LENGTH_EPOCH.pack_into(records, 0, next_offset, length, leader_epoch)
    return BatchHeader(next_offset, length, leader_epoch, *fields[3:])
