"""The bytes of events. The oracle is Kafka: its own RemoteLogMetadataSerde printed the vectors."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.wire.serde import (
    KeyedEvent,
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadataSnapshot,
    decode_event,
    decode_partition,
    encode_event,
    encode_event_without_key,
    encode_keyed_event,
)
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import NO_LEADER_EPOCH, TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210"), "foo", 3)
SEGMENT_ID = RemoteLogSegmentId(PARTITION, uuid.UUID("11111111-2222-2222-3333-333344444444"))
STARTED = RemoteLogSegmentMetadata(
    segment_id=SEGMENT_ID,
    start_offset=100,
    end_offset_inclusive=199,
    max_timestamp_ms=1700000000123,
    broker_id=1,
    event_timestamp_ms=1700000001000,
    segment_size_in_bytes=4096,
    segment_leader_epochs={0: 100, 2: 150},
)
UPDATE = RemoteLogSegmentMetadataUpdate(
    segment_id=SEGMENT_ID,
    event_timestamp_ms=1700000002000,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    broker_id=1,
)
DELETE = RemotePartitionDeleteMetadata(
    topic_id_partition=PARTITION,
    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
    event_timestamp_ms=1700000004000,
    broker_id=1,
)
SNAPSHOT = RemoteLogSegmentMetadataSnapshot(
    id=SEGMENT_ID.id,
    start_offset=100,
    end_offset_inclusive=199,
    max_timestamp_ms=1700000000123,
    broker_id=1,
    event_timestamp_ms=1700000001000,
    segment_size_in_bytes=4096,
    segment_leader_epochs={0: 100, 2: 150},
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    txn_index_empty=True,
)

STARTED_HEX = (
    "01000004666f6f0123456789abcdeffedcba9876543210000000030011111111222222223333333344444444"
    "00000000000000006400000000000000c7000000010000018bcfe5687b0000018bcfe56be80300000000000000"
    "0000000064000000000200000000000000960000001000000000"
)
UPDATE_HEX = (
    "01010004666f6f0123456789abcdeffedcba9876543210000000030011111111222222223333333344444444"
    "00000000010000018bcfe56fd0000100"
)
DELETE_HEX = "01020004666f6f0123456789abcdeffedcba98765432100000000300000000010000018bcfe577a00000"
SNAPSHOT_HEX = (
    "01030011111111222222223333333344444444000000000000006400000000000000c7000000010000018bcfe5"
    "687b0000018bcfe56be803000000000000000000000064000000000200000000000000960000001000000101000101"
)

GOLDEN: list[tuple[RemoteLogMetadataEvent, str]] = [
    (STARTED, STARTED_HEX),
    (replace(STARTED, txn_index_empty=True), STARTED_HEX[:-2] + "01000101"),
    (UPDATE, UPDATE_HEX),
    (replace(UPDATE, custom_metadata=bytes(range(4))), UPDATE_HEX[:-6] + "05000102030100"),
    (DELETE, DELETE_HEX),
    (SNAPSHOT, SNAPSHOT_HEX),
]


@pytest.mark.parametrize(("event", "golden"), GOLDEN)
def test_encode_event_gives_the_bytes_kafka_writes(
    event: RemoteLogMetadataEvent, golden: str
) -> None:
    assert encode_event(event).hex() == golden


@pytest.mark.parametrize(("event", "golden"), GOLDEN)
def test_decode_event_reads_the_bytes_kafka_writes(
    event: RemoteLogMetadataEvent, golden: str
) -> None:
    assert decode_event(bytes.fromhex(golden)) == event


# Version 1, derived by hand from the format page: the frame's last byte and the tags at the end
# differ.
KEYED: list[tuple[KeyedEvent, str]] = [
    (
        replace(STARTED, broker_leader_epoch=5),
        "010001" + STARTED_HEX[6:-2] + "01" + "0104" + "00000005",
    ),
    (
        replace(STARTED, broker_leader_epoch=-1, txn_index_empty=True),
        "010001" + STARTED_HEX[6:-2] + "02" + "000101" + "0104" + "ffffffff",
    ),
    (
        replace(UPDATE, broker_leader_epoch=5, end_offset_inclusive=199),
        "010101" + UPDATE_HEX[6:-2] + "02" + "0004" + "00000005" + "0108" + "00000000000000c7",
    ),
    (
        replace(DELETE, broker_leader_epoch=6),
        "010201" + DELETE_HEX[6:-2] + "01" + "0004" + "00000006",
    ),
]


@pytest.mark.parametrize(("event", "vector"), KEYED)
def test_keyed_event_has_the_bytes_of_the_format_page(event: KeyedEvent, vector: str) -> None:
    assert encode_keyed_event(event).hex() == vector
    assert decode_event(bytes.fromhex(vector)) == event


def test_reader_of_version_0_ignores_the_epoch_of_version_1_as_a_tag() -> None:
    """Version 1 adds only tagged fields, so no field before them moves."""
    keyed = bytes.fromhex(KEYED[0][1])
    as_version_0 = keyed[:2] + b"\x00" + keyed[3:]
    assert decode_event(as_version_0) == KEYED[0][0]


@pytest.mark.parametrize("event", [event for event, _ in (*GOLDEN, *KEYED)])
def test_event_without_a_key_has_the_form_of_level_1_if_it_has_a_leader_epoch(
    event: RemoteLogMetadataEvent,
) -> None:
    has_epoch = getattr(event, "broker_leader_epoch", NO_LEADER_EPOCH) != NO_LEADER_EPOCH
    assert encode_event_without_key(event)[2] == has_epoch
    assert decode_event(encode_event_without_key(event)) == event


@pytest.mark.parametrize(
    "vector", [vector for event, vector in (*GOLDEN, *KEYED) if event is not SNAPSHOT]
)
def test_partition_is_read_without_the_rest(vector: str) -> None:
    assert decode_partition(bytes.fromhex(vector)) == PARTITION


@pytest.mark.parametrize(
    ("size", "length"),
    [(126, "7f"), (127, "8001"), (128, "8101"), (16382, "ff7f"), (16383, "808001")],
)
def test_length_takes_as_many_bytes_as_kafkas_varint(size: int, length: str) -> None:
    """The length is that of the bytes plus 1, seven bits per byte, the lowest first."""
    event = replace(UPDATE, custom_metadata=bytes(size))
    golden = UPDATE_HEX[:-6] + length + "00" * size + "0100"
    assert encode_event(event).hex() == golden
    assert decode_event(bytes.fromhex(golden)) == event


@pytest.mark.parametrize(("flag", "is_empty"), [("00", False), ("01", True), ("02", True)])
def test_flag_of_the_empty_transaction_index_is_a_java_boolean(
    *, flag: str, is_empty: bool
) -> None:
    tagged = bytes.fromhex(STARTED_HEX[:-2] + "010001" + flag)
    assert decode_event(tagged) == replace(STARTED, txn_index_empty=is_empty)


@pytest.mark.parametrize(
    ("golden", "structure", "event"),
    [
        (UPDATE_HEX, "00000003001111", UPDATE),  # the topic-id partition
        (UPDATE_HEX, "44444444000000", UPDATE),  # the segment id
        (STARTED_HEX, "000000640000000002", STARTED),  # the first leader epoch
        (DELETE_HEX, "00000003000000", DELETE),
    ],
)
def test_unknown_tags_of_inner_structures_are_skipped(
    golden: str, structure: str, event: RemoteLogMetadataEvent
) -> None:
    assert golden.count(structure) == 1
    tagged = structure[:8] + "0209000a02aabb" + structure[10:]
    assert decode_event(bytes.fromhex(golden.replace(structure, tagged))) == event


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        ("010101" + UPDATE_HEX[6:-2] + "01" + "0008" + "0000000000000005", "tag 0"),
        ("010101" + UPDATE_HEX[6:-2] + "01" + "0104" + "000000c7", "tag 1"),
        ("010201" + DELETE_HEX[6:-2] + "01" + "0003" + "000005", "tag 0"),
        ("010201" + DELETE_HEX[6:-2] + "01" + "0104" + "000000c7", "tag 1"),
    ],
)
def test_tagged_number_of_the_wrong_size_is_refused(value: str, tag: str) -> None:
    with pytest.raises(CorruptMetadataError, match=tag):
        decode_event(bytes.fromhex(value))


@pytest.mark.parametrize("tag", ["0103" + "000005", "0105" + "0000000005"])
def test_epoch_of_the_wrong_size_is_refused(tag: str) -> None:
    with pytest.raises(CorruptMetadataError, match="tag 1"):
        decode_event(bytes.fromhex("010001" + STARTED_HEX[6:-2] + "01" + tag))


def test_empty_custom_metadata_is_not_absent_custom_metadata() -> None:
    empty = replace(UPDATE, custom_metadata=b"")
    assert encode_event(empty) != encode_event(UPDATE)
    assert decode_event(encode_event(empty)) == empty


def test_unknown_tags_are_skipped() -> None:
    tagged = bytes.fromhex(UPDATE_HEX)[:-1] + bytes.fromhex("02 07 02 aabb 09 00")
    assert decode_event(tagged) == UPDATE


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"", "frame_version"),
        (bytes.fromhex("00" + UPDATE_HEX[2:]), "unknown frame version"),
        (bytes.fromhex("02" + UPDATE_HEX[2:]), "unknown frame version"),
        (bytes.fromhex("808002" + UPDATE_HEX[2:]), "frame_version"),
        (bytes.fromhex("ffff01" + UPDATE_HEX[2:]), "unknown frame version .* version=32767"),
        (bytes.fromhex("01808002" + UPDATE_HEX[4:]), "field=api_key"),
        (bytes.fromhex("0101808002" + UPDATE_HEX[6:]), "field=api_version"),
        (bytes.fromhex("0109" + UPDATE_HEX[4:]), "api_key=9"),
        (bytes.fromhex("010102" + UPDATE_HEX[6:]), "version=2"),
        (bytes.fromhex("010301" + SNAPSHOT_HEX[6:]), "version=1"),
        (bytes.fromhex(UPDATE_HEX + "00"), "bytes after its end"),
        (bytes.fromhex(UPDATE_HEX[:-4] + "0400"), "unknown state"),
        (bytes.fromhex(UPDATE_HEX[:-2]), "segment update"),
        (bytes.fromhex("010100" + "00" + UPDATE_HEX[8:]), "field=topic"),
        (bytes.fromhex("010100" + "04ffffff" + UPDATE_HEX[14:]), "not UTF-8"),
        (bytes.fromhex(STARTED_HEX.replace("6be803", "6be8ffffffff0f")), "longer than the record"),
        (bytes.fromhex(STARTED_HEX.replace("6be803", "6be804")), "longer than the record"),
        (bytes.fromhex(STARTED_HEX.replace("6be803", "6be8ffffffff1f")), "over 32 bits"),
        (bytes.fromhex(STARTED_HEX.replace("6be803", "6be8ffffffffff0f")), "varint .* too long"),
        (bytes.fromhex(STARTED_HEX.replace("6be803", "6be800")), "null .* field=segment_leader"),
        (bytes.fromhex(STARTED_HEX[:-68] + "01" + STARTED_HEX[-14:]), "at least one leader epoch"),
        (bytes.fromhex(STARTED_HEX.replace("00000000000000c7", "0000000000000063")), "end offset"),
    ],
)
def test_decode_event_of_damaged_value_names_what_is_wrong(value: bytes, named: str) -> None:
    with pytest.raises(CorruptMetadataError, match=named):
        decode_event(value)


_uuids = st.uuids()
_longs = st.integers(min_value=-(2**63), max_value=2**63 - 1)
_ints = st.integers(min_value=-(2**31), max_value=2**31 - 1)
_offsets = st.integers(min_value=0, max_value=2**62)
_partitions = st.builds(TopicIdPartition, _uuids, st.text(max_size=20), _ints)
_segment_ids = st.builds(RemoteLogSegmentId, _partitions, _uuids)
_custom = st.none() | st.binary(max_size=200)
_segments = st.builds(
    RemoteLogSegmentMetadata,
    segment_id=_segment_ids,
    start_offset=_offsets,
    end_offset_inclusive=st.integers(min_value=2**62, max_value=2**63 - 1),
    max_timestamp_ms=_longs,
    broker_id=_ints,
    event_timestamp_ms=_longs,
    segment_size_in_bytes=_ints,
    segment_leader_epochs=st.dictionaries(_ints, _longs, min_size=1, max_size=5),
    state=st.sampled_from(RemoteLogSegmentState),
    custom_metadata=_custom,
    txn_index_empty=st.booleans(),
    broker_leader_epoch=_ints,
)
_updates = st.builds(
    RemoteLogSegmentMetadataUpdate,
    segment_id=_segment_ids,
    event_timestamp_ms=_longs,
    state=st.sampled_from(RemoteLogSegmentState),
    broker_id=_ints,
    custom_metadata=_custom,
    broker_leader_epoch=_ints,
    end_offset_inclusive=_longs,
)
_deletes = st.builds(
    RemotePartitionDeleteMetadata,
    topic_id_partition=_partitions,
    state=st.sampled_from(RemotePartitionDeleteState),
    event_timestamp_ms=_longs,
    broker_id=_ints,
    broker_leader_epoch=_ints,
    end_offset_inclusive=_longs,
)
_events = _segments | _updates | _deletes


@given(_events)
def test_decode_event_of_encoded_event_gives_back_what_its_version_carries(
    event: KeyedEvent,
) -> None:
    assert decode_event(memoryview(encode_keyed_event(event))) == event
    old = decode_event(memoryview(encode_event(event)))
    assert isinstance(old, type(event))
    assert old.broker_leader_epoch == NO_LEADER_EPOCH
    assert encode_event(old) == encode_event(event)


@given(_events, st.booleans(), st.data())
@settings(max_examples=100)
def test_decode_event_of_mutated_value_gives_an_event_or_the_documented_error(
    event: KeyedEvent, keyed: bool, data: st.DataObject
) -> None:
    value = bytearray(encode_keyed_event(event) if keyed else encode_event(event))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    del value[data.draw(st.integers(0, len(value))) :]
    try:
        decoded = decode_event(bytes(value))
    except CorruptMetadataError:
        return
    if isinstance(decoded, RemoteLogSegmentMetadataSnapshot):
        assert decode_event(encode_event(decoded)) == decoded
    else:
        assert decode_event(encode_keyed_event(decoded)) == decoded


@given(st.binary(max_size=300))
def test_decode_event_of_garbage_gives_an_event_or_the_documented_error(garbage: bytes) -> None:
    for value in (garbage, b"\x01\x00\x00" + garbage, b"\x01\x01\x00" + garbage):
        try:
            decode_event(value)
        except CorruptMetadataError:
            continue
