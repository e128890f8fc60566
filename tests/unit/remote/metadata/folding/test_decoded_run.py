"""Decoded runs: the hash of a record's user partition, and runs that are joined."""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, decode_run, place_hashes
from isotherm.remote.metadata.wire.events import columns_of, decode_change
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

Record = tuple[bytes | None, bytes | None]

ONE = TopicIdPartition(uuid.UUID(int=1 << 90 | 5), "flights", 0)
OTHERS = [
    TopicIdPartition(ONE.topic_id, "flights", 1),
    TopicIdPartition(uuid.UUID(int=1 << 90 | 6), "flights", 0),
    TopicIdPartition(uuid.UUID(int=1 << 91 | 5), "flights", 0),
]


def segment(owner: TopicIdPartition, custom: bytes | None = None) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=9)),
        start_offset=0,
        end_offset_inclusive=9,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_in_bytes=1,
        segment_leader_epochs={0: 0, 1: 4},
        custom_metadata=custom,
        broker_leader_epoch=3,
    )


def update(owner: TopicIdPartition) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=9)),
        event_timestamp_ms=1,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id=1,
        custom_metadata=b"of the update",
    )


def records_about(owner: TopicIdPartition) -> list[Record]:
    """Every kind of record of a partition, and one in a form that no broker writes."""
    deletion = RemotePartitionDeleteMetadata(
        topic_id_partition=owner,
        state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
        event_timestamp_ms=0,
        broker_id=1,
    )
    key = segment_key(owner, 9, 3).encode()
    return [
        (None, encode_event(replace(segment(owner), broker_leader_epoch=-1))),
        (None, encode_event(update(owner))),
        (None, encode_event(deletion)),
        (key, encode_keyed_event(segment(owner, b"custom"))),
        (key, None),
        (partition_key(owner).encode(), None),
        (None, encode_event(update(owner))[:-1] + b"\x01\x09\x01\xff"),
    ]


DAMAGED: list[Record] = [(None, b"odd"), (None, None), (b"no key", None), (b"no key", b"\x01")]


def run_of(records: list[Record], first: int = 0) -> DecodedRun:
    numbered = [MetadataTopicRecord(0, first + at, 0, *each) for at, each in enumerate(records)]
    return decode_run(columns_of(numbered, first))


def test_records_of_one_partition_have_one_hash_and_damaged_ones_have_none() -> None:
    owners = [ONE, *OTHERS]
    records = [record for owner in owners for record in records_about(owner)] + DAMAGED
    numbered = [MetadataTopicRecord(0, at, 0, *each) for at, each in enumerate(records)]
    hashes = place_hashes(columns_of(numbered, 0)).tolist()
    count = len(records_about(ONE))
    found = [set(hashes[at * count : (at + 1) * count]) for at in range(len(owners))]
    assert [len(each) for each in found] == [1] * len(owners)
    assert len(set.union(*found)) == len(owners)
    assert 0 not in set.union(*found)
    assert hashes[len(owners) * count :] == [0] * len(DAMAGED)


def test_joined_run_has_the_chosen_records_and_all_later_ones() -> None:
    earlier, later = [*records_about(ONE), *DAMAGED[:2]], [DAMAGED[3], *records_about(OTHERS[0])]
    chosen = [1, 3, 6, 7]
    joined = DecodedRun.joined(run_of(earlier), np.array(chosen), run_of(later, 100))
    expected = [*(earlier[number] for number in chosen), *later]
    assert joined.offset.tolist() == [*chosen, *range(100, 100 + len(later))]
    for number, record in enumerate(expected):
        if record in DAMAGED:
            with pytest.raises(CorruptMetadataError):
                joined.change(number)
        else:
            assert joined.change(number) == decode_change(*record)
    whole = np.array([1])
    assert joined.leader_epochs(whole)["start_offset"].tolist() == [0, 4]
    (row,) = joined.rows(whole, np.array([0]))
    assert row.endswith(b"of the update")
    (row,) = joined.rows(whole, whole)
    assert row.endswith(b"custom")


def test_bytes_of_records_are_those_of_their_keys_and_values() -> None:
    records = records_about(ONE)[:6]
    run = run_of(records)
    sizes = [len(key or b"") + len(value or b"") for key, value in records]
    for number, size in enumerate(sizes):
        assert run.byte_count(np.array([number])) == size
    assert run.byte_count(np.array([0, 3, 5])) == sizes[0] + sizes[3] + sizes[5]
    assert run.byte_count(np.array([], np.int64)) == 0
