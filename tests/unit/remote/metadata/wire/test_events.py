"""What the key and the value of a metadata record mean together, and the order of a read. The cases
follow docs/formats/remote-log-metadata.md."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord
from isotherm.remote.metadata.wire.events import (
    MetadataChange,
    binary_array,
    columns_of,
    decode_change,
    decode_record,
    iterate_columns,
    iterate_records,
    joined_columns,
    next_offset,
    partition_of,
)
from isotherm.remote.metadata.wire.keys import (
    MetadataKey,
    PartitionKey,
    SegmentKey,
    partition_key,
    segment_key,
)
from isotherm.remote.metadata.wire.serde import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentMetadataSnapshot,
    encode_event,
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
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

PARTITION = TopicIdPartition(uuid.UUID(int=7), "flights", 2)
OTHER = TopicIdPartition(uuid.UUID(int=7), "flights", 3)
SEGMENT_ID = RemoteLogSegmentId(PARTITION, uuid.UUID(int=1))
SEGMENT = RemoteLogSegmentMetadata(
    segment_id=SEGMENT_ID,
    start_offset=0,
    end_offset_inclusive=9,
    max_timestamp_ms=0,
    broker_id=1,
    event_timestamp_ms=0,
    segment_size_in_bytes=1,
    segment_leader_epochs={0: 0},
)
KEYED = replace(SEGMENT, broker_leader_epoch=5)
UPDATE = RemoteLogSegmentMetadataUpdate(
    segment_id=SEGMENT_ID,
    event_timestamp_ms=1,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    broker_id=1,
    broker_leader_epoch=5,
)
DELETION = RemotePartitionDeleteMetadata(
    topic_id_partition=PARTITION,
    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
    event_timestamp_ms=1,
    broker_id=1,
    broker_leader_epoch=5,
)
SNAPSHOT = RemoteLogSegmentMetadataSnapshot(
    id=SEGMENT_ID.id,
    start_offset=0,
    end_offset_inclusive=9,
    max_timestamp_ms=0,
    broker_id=1,
    event_timestamp_ms=0,
    segment_size_in_bytes=1,
    segment_leader_epochs={0: 0},
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    txn_index_empty=False,
)
KEY = segment_key(PARTITION, 9, 5)
DELETION_KEY = partition_key(PARTITION)


@pytest.mark.parametrize(
    ("key", "value", "event"),
    [
        (None, encode_event(SEGMENT), SEGMENT),
        (None, encode_keyed_event(UPDATE), UPDATE),
        (None, encode_keyed_event(DELETION), DELETION),
        (KEY, encode_keyed_event(KEYED), KEYED),
        (DELETION_KEY, encode_keyed_event(DELETION), DELETION),
        (KEY, None, None),
        (DELETION_KEY, None, None),
    ],
)
def test_record_is_an_event_a_state_or_a_tombstone_of_its_partition(
    key: MetadataKey | None, value: bytes | None, event: RemoteLogMetadataEvent | None
) -> None:
    change = decode_change(None if key is None else key.encode(), value)
    assert change == MetadataChange(key, event)
    assert type(change.key) is type(key)
    assert change.place == PartitionKey(PARTITION.topic_id, 2)
    if event is not None:
        assert partition_of(event) == PARTITION


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, None, "without a key and a value"),
        (None, encode_event(SNAPSHOT), "names no partition"),
        (KEY, encode_event(SNAPSHOT), "only the state of a segment or a partition has a key"),
        (KEY, encode_keyed_event(UPDATE), "only the state of a segment or a partition has a key"),
        (KEY, encode_keyed_event(DELETION), "not about its key"),
        (DELETION_KEY, encode_keyed_event(KEYED), "not about its key"),
        (segment_key(PARTITION, 8, 5), encode_keyed_event(KEYED), "not about its key"),
        (segment_key(PARTITION, 9, 4), encode_keyed_event(KEYED), "not about its key"),
        (segment_key(OTHER, 9, 5), encode_keyed_event(KEYED), "not about its key"),
        (partition_key(OTHER), encode_keyed_event(DELETION), "not about its key"),
        (KEY, b"\x01\x00", "cut short"),
    ],
)
def test_record_without_a_meaning_is_refused(
    key: SegmentKey | PartitionKey | None, value: bytes | None, reason: str
) -> None:
    encoded = None if key is None else key.encode()
    with pytest.raises(CorruptMetadataError, match=reason):
        decode_change(encoded, value)
    with pytest.raises(CorruptMetadataError) as raised:
        decode_record(MetadataTopicRecord(3, 17, 0, encoded, value))
    assert "topic=__remote_log_metadata partition=3 offset=17 reason=" in str(raised.value)
    assert reason in str(raised.value)


def test_bytes_that_are_no_key_are_refused_with_and_without_a_value() -> None:
    for value in (None, encode_keyed_event(KEYED)):
        with pytest.raises(CorruptMetadataError, match="not a key"):
            decode_change(b"", value)


class TrimmedTopic(MemoryMetadataTopic):
    """A topic that keeps the records from offset 3 on, and that reads at most two at once."""

    def offsets(self, partition: int) -> tuple[int, int]:
        return 3, super().offsets(partition)[1]

    def read(self, partition: int, start_offset: int, max_bytes: int) -> list[MetadataTopicRecord]:
        assert start_offset >= 3
        return super().read(partition, start_offset, max_bytes)[:2]


@pytest.fixture
def topic() -> TrimmedTopic:
    """Offsets 3 to 9."""
    made = TrimmedTopic(1)
    for number in range(10):
        made.append(0, b"k%d" % number, b"v%d" % number, 0)
    return made


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({}, range(3, 10)),
        ({"start_offset": 2}, range(3, 10)),
        ({"start_offset": 4}, range(4, 10)),
        ({"start_offset": 10}, range(10, 10)),
        ({"start_offset": 11}, range(11, 11)),
        ({"end_offset": 6}, range(3, 6)),
        ({"end_offset": 7}, range(3, 7)),
        ({"start_offset": 6, "end_offset": 7}, range(6, 7)),
        ({"end_offset": 3}, range(3, 3)),
        ({"end_offset": 50}, range(3, 10)),
    ],
)
def test_records_are_iterated_within_their_bounds(
    topic: TrimmedTopic, options: dict[str, int], offsets: range
) -> None:
    found = [record.offset for record in iterate_records(topic, 0, **options)]
    assert found == list(offsets)


def test_records_that_are_appended_during_an_iteration_are_not_in_it(topic: TrimmedTopic) -> None:
    records = iterate_records(topic, 0)
    columns = iterate_columns(topic, 0, start_offset=5)
    found = [next(records).offset, *next(columns).offset.tolist()]
    topic.append(0, b"late", b"late", 0)
    assert [record.offset for record in records] == list(range(4, 10))
    found += [offset for column in columns for offset in column.offset.tolist()]
    assert found == [3, *range(5, 10)]


@pytest.mark.parametrize("start_offset", [0, 3, 4, 9, 10, 11])
def test_columns_are_those_of_the_records(topic: TrimmedTopic, start_offset: int) -> None:
    runs = list(iterate_columns(topic, 0, start_offset=start_offset))
    found = [
        row
        for run in runs
        for row in zip(run.offset.tolist(), run.key.to_pylist(), run.value.to_pylist(), strict=True)
    ]
    records = iterate_records(topic, 0, start_offset=start_offset)
    assert found == [(record.offset, record.key, record.value) for record in records]
    assert [run.next_offset for run in runs][-1:] == ([10] if start_offset < 10 else [])


def test_iteration_of_a_replica_that_is_behind_ends_where_the_replica_ends() -> None:
    topic = MemoryMetadataTopic(1)
    topic.append(0, b"k", b"v", 0)
    topic.append_visible, topic.is_behind = False, True
    topic.append(0, b"k", b"v", 0)
    assert topic.offsets(0) == (0, 2)
    assert [record.offset for record in iterate_records(topic, 0)] == [0]
    assert [run.next_offset for run in iterate_columns(topic, 0, start_offset=0)] == [1]


def test_next_read_starts_behind_the_last_record() -> None:
    records = [MetadataTopicRecord(0, offset, 0, b"k", None) for offset in (4, 8)]
    assert next_offset(records, 3) == 9
    assert next_offset([], 3) == 3
    assert columns_of(records, 3).next_offset == 9
    assert columns_of([], 3).next_offset == 3


def test_joined_columns_are_read_on_behind_the_last_run() -> None:
    def run(*offsets: int, following: int) -> MetadataColumns:
        records = [MetadataTopicRecord(0, offset, 0, b"k%d" % offset, None) for offset in offsets]
        return replace(columns_of(records, 0), next_offset=following)

    assert joined_columns([run(1, 2, following=4)]).next_offset == 4
    joined = joined_columns([run(1, following=2), run(2, following=3), run(5, following=7)])
    assert joined.offset.tolist() == [1, 2, 5]
    assert joined.key.to_pylist() == [b"k1", b"k2", b"k5"]
    assert joined.value.to_pylist() == [None] * 3
    assert joined.next_offset == 7


@pytest.mark.parametrize(
    "values", [[], [None], [b""], [b"a", None, b"", b"bcd"], [None, b"k"] * 9, [b"0123456789"] * 17]
)
def test_column_is_that_of_arrow(values: list[bytes | None]) -> None:
    column = binary_array(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.binary()))
