"""The frequent case of a produced batch, checked and given its offset in one pass.

A batch is plain if it is the only one of its partition in the request, the log stores it unchanged,
and `record.validation` would find no fault in it. For a plain batch the result is that of
`validate_and_assign_offsets`, with a tenth of the calls. That function gets any other batch
untouched, and names the fault or changes the batch.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch_header import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CODECS,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from isotherm.record.compression import COMPRESSION_TYPE_MAX, DECOMPRESSED_SIZE_MAX, decompress
from isotherm.record.crc32c import crc32c_of_array
from isotherm.types import NO_PRODUCER_ID, make_tuple

if TYPE_CHECKING:
    from types import ModuleType

    from isotherm.config.topic import TopicConfig
    from isotherm.types import LeaderEpoch, Offset, TimestampMs

_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
INT64_MAX = 2**63 - 1
_ATTRIBUTES_OF_PLAIN_BATCHES = CODEC_MASK | TRANSACTIONAL_FLAG


@functools.cache
def _kernels() -> ModuleType:
    """Kernels are loaded when the first batch is checked. An import statement in a function takes
    as long as its kernel for a small batch."""
    from isotherm.kernels import produced

    return produced


def assign_to_plain_batch(
    records: bytearray | memoryview,
    header: BatchHeader | None,
    config: TopicConfig,
    *,
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
    now_ms: TimestampMs,
) -> BatchHeader | None:
    """Set the leader's fields of a plain batch in place; returns its new header.

    `header` is the batch's own, as it came; None for records too short for one. None is returned if
    the batch is not plain; then nothing has changed. Uses the compiled kernels.
    """
    size = len(records)
    if (
        header is None
        or not HEADER_SIZE < size <= config.max_message_bytes
        or not config.keeps_batches
    ):
        return None
    # No errors here, and locals in place of the header's properties: this runs for each produced
    # batch, and a declined batch gets the checks of `record.validation`, which have the errors
    # (docs/decisions/0122).
    base_offset, length, _, magic, crc, attributes, last_offset_delta = header[:7]
    base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count = header[7:]
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
    # A transactional batch needs a producer.
    elif attributes & TRANSACTIONAL_FLAG:
        return None
    content = np.frombuffer(memoryview(records).toreadonly(), dtype=np.uint8)
    # Same as `crc32c`, for an array that is needed anyway. The CRC is checked before the payload is
    # decompressed: damaged bytes could decompress to anything.
    if crc32c_of_array(content[ATTRIBUTES_POSITION:]) != crc:
        return None
    payload = content[HEADER_SIZE:]
    if codec:
        try:
            packed = memoryview(records)[HEADER_SIZE:]
            unpacked = decompress(CODECS[codec], packed, DECOMPRESSED_SIZE_MAX)
        except CorruptRecordError:
            return None
        payload = np.frombuffer(memoryview(unpacked).toreadonly(), dtype=np.uint8)
    kernels = _kernels()
    verdict, _, largest_timestamp = kernels.check_records(
        payload,
        count,
        base_timestamp,
        config.compacts,
        # Needs no bound: a time that is not negative minus at most 2^63 - 1 fits 64 bits.
        now_ms - config.message_timestamp_before_max_ms,
        min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX),
    )
    if verdict != kernels.RECORDS_VALID or largest_timestamp != max_timestamp:
        return None
    # Last, because a declined batch must be unchanged. The CRC covers none of these fields.
    _OFFSET_LENGTH_EPOCH.pack_into(records, 0, next_offset, length, leader_epoch)
    return make_tuple(BatchHeader, (next_offset, length, leader_epoch, *header[3:]))
