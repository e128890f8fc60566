"""Validates produced batches and sets the leader's fields before the append.

Checks in the order of Kafka's UnifiedLog.analyzeAndValidateRecords and LogValidator, magic 2 only:

    the batch      magic, codec, length, CRC, base offset 0, size, offset range = count > 0, no
                   control batch, producer id with epoch and sequence; exactly one batch
    each record    structure, offset deltas 0, 1, 2, ..., a key if the topic is compacted,
                   timestamp within message.timestamp.{before,after}.max.ms
    then set       offsets, leader epoch, maximum timestamp, LogAppendTime, the topic's codec

Stricter than Kafka where it would store unusable batches: attribute bits without a meaning for
producers, transactional batches without a producer id, LogAppendTime set by the producer, offset
deltas that are not consecutive, and bytes after the batch are always refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import (
    CorruptMessageError,
    CorruptRecordError,
    DecompressedSizeError,
    InvalidRecordError,
    RecordFault,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from isotherm.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    CompressionType,
    TimestampType,
    assign_offsets,
    iterate_batches,
    read_batch_header,
    read_magic,
    read_payload,
    recompress_batch,
    verify_batch_crc,
)
from isotherm.record.batch_header import PRODUCER_ATTRIBUTES_MASK, peek_header, read_codec
from isotherm.record.compression import COMPRESSION_TYPE_MAX, DECOMPRESSED_SIZE_MAX
from isotherm.record.decompression_memory import (
    DECOMPRESSION_MEMORY,
    DecompressionMemory,
    decompression_size,
)
from isotherm.record.few_records import vouch_for
from isotherm.record.plain_batch import INT64_MAX, assign_to_plain_batch
from isotherm.record.record_faults import RecordRules, refused_records
from isotherm.types import NO_PRODUCER_ID, NO_TIMESTAMP, make_tuple

if TYPE_CHECKING:
    from isotherm.config.topic import TopicConfig
    from isotherm.types import LeaderEpoch, Offset, Position, TimestampMs, TopicPartition

_INT64_MIN = -(2**63)
_STORED_CODECS = {
    "uncompressed": CompressionType.NONE,
    "none": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}
# Kafka reads its default levels of these two as "the library's default", not as a level.
_GZIP_LEVEL_DEFAULT = -1
_LZ4_LEVEL_DEFAULT = 9


class AppendOrigin(Enum):
    """The origin of an append: a Produce request of a client, or the broker itself.

    The broker may append several batches at once, control batches, and producer batches without
    a sequence. Its own records are not checked one by one, so a start needs no compiled
    kernels.
    """

    CLIENT = "client"
    # While the kernels are not loaded; `count_without_kernels` has accepted the batch.
    CLIENT_BEFORE_KERNELS = "client before kernels"
    COORDINATOR = "coordinator"

    @property
    def is_client(self) -> bool:
        return self is not AppendOrigin.COORDINATOR


class ValidatedRecords(NamedTuple):
    """Validated batches, ready to be appended.

    `records` is the given memory with the leader's fields set, or new memory if a codec changed.
    `batch_headers` are the headers in it, in order and complete, `producer_batches` the positions
    and headers of those with a producer id.
    """

    records: memoryview
    last_offset: Offset
    max_timestamp: TimestampMs
    batch_headers: tuple[BatchHeader, ...]
    producer_batches: Sequence[tuple[Position, BatchHeader]]


def validate_and_assign_offsets(
    records: bytearray | memoryview,
    topic_partition: TopicPartition,
    *,
    config: TopicConfig,
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
    now_ms: TimestampMs,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    header: BatchHeader | None = None,
    checked: CheckedBatch | None = None,
) -> ValidatedRecords:
    """Check the batches, unless `checked` is their result under `config`, and assign offsets from
    `next_offset` on, in place. `header` is that of a client's batch, if it has been read.

    `records` must be writable; it is modified only after all checks have passed. Uses the compiled
    kernels, which the first call of a process loads. Errors name `topic_partition`.
    Raises UnsupportedForMessageFormatError (magic 0 or 1), UnsupportedCompressionTypeError,
    CorruptMessageError (length, CRC, codec), RecordTooLargeError, InvalidTimestampError and
    InvalidRecordError (everything else): RejectedErrors that are sent to the producer.
    """
    if checked is not None and checked.config is config:
        largest = [checked.largest_timestamp]
        return _assign(checked.stored, largest, config, next_offset, leader_epoch, now_ms)
    if origin is AppendOrigin.CLIENT:
        plain = assign_to_plain_batch(
            records,
            header or peek_header(records),
            config,
            next_offset=next_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
        )
        if plain is not None:
            producer_batches = ((0, plain),) if plain.producer_id > NO_PRODUCER_ID else ()
            last_offset = next_offset + plain.last_offset_delta
            return make_tuple(
                ValidatedRecords,
                (
                    memoryview(records),
                    last_offset,
                    plain.max_timestamp,
                    (plain,),
                    producer_batches,
                ),
            )
    batches = _read_batches(records, origin)
    for position, batch in batches:
        _check_batch(records, position, batch, config, origin)
    if origin is AppendOrigin.COORDINATOR:
        largest = [batch.max_timestamp for _, batch in batches]
    else:
        rules = _record_rules(topic_partition, config, now_ms)
        vouched = None
        if origin is AppendOrigin.CLIENT_BEFORE_KERNELS:
            vouched = vouch_for(records, rules)
        largest = (
            [vouched.largest_timestamp]
            if vouched
            else [_check_records(records, *batch, rules) for batch in batches]
        )
    # The last step that may refuse the batch: a codec can enlarge it. Nothing is changed yet.
    stored = _with_stored_codec(records, batches, config)
    return _assign(stored, largest, config, next_offset, leader_epoch, now_ms)


class CheckedBatch(NamedTuple):
    """A batch of a client that has passed all checks but those of the log that it is appended to.

    `stored` has the topic's codec. The checks hold for `config` alone.
    """

    config: TopicConfig
    stored: bytearray | memoryview
    largest_timestamp: TimestampMs


def check_batch(
    records: bytearray | memoryview,
    topic_partition: TopicPartition,
    *,
    config: TopicConfig,
    now_ms: TimestampMs,
    decompressed_size_max: int,
    memory: DecompressionMemory = DECOMPRESSION_MEMORY,
) -> CheckedBatch:
    """Make the checks of `validate_and_assign_offsets` apart from the append, which then takes no
    time for each byte. Any thread but that of an event loop: it waits until the records may be
    decompressed.

    Raises its errors, and RecordTooLargeError if the records are larger than
    `decompressed_size_max` when decompressed.
    """
    ((position, header),) = _read_batches(records, AppendOrigin.CLIENT)
    _check_batch(records, position, header, config, AppendOrigin.CLIENT)
    rules = _record_rules(topic_partition, config, now_ms)
    # Another codec's output, and the batch around it.
    target = _STORED_CODECS.get(config.compression_type)
    copies = 0 if target is None or _keeps_codec(header, target) else 2
    payload = memoryview(records)[position + HEADER_SIZE : position + header.size_in_bytes]
    size = decompression_size(header, payload, decompressed_size_max, copies)
    with memory.hold(size):
        largest = _check_records(records, position, header, rules, decompressed_size_max)
        stored = _with_stored_codec(records, [(position, header)], config)
    return CheckedBatch(config, stored, largest)


def count_without_kernels(
    records: bytearray | memoryview,
    topic_partition: TopicPartition,
    *,
    config: TopicConfig,
    now_ms: TimestampMs,
    count_max: int,
) -> int | None:
    """The record count of a batch that can be validated without kernels, else None.

    None if it has more than `count_max` records, or one that may be invalid.
    """
    vouched = vouch_for(records, _record_rules(topic_partition, config, now_ms), count_max)
    return vouched and vouched.records_count


def _read_batches(
    records: bytearray | memoryview, origin: AppendOrigin
) -> list[tuple[Position, BatchHeader]]:
    try:
        _check_format(records)
        batches = list(iterate_batches(records))
    except CorruptRecordError as error:
        raise CorruptMessageError(*error.args) from error
    if not batches:
        raise CorruptMessageError(f"record batch is cut off size={len(records)}")
    if origin.is_client and len(batches) > 1:
        raise InvalidRecordError(
            f"a produce request holds one record batch per partition batches={len(batches)}"
        )
    position, header = batches[-1]
    if position + header.size_in_bytes != len(records):
        raise CorruptMessageError(
            f"bytes follow the last record batch position={position + header.size_in_bytes}"
            f" size={len(records)}"
        )
    return batches


def _check_format(records: bytearray | memoryview) -> None:
    """Check for the two kinds of unreadable batches that have their own error."""
    magic = read_magic(records)
    if magic < MAGIC:
        raise UnsupportedForMessageFormatError(f"record batch has an old format magic={magic}")
    if magic == MAGIC and len(records) >= HEADER_SIZE:
        codec = read_codec(records)
        if codec > COMPRESSION_TYPE_MAX:
            raise UnsupportedCompressionTypeError(
                f"record batch names no known codec codec={codec}"
            )


def _check_batch(
    records: bytearray | memoryview,
    position: Position,
    header: BatchHeader,
    config: TopicConfig,
    origin: AppendOrigin,
) -> None:
    # As in Kafka, before the CRC, which takes time for each byte.
    _check_size(header, config)
    try:
        verify_batch_crc(records, position, header)
    except CorruptRecordError as error:
        raise CorruptMessageError(*error.args) from error
    reason = _count_fault(header)
    if reason is None and origin.is_client:
        reason = _client_fault(header)
    if reason is not None:
        raise InvalidRecordError(f"{reason} producer_id={header.producer_id}")


def _check_size(header: BatchHeader, config: TopicConfig) -> None:
    if header.size_in_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"record batch is too large size={header.size_in_bytes}"
            f" max.message.bytes={config.max_message_bytes}"
        )


def _count_fault(header: BatchHeader) -> str | None:
    count = header.records_count
    if count == 0 or count != header.last_offset_delta + 1:
        return (
            f"record count disagrees with the offsets records_count={count}"
            f" last_offset_delta={header.last_offset_delta}"
        )
    return None


def _client_fault(header: BatchHeader) -> str | None:
    """Why a client may not append this batch; None if it may."""
    if header.base_offset != 0:
        return f"base offset of a produced batch is not 0 base_offset={header.base_offset}"
    if header.is_control:
        return "clients may not write control records"
    if header.attributes & ~PRODUCER_ATTRIBUTES_MASK:
        return f"attributes are not a producer's attributes={header.attributes:#06x}"
    if header.has_producer_id:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return (
                f"idempotent batch has no sequence or epoch base_sequence={header.base_sequence}"
                f" producer_epoch={header.producer_epoch}"
            )
    elif header.is_transactional:
        return "transactional batch has no producer id"
    return None


def _record_rules(
    topic_partition: TopicPartition, config: TopicConfig, now_ms: TimestampMs
) -> RecordRules:
    # As in LogValidator, timestamps are only checked if the topic keeps those of producers.
    stamps = config.stamps_records
    timestamp_min = _INT64_MIN if stamps else now_ms - config.message_timestamp_before_max_ms
    timestamp_max = INT64_MAX if stamps else now_ms + config.message_timestamp_after_max_ms
    return RecordRules(
        topic_partition,
        config.compacts,
        max(timestamp_min, _INT64_MIN),
        min(timestamp_max, INT64_MAX),
    )


def _check_records(
    records: bytearray | memoryview,
    position: Position,
    header: BatchHeader,
    rules: RecordRules,
    decompressed_size_max: int = DECOMPRESSED_SIZE_MAX,
) -> TimestampMs:
    """Check each record, and return the largest timestamp."""
    try:
        payload = read_payload(records, position, header, decompressed_size_max)
    except DecompressedSizeError as error:
        raise RecordTooLargeError(*error.args) from error
    except CorruptRecordError as error:
        raise CorruptMessageError(*error.args) from error
    # Imported here, not above: the kernel is loaded when the first batch is checked.
    from isotherm.kernels import produced as kernels

    verdict, index, timestamp_ms = kernels.check_records(
        np.frombuffer(payload.toreadonly(), dtype=np.uint8),
        header.records_count,
        header.base_timestamp,
        rules.key_required,
        rules.timestamp_min,
        rules.timestamp_max,
    )
    if verdict == kernels.RECORD_DAMAGED:
        raise InvalidRecordError(
            f"record is damaged record_index={index} records_count={header.records_count}"
        )
    if verdict == kernels.OFFSET_NOT_CONSECUTIVE:
        message = f"offset delta of a record is not its index record_index={index}"
        raise InvalidRecordError(message, [RecordFault(index, message)])
    # Only the leader may set LogAppendTime: with that type every record is refused, by number.
    if verdict != kernels.RECORDS_VALID or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise refused_records(payload, header, rules)
    return int(timestamp_ms)


def _with_stored_codec(
    records: bytearray | memoryview,
    batches: list[tuple[Position, BatchHeader]],
    config: TopicConfig,
) -> bytearray | memoryview:
    """The batches in the topic's codec. The same memory if they have it already."""
    target = _STORED_CODECS.get(config.compression_type)  # None: keep the producer's codec
    if target is None or all(_keeps_codec(header, target) for _, header in batches):
        return records
    level = _compression_level(target, config)
    stored = bytearray()
    for position, header in batches:
        if _keeps_codec(header, target):
            stored += records[position : position + header.size_in_bytes]
        else:
            # A codec can enlarge a batch beyond the limit that it passed before.
            batch = recompress_batch(records, position, header, target, compression_level=level)
            _check_size(read_batch_header(batch), config)
            stored += batch
    return stored


