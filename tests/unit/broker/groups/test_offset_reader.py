"""Offset records as a load takes them apart, beside the schemas of Kafka."""

from __future__ import annotations

import random
import uuid
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.groups.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetCommitValueV1,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.groups.offset_reader import CommittedOffset, OffsetReader
from isotherm.broker.groups.offsets import offset_of_value
from isotherm.broker.groups.old_records import OffsetCommitValueV3
from isotherm.errors import CorruptMetadataError
from isotherm.types import TopicPartition

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.one_of(st.text(max_size=8), st.text(min_size=120, max_size=140))
KEYS = st.builds(OffsetCommitKey, group=TEXTS, topic=TEXTS, partition=INT32)
VALUES = st.one_of(
    st.none(),
    st.builds(
        OffsetCommitValue,
        offset=INT64,
        leader_epoch=INT32,
        metadata=TEXTS,
        commit_timestamp=INT64,
        topic_id=st.one_of(st.none(), st.just(uuid.UUID(int=0)), st.uuids()),
    ),
    st.builds(
        OffsetCommitValueV3,
        offset=INT64,
        leader_epoch=INT32,
        metadata=TEXTS,
        commit_timestamp=INT64,
    ),
    st.builds(OffsetCommitValueV1, offset=INT64, metadata=TEXTS, commit_timestamp=INT64),
)


def by_schemas(key: bytes, value: bytes | None, record_offset: int) -> CommittedOffset | None:
    record = decode_record(key, value)
    if record is None or not isinstance(record.key, OffsetCommitKey):
        return None
    committed = None if record.value is None else offset_of_value(record.value, record_offset)
    place = TopicPartition(record.key.topic, record.key.partition)
    return CommittedOffset(record.key.group, place, committed)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=5))
def test_whole_records_are_read_as_by_the_schemas(
    records: list[tuple[OffsetCommitKey, object]],
) -> None:
    reader = OffsetReader()
    for record_offset, (key, value) in enumerate(records):
        encoded = encode_key(key), encode_value(value)
        assert reader.read(*encoded, record_offset) == by_schemas(*encoded, record_offset)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_records_are_refused_as_by_the_schemas(seed: int) -> None:
    rng = random.Random(seed)
    key = encode_key(OffsetCommitKey(group="group", topic="topic", partition=3))
    for topic_id in (None, uuid.UUID(int=7)):
        value = encode_value(
            OffsetCommitValue(
                offset=5, leader_epoch=2, metadata="note", commit_timestamp=9, topic_id=topic_id
            )
        )
        assert value is not None
        reader = OffsetReader()
        reader.read(key, value, 0)
        for _ in range(2000):
            damaged = [damage(rng, key), value] if rng.random() < 0.5 else [key, damage(rng, value)]
            assert outcome(partial(load, reader), *damaged) == outcome(by_schemas, *damaged), (
                damaged
            )


def load(
    reader: OffsetReader, key: bytes, value: bytes | None, record_offset: int
) -> CommittedOffset | None:
    """What is of no offset's type is left to the schemas."""
    found = reader.read(key, value, record_offset)
    return found if found is not None else by_schemas(key, value, record_offset)


def damage(rng: random.Random, whole: bytes) -> bytes:
    out = bytearray(whole)
    match rng.randrange(3):
        case 0:
            del out[rng.randrange(len(out)) :]
        case 1:
            out += rng.randbytes(rng.randrange(1, 20))
        case _:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def outcome(read: object, *record: bytes) -> object:
    assert callable(read)
    try:
        return read(*record, 11)
    except CorruptMetadataError:
        return CorruptMetadataError


def test_offsets_of_a_partition_share_its_name() -> None:
    reader = OffsetReader()
    first, second = (
        reader.read(encode_key(OffsetCommitKey(group=group, topic="t", partition=1)), None, 0)
        for group in ("a", "b")
    )
    assert first is not None
    assert second is not None
    assert first.partition is second.partition


def test_a_group_is_left_to_its_own_schema() -> None:
    assert OffsetReader().read(encode_key(GroupMetadataKey(group="g")), None, 0) is None
