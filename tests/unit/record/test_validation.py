"""Validation of produced batches: what a leader sets in place, and the error for each fault."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from isotherm.record.batch import (
    CompressionType,
    NewRecord,
    Record,
    TimestampType,
    build_batch,
    read_batch_header,
    read_records,
    recompress_batch,
    verify_batch_crc,
)
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.crc32c import crc32c
from isotherm.record.record_faults import RECORD_FAULTS_MAX
from isotherm.record.validation import (
    AppendOrigin,
    ValidatedRecords,
    validate_and_assign_offsets,
)
from isotherm.types import TopicPartition

PARTITION = TopicPartition("t", 0)
NOW = 1_700_000_000_000
HOUR = 3_600_000
RECORDS = [
    NewRecord(NOW, b"a", b"1", [("h", None)]),
    NewRecord(NOW + 7, b"b", None),
    NewRecord(NOW + 7, b"c", b"3"),
    NewRecord(NOW - 5, b"d", b"4"),
]
CODECS = pytest.mark.parametrize("codec", CompressionType, ids=lambda codec: codec.name)


def validate(
    batch: bytearray, config: TopicConfig | None = None, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ValidatedRecords:
    return validate_and_assign_offsets(
        batch,
        PARTITION,
        config=config or TopicConfig(),
        next_offset=1000,
        leader_epoch=7,
        now_ms=NOW,
        origin=origin,
    )


def stored(validated: ValidatedRecords) -> list[Record]:
    records = []
    position = 0
    for header in validated.batch_headers:
        assert read_batch_header(validated.records, position) == header
        verify_batch_crc(validated.records, position, header)
        records += read_records(validated.records, position, header)
        position += header.size_in_bytes
    assert position == len(validated.records)
    return records


def sealed(batch: bytearray) -> bytearray:
    """The batch with a right CRC."""
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def patched(layout: str, position: int, value: int) -> bytearray:
    batch = build_batch(RECORDS)
    struct.pack_into(layout, batch, position, value)
    return sealed(batch)


@CODECS
def test_batch_gets_offsets_and_epoch_in_place(codec: CompressionType) -> None:
    batch = build_batch(RECORDS, compression=codec)
    crc = read_batch_header(batch).crc
    validated = validate(batch)
    assert validated.records.obj is batch
    assert validated.last_offset == 1003
    assert validated.max_timestamp == NOW + 7
    [header] = validated.batch_headers
    assert (header.base_offset, header.partition_leader_epoch) == (1000, 7)
    assert header.crc == crc
    assert stored(validated) == [
        Record(1000, NOW, b"a", b"1", (("h", None),)),
        Record(1001, NOW + 7, b"b", None),
        Record(1002, NOW + 7, b"c", b"3"),
        Record(1003, NOW - 5, b"d", b"4"),
    ]


def test_maximum_timestamp_that_is_wrong_is_set_right() -> None:
    validated = validate(build_batch(RECORDS, max_timestamp=NOW + 999))
    assert validated.batch_headers[0].max_timestamp == NOW + 7
    stored(validated)


def test_batch_without_timestamps_has_none() -> None:
    validated = validate(build_batch([NewRecord(-1, b"k", b"v")]))
    assert validated.max_timestamp == -1


@CODECS
def test_append_time_is_set_on_the_whole_batch(codec: CompressionType) -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    # The timestamps are out of bounds. LogAppendTime replaces them, so they are not checked.
    batch = build_batch(
        [NewRecord(1, b"a", b"1"), NewRecord(NOW * 2, b"b", b"2")], compression=codec
    )
    validated = validate(batch, config)
    assert validated.records.obj is batch
    assert validated.max_timestamp == NOW
    assert validated.batch_headers[0].timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in stored(validated)] == [NOW, NOW]


@CODECS
@pytest.mark.parametrize("target", ["gzip", "snappy", "lz4", "zstd", "uncompressed", "producer"])
def test_batch_is_stored_under_the_topics_codec(codec: CompressionType, target: str) -> None:
    batch = build_batch(
        RECORDS, compression=codec, producer_id=5, producer_epoch=2, base_sequence=9
    )
    given = read_records(batch, 0, read_batch_header(batch))
    validated = validate(batch, TopicConfig(compression_type=target))
    [header] = validated.batch_headers
    expected = {"producer": codec.name, "uncompressed": "NONE"}.get(target, target.upper())
    assert header.compression_type.name == expected
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)
    assert stored(validated) == [record._replace(offset=record.offset + 1000) for record in given]


@pytest.mark.parametrize(("target", "level"), [("gzip", 9), ("lz4", 12), ("zstd", 19)])
def test_batch_is_stored_at_the_topics_level(target: str, level: int) -> None:
    text = b" ".join(b"%d" % (number * number) for number in range(9_000))
    batch = build_batch([NewRecord(NOW, b"k", text)])
    plain = validate(bytearray(batch), TopicConfig(compression_type=target))
    config = TopicConfig(compression_type=target, **{f"compression_{target}_level": level})
    assert len(validate(batch, config).records) < len(plain.records)


def test_producer_fields_are_kept() -> None:
    batch = build_batch(
        RECORDS, producer_id=5, producer_epoch=2, base_sequence=9, is_transactional=True
    )
    [header] = validate(batch).batch_headers
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_format_is_refused_by_its_own_error(magic: int) -> None:
    # A message of format 0 or 1: offset, size, CRC, magic, attributes, key, value.
    message = struct.pack(">qiIbbii", 0, 14, 0, magic, 0, -1, -1)
    with pytest.raises(UnsupportedForMessageFormatError, match=f"magic={magic}"):
        validate(bytearray(message))


def test_unknown_codec_is_refused_by_its_own_error() -> None:
    with pytest.raises(UnsupportedCompressionTypeError, match="codec=5"):
        validate(patched(">h", 21, 5))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda batch: b"", id="empty"),
        pytest.param(lambda batch: batch[:10], id="cut in the length"),
        pytest.param(lambda batch: batch[:40], id="cut in the header"),
        pytest.param(lambda batch: batch[:-1], id="cut in the records"),
        pytest.param(lambda batch: batch + b"\x00", id="byte behind"),
        pytest.param(lambda batch: batch[:-1] + b"\x55", id="flipped bit"),
        pytest.param(lambda batch: batch[:8] + bytes(4) + batch[12:], id="length 0"),
        pytest.param(lambda batch: batch[:8] + b"\xff" * 4 + batch[12:], id="length -1"),
        pytest.param(lambda batch: b"\x7f" * 200, id="garbage"),
        pytest.param(lambda batch: batch[:16] + b"\x03" + batch[17:], id="magic 3"),
    ],
)
def test_damaged_bytes_are_a_corrupt_message(spoil: Callable[[bytearray], bytes]) -> None:
    with pytest.raises(CorruptMessageError):
        validate(bytearray(spoil(build_batch(RECORDS))))


def test_compressed_garbage_is_a_corrupt_message() -> None:
    with pytest.raises(CorruptMessageError, match="ZSTD"):
        validate(patched(">h", 21, CompressionType.ZSTD))


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        pytest.param(patched(">q", 0, 1), "base_offset=1", id="base offset"),
        pytest.param(patched(">i", 57, 5), "records_count=5", id="count above offsets"),
        pytest.param(patched(">i", 23, 9), "last_offset_delta=9", id="offsets above count"),
        pytest.param(patched(">i", 57, 0), "records_count=0", id="no records"),
        pytest.param(patched(">h", 21, 0x40), "0x0040", id="delete horizon"),
        pytest.param(patched(">h", 21, 0x100), "0x0100", id="meaningless attribute"),
        pytest.param(patched(">h", 21, 0x10), "no producer id", id="transaction of nobody"),
        pytest.param(patched(">q", 43, 5), "no sequence", id="producer without sequence"),
        pytest.param(
            build_batch(RECORDS, producer_id=5, base_sequence=0), "epoch=-1", id="without epoch"
        ),
        pytest.param(build_batch(RECORDS, is_control=True), "control", id="control batch"),
        pytest.param(build_batch(RECORDS) + build_batch(RECORDS), "batches=2", id="two batches"),
    ],
)
def test_batch_that_a_client_may_not_write_is_an_invalid_record(
    batch: bytearray, reason: str
) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        validate(batch)


def with_body(body: str) -> bytearray:
    """A batch of one record with these bytes (hex) after its size."""
    record = bytes.fromhex(body)
    batch = build_batch([NewRecord(NOW, None, None)])[:61] + bytes([2 * len(record)]) + record
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return sealed(batch)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("0000000101", id="header count missing"),
        pytest.param("00000001010000", id="byte behind the headers"),
        pytest.param("00ffffffffffffffffffff7f00010100", id="timestamp varint too long"),
        pytest.param("000000080100", id="key longer than the record"),
        pytest.param("0000000108", id="value longer than the record"),
        pytest.param("000000010101", id="header count negative"),
        pytest.param("00000001017e", id="more headers than bytes"),
        pytest.param("00000001010201", id="header name null"),
        pytest.param("00000001010202610a", id="header value cut off"),
    ],
)
def test_damaged_record_is_an_invalid_record(body: str) -> None:
    with pytest.raises(InvalidRecordError, match="damaged record_index=0"):
        validate(with_body(body))


def test_smallest_record_is_valid() -> None:
    assert validate(with_body("000000010100")).last_offset == 1000


def test_count_above_the_records_is_an_invalid_record() -> None:
    batch = build_batch(RECORDS)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    with pytest.raises(InvalidRecordError, match="record_index=4"):
        validate(sealed(batch))


def test_count_below_the_records_is_an_invalid_record() -> None:
    batch = build_batch(RECORDS)
    struct.pack_into(">i", batch, 23, 1)
    struct.pack_into(">i", batch, 57, 2)
    with pytest.raises(InvalidRecordError, match="record_index=2"):
        validate(sealed(batch))


@CODECS
def test_offset_delta_that_is_not_the_index_is_an_invalid_record(codec: CompressionType) -> None:
    batch = build_batch([NewRecord(NOW, b"k", b"v")] * 2)
    # The second record: size, attributes, timestamp delta, then the offset delta 1, encoded as 2.
    second = 61 + (len(batch) - 61) // 2
    assert batch[second + 3] == 2
    batch[second + 3] = 0
    if codec is not CompressionType.NONE:
        batch = recompress_batch(batch, 0, read_batch_header(batch), codec)
    with pytest.raises(InvalidRecordError, match=r"offset delta .* record_index=1"):
        validate(sealed(batch))


def test_record_without_key_is_refused_on_a_compacted_topic_only() -> None:
    records = [NewRecord(NOW, b"", b"v"), NewRecord(NOW, None, b"v")]
    assert validate(build_batch(records)).last_offset == 1001
    compacted = TopicConfig(cleanup_policy=("compact",))
    with pytest.raises(InvalidRecordError, match="without key") as caught:
        validate(build_batch(records), compacted)
    assert [fault.batch_index for fault in caught.value.faults] == [1]
    validate(build_batch(records[:1]), compacted)


@CODECS
@pytest.mark.parametrize("count", [8_192, 8_193, 30_000])
def test_every_record_at_fault_is_named_up_to_a_bound(codec: CompressionType, count: int) -> None:
    without_key = {0, 1, 100, 8_191, 8_192, 8_193, 16_383, 16_384, *range(20_000, count)}
    records = [
        NewRecord(NOW, None if index in without_key else b"k", b"v") for index in range(count)
    ]
    batch = build_batch(records, compression=codec)
    compacted = TopicConfig(cleanup_policy=("compact",))
    with pytest.raises(InvalidRecordError) as caught:
        validate(batch, compacted)
    expected = [index for index in sorted(without_key) if index < count]
    assert [fault.batch_index for fault in caught.value.faults] == expected[:RECORD_FAULTS_MAX]


def test_damage_behind_a_record_at_fault_names_no_record() -> None:
    batch = build_batch([NewRecord(NOW, None, b"v") for _ in range(9_000)])
    batch[-1] = 99  # one header more than there is
    with pytest.raises(InvalidRecordError, match="record_index=8999") as caught:
        validate(sealed(batch), TopicConfig(cleanup_policy=("compact",)))
    assert caught.value.faults == ()


@pytest.mark.parametrize(
    ("timestamp_ms", "is_valid"),
    [
        (NOW - HOUR, True),
        (NOW - HOUR - 1, False),
        (NOW + 2 * HOUR, True),
        (NOW + 2 * HOUR + 1, False),
        (-1, True),
        (0, False),
    ],
)
def test_timestamp_must_lie_within_the_topics_bounds(timestamp_ms: int, is_valid: bool) -> None:
    config = TopicConfig(
        message_timestamp_before_max_ms=HOUR, message_timestamp_after_max_ms=2 * HOUR
    )
    batch = build_batch([NewRecord(NOW, b"k", b"v"), NewRecord(timestamp_ms, b"k", b"v")])
    if is_valid:
        validate(batch, config)
    else:
        with pytest.raises(InvalidTimestampError) as caught:
            validate(batch, config)
        (fault,) = caught.value.faults
        assert fault.batch_index == 1
        assert fault.message.startswith(f"Timestamp {timestamp_ms} of message with offset 1 is out")


def test_timestamp_bounds_by_default_allow_all_of_the_past_and_an_hour_of_the_future() -> None:
    validate(build_batch([NewRecord(0, b"k", b"v")]))
    with pytest.raises(InvalidTimestampError):
        validate(build_batch([NewRecord(NOW + HOUR + 1, b"k", b"v")]))


@pytest.mark.parametrize("topic_type", ["CreateTime", "LogAppendTime"])
def test_producer_may_not_set_the_append_time(topic_type: str) -> None:
    batch = build_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW)
    with pytest.raises(InvalidTimestampError) as caught:
        validate(batch, TopicConfig(message_timestamp_type=topic_type))
    assert [fault.batch_index for fault in caught.value.faults] == [0, 1, 2, 3]
    assert all("LogAppendTime" in fault.message for fault in caught.value.faults)


def test_batch_above_the_size_limit_is_refused() -> None:
    batch = build_batch(RECORDS)
    validate(bytearray(batch), TopicConfig(max_message_bytes=len(batch)))
    with pytest.raises(RecordTooLargeError, match=f"size={len(batch)}"):
        validate(batch, TopicConfig(max_message_bytes=len(batch) - 1))


def test_batch_above_the_size_limit_once_unpacked_is_refused() -> None:
    batch = build_batch([NewRecord(NOW, b"k", bytes(9_000))], compression=CompressionType.GZIP)
    config = TopicConfig(max_message_bytes=5_000, compression_type="uncompressed")
    with pytest.raises(RecordTooLargeError):
        validate(batch, config)


def test_refused_batch_is_not_touched() -> None:
    batch = build_batch([NewRecord(NOW, b"k", b"v"), NewRecord(NOW, None, b"v")])
    given = bytes(batch)
    with pytest.raises(InvalidRecordError):
        validate(batch, TopicConfig(cleanup_policy=("compact",)))
    assert batch == given


def test_broker_appends_a_marker() -> None:
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=11,
        timestamp_ms=NOW,
    )
    config = TopicConfig(cleanup_policy=("compact",), compression_type="gzip")
    validated = validate(marker, config, AppendOrigin.COORDINATOR)
    [header] = validated.batch_headers
    assert header.is_control
    assert header.compression_type is CompressionType.NONE
    assert validated.last_offset == 1000


def test_broker_appends_several_batches() -> None:
    run = build_batch(RECORDS) + build_batch([NewRecord(NOW + 8, b"z", b"z")], base_offset=55)
    validated = validate(run, origin=AppendOrigin.COORDINATOR)
    assert [header.base_offset for header in validated.batch_headers] == [1000, 1004]
    assert validated.max_timestamp == NOW + 8
    assert [record.offset for record in stored(validated)] == list(range(1000, 1005))
    recoded = validate(run, TopicConfig(compression_type="lz4"), AppendOrigin.COORDINATOR)
    assert stored(recoded) == stored(validated)


def test_import_of_batches_and_validation_does_not_load_numba() -> None:
    script = (
        "import sys, isotherm.record.batch, isotherm.record.validation, isotherm.record.columns;"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_few_records_are_validated_without_numba() -> None:
    script = """
import sys
from isotherm.config.topic import TopicConfig
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.validation import AppendOrigin, validate_and_assign_offsets
from isotherm.types import TopicPartition
validated = validate_and_assign_offsets(
    build_batch([NewRecord(1000, b"k", b"v")] * 3), TopicPartition("t", 0), config=TopicConfig(),
    next_offset=7, leader_epoch=0, now_ms=1000, origin=AppendOrigin.CLIENT_BEFORE_KERNELS,
)
print(validated.last_offset, validated.max_timestamp, "numba" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "9 1000 False\n"