def _keeps_codec(header: BatchHeader, target: CompressionType) -> bool:
    # Kafka never compresses control batches: every reader must be able to read them.
    return header.is_control or header.compression_type is target


def _compression_level(target: CompressionType, config: TopicConfig) -> int | None:
    if target is CompressionType.GZIP and config.compression_gzip_level != _GZIP_LEVEL_DEFAULT:
        return config.compression_gzip_level
    if target is CompressionType.LZ4 and config.compression_lz4_level != _LZ4_LEVEL_DEFAULT:
        return config.compression_lz4_level
    if target is CompressionType.ZSTD:
        return config.compression_zstd_level
    return None


def _assign(
    stored: bytearray | memoryview,
    largest: list[TimestampMs],
    config: TopicConfig,
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
    now_ms: TimestampMs,
) -> ValidatedRecords:
    stamps = config.stamps_records
    timestamp_type = TimestampType.LOG_APPEND_TIME if stamps else TimestampType.CREATE_TIME
    headers: list[BatchHeader] = []
    producer_batches: list[tuple[Position, BatchHeader]] = []
    max_timestamp = NO_TIMESTAMP
    position = 0
    for timestamp_ms in largest:
        batch_timestamp = now_ms if stamps else timestamp_ms
        header = assign_offsets(
            stored,
            position,
            next_offset,
            leader_epoch,
            timestamp_type=timestamp_type,
            max_timestamp=batch_timestamp,
        )
        max_timestamp = max(max_timestamp, batch_timestamp)
        headers.append(header)
        if header.has_producer_id:
            producer_batches.append((position, header))
        position += header.size_in_bytes
        next_offset = header.next_offset
    return ValidatedRecords(
        memoryview(stored),
        headers[-1].last_offset,
        max_timestamp,
        tuple(headers),
        tuple(producer_batches),
    )
