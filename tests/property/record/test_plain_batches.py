"""The fast path for plain batches gives the result or the error of the general `validation`. It
leaves batches that are not plain to the general code."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.config.topic import TopicConfig
from isotherm.errors import RejectedError
from isotherm.record import validation
from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.record.batch_header import peek_header
from isotherm.record.crc32c import crc32c
from isotherm.record.plain_batch import assign_to_plain_batch
from isotherm.types import TopicPartition

DATA = st.data()
TP = TopicPartition("t", 0)
NOW_MS = 2**41
ANY_TIME = TopicConfig(message_timestamp_after_max_ms=2**63 - 1)
HEADER = struct.Struct(">qiibIhiqqqhii")
INTERESTING = [-(2**15), -2, -1, *range(9), 16, 17, 32, 48, 64, 128, 2**15 - 1]
# The header fields that a producer sets: all but the leader epoch and the CRC.
FIELDS = [0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12]
INTERESTING_BYTES = [-128, -1, 0, 1, 2, 3, 127]


@st.composite
def batches(draw, records) -> bytearray:
    """A producer's batch. A field of its header, bytes of its records, its CRC or its end may be
    damaged."""
    producer = draw(
        st.sampled_from([{}, {"producer_id": 7, "producer_epoch": 1, "base_sequence": 5}])
    )
    batch = build_batch(
        draw(st.lists(records, min_size=1, max_size=5)),
        compression=draw(st.sampled_from(CompressionType)),
        is_transactional=bool(producer) and draw(st.booleans()),
        **producer,
    )
    damage = draw(st.sampled_from(["none", *["header"] * 4, "records", "crc", "cut"]))
    if damage == "header":
        fields = list(HEADER.unpack_from(batch))
        index = draw(st.sampled_from(FIELDS))
        fields[index] = draw(st.sampled_from(INTERESTING_BYTES if index == 3 else INTERESTING))
        HEADER.pack_into(batch, 0, *fields)
    if damage == "records":
        batch[draw(st.integers(61, len(batch) - 1))] ^= draw(st.integers(1, 255))
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    if damage == "crc":
        batch[draw(st.integers(17, len(batch) - 1))] ^= draw(st.integers(1, 255))
    cut = draw(st.integers(1, 70)) if damage == "cut" else 0
    return batch[: len(batch) - cut]


def outcome(batch: bytearray, config: TopicConfig) -> object:
    try:
        validated = validation.validate_and_assign_offsets(
            bytearray(batch), TP, config=config, next_offset=10, leader_epoch=3, now_ms=NOW_MS
        )
    except RejectedError as error:
        return type(error), str(error)
    return bytes(validated.records), validated[1:]


@given(DATA)
@settings(max_examples=800)
def test_both_roads_end_alike(strategies, data) -> None:
    batch = data.draw(batches(strategies.records))
    config = TopicConfig(
        cleanup_policy=(data.draw(st.sampled_from(["delete", "delete", "compact"])),),
        compression_type=data.draw(st.sampled_from(["producer", "producer", "lz4"])),
        message_timestamp_type=data.draw(
            st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"])
        ),
        message_timestamp_before_max_ms=data.draw(st.sampled_from([2**40, 2**63 - 1, 2**63 - 1])),
        message_timestamp_after_max_ms=2**63 - 1,
        max_message_bytes=data.draw(st.sampled_from([1 << 20, 1 << 20, 100])),
    )
    with pytest.MonkeyPatch.context() as patch:
        both = outcome(batch, config)
        patch.setattr(validation, "assign_to_plain_batch", lambda *_, **__: None)
        assert both == outcome(batch, config)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize("producer_id", [-1, 7])
def test_both_roads_end_alike_whatever_a_field_of_the_header_has(
    monkeypatch: pytest.MonkeyPatch, producer_id: int, compression: CompressionType
) -> None:
    idempotent = {"producer_id": producer_id, "producer_epoch": 1, "base_sequence": 5}
    sound = build_batch([NewRecord(NOW_MS, b"k", b"v")] * 3, compression=compression, **idempotent)
    found = {}
    for is_plain in (True, False):
        if not is_plain:
            monkeypatch.setattr(validation, "assign_to_plain_batch", lambda *_, **__: None)
        for index in FIELDS:
            for value in INTERESTING_BYTES if index == 3 else INTERESTING:
                fields = list(HEADER.unpack_from(sound))
                fields[index] = value
                batch = bytearray(HEADER.pack(*fields)) + sound[61:]
                batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
                ended = outcome(batch, TopicConfig())
                assert found.setdefault((index, value), ended) == ended, (index, value)


@given(DATA)
def test_batches_of_producers_are_plain(strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=5))
    batch = build_batch(records, compression=data.draw(st.sampled_from(CompressionType)))
    header = assign(batch)
    assert header is not None
    assert (header.base_offset, header.partition_leader_epoch) == (10, 3)


def test_batch_that_is_not_plain_is_left_as_it_is() -> None:
    batch = build_batch([NewRecord(NOW_MS, b"k", b"v")], base_offset=1)
    before = bytes(batch)
    assert assign(batch) is None
    assert batch == before


def assign(batch: bytearray):
    return assign_to_plain_batch(
        batch, peek_header(batch), ANY_TIME, next_offset=10, leader_epoch=3, now_ms=NOW_MS
    )
