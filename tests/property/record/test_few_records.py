"""The check in plain Python accepts only batches that the compiled check accepts, and leaves all
others to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.config.topic import TopicConfig
from isotherm.errors import RejectedError
from isotherm.record.batch import CompressionType, NewRecord, TimestampType, build_batch
from isotherm.record.crc32c import crc32c
from isotherm.record.few_records import FEW_RECORDS_MAX, vouch_for
from isotherm.record.record_faults import RecordRules
from isotherm.record.validation import (
    AppendOrigin,
    ValidatedRecords,
    count_without_kernels,
    validate_and_assign_offsets,
)
from isotherm.types import TopicPartition

DATA = st.data()
TP = TopicPartition("t", 0)
NOW_MS = 2**41
RULES = RecordRules(TP, True, 0, 2**42)
HEADER_SIZE = 61


@st.composite
def damaged_batches(draw, records) -> bytearray:
    """A batch with a few bytes of its records changed, and a right CRC."""
    batch = build_batch(
        draw(st.lists(records, min_size=1, max_size=5)),
        compression=draw(st.sampled_from([CompressionType.NONE] * 4 + list(CompressionType))),
        timestamp_type=draw(st.sampled_from([TimestampType.CREATE_TIME] * 4 + list(TimestampType))),
        max_timestamp=draw(st.integers(0, 2**42)),
    )
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(21, len(batch) - 1))
        batch[position] = draw(st.sampled_from([0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF]))
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def outcome(batch: bytearray, config: TopicConfig, origin: AppendOrigin) -> object:
    try:
        validated: ValidatedRecords = validate_and_assign_offsets(
            bytearray(batch),
            TP,
            config=config,
            next_offset=10,
            leader_epoch=3,
            now_ms=NOW_MS,
            origin=origin,
        )
    except RejectedError as error:
        return type(error), str(error)
    return bytes(validated.records), validated[1:]


@given(DATA)
@settings(max_examples=400)
def test_batches_end_alike_before_and_after_the_kernels_are_loaded(strategies, data) -> None:
    batch = data.draw(damaged_batches(strategies.records))
    config = TopicConfig(
        cleanup_policy=(data.draw(st.sampled_from(["delete", "compact"])),),
        message_timestamp_type=data.draw(st.sampled_from(["CreateTime", "LogAppendTime"])),
        message_timestamp_before_max_ms=data.draw(st.sampled_from([2**40, 2**63 - 1])),
    )
    before = outcome(batch, config, AppendOrigin.CLIENT_BEFORE_KERNELS)
    assert before == outcome(batch, config, AppendOrigin.CLIENT)
    counted = count_without_kernels(batch, TP, config=config, now_ms=NOW_MS, count_max=9)
    # The records were accepted, so only the rules for headers can refuse, which both ways share.
    if counted is not None and not isinstance(before[0], bytes):
        assert "record_index" not in before[1]


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
def test_batch_with_any_byte_changed_ends_alike(cleanup_policy: str) -> None:
    config = TopicConfig(cleanup_policy=(cleanup_policy,))
    sound = build_batch([NewRecord(NOW_MS + number, b"k", b"v") for number in range(3)])
    for position in range(21, len(sound)):
        for value in range(256):
            batch = bytearray(sound)
            batch[position] = value
            batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
            before = outcome(batch, config, AppendOrigin.CLIENT_BEFORE_KERNELS)
            assert before == outcome(batch, config, AppendOrigin.CLIENT), (position, value)


@given(DATA)
def test_sound_records_are_vouched_for(strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=5))
    batch = build_batch(records, compression=data.draw(st.sampled_from(CompressionType)))
    is_keyed = all(record.key is not None for record in records)
    vouched = vouch_for(batch, RULES)
    largest = max(record.timestamp_ms for record in records)
    assert vouched == ((len(records), largest) if is_keyed else None)


@pytest.mark.parametrize("count", [1, FEW_RECORDS_MAX, FEW_RECORDS_MAX + 1])
def test_many_records_are_not_looked_at(count: int) -> None:
    batch = build_batch([NewRecord(NOW_MS, b"k", b"v")] * count)
    assert (vouch_for(batch, RULES) is None) == (count > FEW_RECORDS_MAX)


def test_records_that_unfold_to_too_much_are_not_vouched_for() -> None:
    batch = build_batch([NewRecord(NOW_MS, b"k", bytes(2 << 20))], compression=CompressionType.ZSTD)
    assert vouch_for(batch, RULES) is None


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_what_is_no_batch_is_not_vouched_for(size: int) -> None:
    assert vouch_for(build_batch([NewRecord(NOW_MS, b"k", b"v")])[:size], RULES) is None
