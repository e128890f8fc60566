"""Random records of one metadata partition, as Hypothesis strategies.

Both levels, valid and invalid transitions, uploads that overlap, keys used again, tombstones,
deletions of partitions, records in unusual forms, and damage.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

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
    # A few are invalid: a segment may only be added in its first state.
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
        # Finished segments that overlap: the rules of overlaps decide.
        *[put(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)] * 3,
        *[partition_deletions(), partition_tombstones, odd_forms(), damaged()],
    ),
    max_size=40,
)


@st.composite
def _life(draw: st.DrawFn, number: int, start: int) -> tuple[int, list[Record]]:
    """The records of a segment's valid transitions, up to a random one; and the start of the next
    segment."""
    end = start + draw(st.integers(0, 3))
    border = draw(st.sampled_from([None, start, (start + end) // 2 + 1]))
    first = draw(st.integers(0, 1))
    partition = draw(st.sampled_from([PARTITIONS[0], PARTITIONS[0], PARTITIONS[1], UNWANTED]))
    whole = RemoteLogSegmentMetadata(
        segment_id=segment_id(partition, number),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=start,
        broker_id=1,
        event_timestamp_ms=number,
        segment_size_in_bytes=number,
        segment_leader_epochs={first: start} if border is None else {first: start, 2: border},
        broker_leader_epoch=draw(st.sampled_from([-1, -1, 3])),
    )
    states = draw(
        st.sampled_from(
            [
                *[[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], [0, 1], [0, 1], [0]],
                *[[0, 2, 3], [0, 1, 1, 2, 2, 3, 3], [1], [1, 2, 3], [0, 1, 3]],
            ]
        )
    )
    records: list[Record] = []
    is_keyed = draw(st.sampled_from([False, False, True]))
    for state in map(RemoteLogSegmentState, states):
        now = replace(whole, state=state, event_timestamp_ms=number + state)
        if is_keyed:
            key = segment_key(partition, end, whole.broker_leader_epoch)
            records.append((key.encode(), encode_keyed_event(now)))
        elif state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            records.append((None, encode_event(now)))
        else:
            update = RemoteLogSegmentMetadataUpdate(
                segment_id=whole.segment_id,
                event_timestamp_ms=number + state,
                state=state,
                broker_id=1,
                custom_metadata=draw(customs),
            )
            records.append((None, encode_event(update)))
    if is_keyed and states[-1] == 3 and draw(st.booleans()):
        records.append((segment_key(partition, end, whole.broker_leader_epoch).encode(), None))
    return end + draw(st.sampled_from([1, 1, 1, 2, 0, -1])), records


@st.composite
def orderly_histories(draw: st.DrawFn) -> list[Record]:
    """Records as brokers write them: consecutive segments, each added, finished and deleted, with a
    few invalid records among them."""
    lives: list[list[Record]] = []
    start = 0
    for number in range(10, 10 + draw(st.integers(1, 12))):
        start, records = draw(_life(number, max(start, 0)))
        lives.append(records)
    turns = [index for index, records in enumerate(lives) for _ in records]
    if draw(st.booleans()):
        turns = draw(st.permutations(turns))
    waiting = [iter(records) for records in lives]
    history = [next(waiting[index]) for index in turns]
    for record in draw(st.lists(st.one_of(added(), updated(), put(), tombstones), max_size=2)):
        history.insert(draw(st.integers(0, len(history))), record)
    for record in draw(st.lists(partition_deletions(), max_size=1)):
        history.insert(draw(st.integers(0, len(history))), record)
    return history
