"""The fast reader of offset records against the decoders of Kafka's schemas."""

from __future__ import annotations

import random
import uuid
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.coordinators.groups.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetCommitValueV1,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.coordinators.groups.offset_reader import OffsetReader
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata, offset_of_value
from isotherm.broker.coordinators.groups.old_records import OffsetCommitValueV3
from isotherm.broker.coordinators.groups.stored_offset import (
    is_older,
    read_stored_offset,
    stored_offset,
    times_of,
)
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
    st.builds(
        OffsetCommitValueV1,
        offset=INT64,
        metadata=TEXTS,
        commit_timestamp=INT64,
        expire_timestamp=INT64,
    ),
)


class Read(NamedTuple):
    group_id: str
    partition: TopicPartition
    committed: OffsetAndMetadata | None


def by_schemas(key: bytes, value: bytes | None) -> Read | None:
    record = decode_record(key, value)
    if record is None or not isinstance(record.key, OffsetCommitKey):
        return None
    committed = None if record.value is None else offset_of_value(record.value)
    place = TopicPartition(record.key.topic, record.key.partition)
    return Read(record.key.group, place, committed)


def load(reader: OffsetReader, key: bytes, value: bytes | None) -> Read | None:
    """Read a record as a load does. Records of other types go to the schemas' decoder."""
    found = reader.read(key, value, 11)
    if found is None:
        return by_schemas(key, value)
    try:
        committed = None if found.stored is None else read_stored_offset(found.stored)
    except CorruptMetadataError as error:
        raise AssertionError("an offset that was loaded cannot be read") from error
    if committed is not None and found.stored is not None:
        times = committed.commit_timestamp_ms, committed.expire_timestamp_ms
        assert times_of(found.stored) == times
    return Read(found.group_id, found.partition, committed)


@pytest.mark.slow
@given(st.lists(st.tuples(KEYS, VALUES), max_size=5))
def test_whole_records_are_read_as_by_the_schemas(
    records: list[tuple[OffsetCommitKey, object]],
) -> None:
    reader = OffsetReader()
    for key, value in records:
        encoded = encode_key(key), encode_value(value)
        assert load(reader, *encoded) == by_schemas(*encoded)


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
        return read(*record)
    except CorruptMetadataError:
        return CorruptMetadataError


@pytest.mark.parametrize("lost", [b"", b"\0"])
def test_offset_without_metadata_is_refused_as_by_the_schemas(lost: bytes) -> None:
    """A compact string of size 0 is null, which Kafka's OffsetCommitValue does not allow. A value
    that lost the size has the first byte of the time in its place."""
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=0))
    value = encode_value(
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="", commit_timestamp=9)
    )
    assert value is not None
    assert value[14:16] == b"\1\0", "an empty text, then the time"
    damaged = value[:14] + lost + value[15:]
    with pytest.raises(CorruptMetadataError):
        OffsetReader().read(key, damaged, 0)
    with pytest.raises(CorruptMetadataError):
        decode_record(key, damaged)


@pytest.mark.parametrize(("expires_ms", "expected"), [(-1, None), (-2, -2), (0, 0)])
def test_offset_has_its_own_expiry_unless_that_is_the_default(
    expires_ms: int, expected: int | None
) -> None:
    """Kafka: OffsetAndMetadata.fromRecord, where -1 is the default."""
    value = OffsetCommitValueV1(
        offset=5, metadata="", commit_timestamp=9, expire_timestamp=expires_ms
    )
    encoded = encode_value(value)
    assert encoded is not None
    assert times_of(stored_offset(encoded, 0)) == (9, expected)


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


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=2))
def test_stored_offsets_are_as_old_as_their_records(record_offsets: list[int]) -> None:
    value = encode_value(
        OffsetCommitValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp=2)
    )
    assert value is not None
    first, second = (stored_offset(value, offset) for offset in record_offsets)
    assert is_older(first, second) == (record_offsets[0] < record_offsets[1])
