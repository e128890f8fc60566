"""Random records of one metadata partition, as Hypothesis strategies.

Both levels, valid and invalid transitions, uploads that overlap, keys used again, tombstones,
deletions of partitions, records in unusual forms, and damage.
"""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

from isotherm.remote.metadata.wire.keys import partition_key, segment_key
from isotherm.remote.metadata.wire.serde import encode_event, encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import TopicIdPartition

PARTITIONS = [
    TopicIdPartition(uuid.UUID(int=1 << 100), "flights", 0),
    TopicIdPartition(uuid.UUID(int=1 << 100), "flights", 11),
    TopicIdPartition(uuid.UUID(int=2), "flüge", 0),
]
UNWANTED = TopicIdPartition(uuid.UUID(int=3), "other", 0)

Record = tuple[bytes | None, bytes | None]

partitions = st.sampled_from([*PARTITIONS, PARTITIONS[0], PARTITIONS[0], UNWANTED])
numbers = st.integers(1, 4)
states = st.sampled_from(RemoteLogSegmentState)
customs = st.sampled_from([None, b"", b"custom"])
leaders = st.sampled_from([-2, -1, 0, 3])


def segment_id(partition: TopicIdPartition, number: int) -> RemoteLogSegmentId:
    # The same uuids in each partition: they are different segments.
    return RemoteLogSegmentId(partition, uuid.UUID(int=(number << 80) | number))


@st.composite
def segments(
    draw: st.DrawFn, state: RemoteLogSegmentState | None = None
) -> RemoteLogSegmentMetadata:
    start = draw(st.integers(0, 8))
    end = draw(st.integers(start, 9))
    first = draw(st.integers(0, 1))
    epochs = {first: start}
    if draw(st.booleans()):
        # The border of an epoch may lie outside of the segment: it is not checked.
        epochs[first + 1] = draw(st.integers(0, 10))
    return RemoteLogSegmentMetadata(
        segment_id=segment_id(draw(partitions), draw(numbers)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=draw(st.integers(-1, 2**40)),
        broker_id=draw(st.integers(0, 2)),
        event_timestamp_ms=draw(st.integers(-1, 2**40)),
        segment_size_in_bytes=draw(st.integers(0, 2**31 - 1)),
        segment_leader_epochs=epochs,
        state=draw(states) if state is None else state,
        custom_metadata=draw(customs),
        txn_index_empty=draw(st.booleans()),
        broker_leader_epoch=draw(leaders),
    )


@st.composite
def added(draw: st.DrawFn) -> Record:
    # One in many contradicts itself: a segment is added in its first state only.
    state = draw(st.sampled_from([RemoteLogSegmentState.COPY_SEGMENT_STARTED] * 9 + [None]))
    segment = draw(segments(state))
    return None, draw(st.sampled_from([encode_event, encode_keyed_event]))(segment)


@st.composite
def updated(draw: st.DrawFn) -> Record:
    update = RemoteLogSegmentMetadataUpdate(
        segment_id=segment_id(draw(partitions), draw(numbers)),
        event_timestamp_ms=draw(st.integers(0, 2**40)),
        state=draw(states),
        broker_id=draw(st.integers(0, 2)),
        custom_metadata=draw(customs),
        broker_leader_epoch=draw(leaders),
    )
    return None, draw(st.sampled_from([encode_event, encode_keyed_event]))(update)


@st.composite
def put(draw: st.DrawFn, state: RemoteLogSegmentState | None = None) -> Record:
    segment = draw(segments(state))
    key = segment_key(
        segment.topic_id_partition, segment.end_offset_inclusive, segment.broker_leader_epoch
    )
    return key.encode(), encode_keyed_event(segment)


@st.composite
def partition_deletions(draw: st.DrawFn) -> Record:
    partition = draw(partitions)
    event = RemotePartitionDeleteMetadata(
        topic_id_partition=partition,
        state=draw(st.sampled_from(RemotePartitionDeleteState)),
        event_timestamp_ms=draw(st.integers(0, 9)),
        broker_id=0,
    )
    if draw(st.booleans()):
        return None, encode_event(event)
    return partition_key(partition).encode(), encode_keyed_event(event)


tombstones = st.builds(
    lambda partition, end, leader: (segment_key(partition, end, leader).encode(), None),
    partitions,
    st.integers(0, 9),
    leaders,
)
partition_tombstones = st.builds(lambda each: (partition_key(each).encode(), None), partitions)


@st.composite
def odd_forms(draw: st.DrawFn) -> Record:
    """A valid record in a form that no broker writes: an unknown tag, a length in two bytes."""
    key, value = draw(st.one_of(added(), updated(), put()))
    assert value is not None
    if value[-1] == 0:
        return key, value[:-1] + b"\x01\x09\x01\xff"
    size = value[3]
    return key, value[:3] + bytes((size | 0x80, 0)) + value[4:]


@st.composite
def damaged(draw: st.DrawFn) -> Record:
    key, value = draw(st.one_of(added(), updated(), put(), partition_deletions()))
    assert value is not None
    position = draw(st.integers(0, len(value) - 1))
    match draw(st.integers(0, 4)):
        case 0:
            return key, value[:position]
        case 1:
            return key, value[:position] + draw(st.binary(max_size=3)) + value[position + 1 :]
        case 2:
            return draw(st.binary(max_size=40)), value
        case 3:
            return draw(st.sampled_from([None, b"", b"1", key])), None
    return key, value + b"\x00"


histories = st.lists(
    st.one_of(
        *[added(), updated(), updated(), put(), tombstones],
        # Finished segments that overlap are what the rules are about.
        *[put(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)] * 3,
        *[partition_deletions(), partition_tombstones, odd_forms(), damaged()],
    ),
    max_size=40,
)
