"""Histories that the columnar fold must not take for complete lives of segments, which it may drop
or lay down.

Each history is cut into windows, as a long topic is. The oracle is the partition store after each
record was applied to it.
"""

from __future__ import annotations

import itertools
import uuid

import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold
from isotherm.remote.metadata.folding.decoded_run import decode_run
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.partition_store import RemotePartitionMetadataStore
from isotherm.remote.metadata.wire.events import columns_of, decode_change
from isotherm.remote.metadata.wire.keys import segment_key
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

PARTITION = TopicIdPartition(uuid.UUID(int=7), "flights", 0)
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

Record = tuple[bytes | None, bytes | None]


def whole(
    number: int,
    epochs: dict[int, int],
    end: int,
    state: RemoteLogSegmentState = STARTED,
    leader: int = -1,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=number)),
        start_offset=min(epochs.values()),
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_in_bytes=1,
        segment_leader_epochs=epochs,
        state=state,
        broker_leader_epoch=leader,
    )


def added(number: int, epochs: dict[int, int], end: int, **other: RemoteLogSegmentState) -> Record:
    return None, encode_event(whole(number, epochs, end, **other))


def updated(number: int, state: RemoteLogSegmentState) -> Record:
    update = RemoteLogSegmentMetadataUpdate(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=number)),
        event_timestamp_ms=1,
        state=state,
        broker_id=1,
    )
    return None, encode_event(update)


def life(number: int, epochs: dict[int, int], end: int) -> list[Record]:
    return [
        added(number, epochs, end),
        *(updated(number, state) for state in (FINISHED, DELETING, DELETED)),
    ]


def put(
    number: int, epochs: dict[int, int], end: int, state: RemoteLogSegmentState, leader: int = 3
) -> Record:
    key = segment_key(PARTITION, end, leader).encode()
    return key, encode_keyed_event(whole(number, epochs, end, state, leader))


def tombstone(end: int) -> Record:
    return segment_key(PARTITION, end, 3).encode(), None


def partition_deleted() -> Record:
    state = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    event = RemotePartitionDeleteMetadata(
        topic_id_partition=PARTITION, state=state, event_timestamp_ms=0, broker_id=1
    )
    return None, encode_event(event)


HISTORIES: dict[str, list[list[Record]]] = {
    "a retry under the key of an upload that was started, which comes later": [
        [put(1, {0: 0}, 9, FINISHED), put(2, {0: 0}, 9, STARTED)]
    ],
    "a retry under the key of an upload that was started, which came before": [
        [put(2, {0: 0}, 9, STARTED), put(1, {0: 0}, 9, FINISHED)]
    ],
    "a tombstone of the key": [[put(1, {0: 0}, 9, FINISHED), tombstone(9)]],
    "a key of an earlier window": [
        [put(1, {0: 0}, 9, STARTED), updated(5, DELETED)],
        [put(2, {1: 0}, 9, FINISHED)],
    ],
    "a tombstone of a later window": [[put(1, {0: 0}, 9, FINISHED)], [tombstone(9)]],
    "a segment whose bounds lie in an earlier window": [
        [added(1, {0: 0}, 9)],
        [updated(1, FINISHED), *life(2, {0: 0}, 12), *life(3, {0: 13}, 19)],
    ],
    "a segment that was started in an earlier window": [
        [added(1, {0: 0}, 9)],
        [*life(1, {0: 0}, 9), *life(2, {0: 10}, 19)],
    ],
    "an epoch that begins behind the end of its segment": [
        [*life(1, {0: 0}, 9), added(2, {0: 10, 1: 40}, 19), updated(2, FINISHED)],
        [*life(3, {1: 20}, 29), *life(4, {1: 30}, 39)],
    ],
    "spans that end before they begin, above others": [
        [
            *[added(1, {0: 0}, 9), updated(1, FINISHED), added(2, {0: 30, 1: 5}, 35)],
            *[updated(2, FINISHED), added(3, {0: 10}, 19), updated(3, FINISHED)],
        ]
    ],
    "a deletion of a segment that hides another": [
        [put(1, {0: 0}, 9, FINISHED), put(2, {0: 0}, 12, FINISHED, leader=5)],
        [updated(2, DELETING), updated(2, DELETED)],
    ],
    "a deletion that may not follow": [
        [added(1, {0: 0}, 9), updated(1, FINISHED)],
        [updated(1, DELETED)],
    ],
    "a deletion of a segment that keeps another from being evicted": [
        [put(1, {0: 5}, 6, FINISHED), put(2, {0: 7}, 9, FINISHED, leader=9)],
        [put(3, {0: 4}, 20, FINISHED), updated(2, DELETING), updated(2, DELETED)],
    ],
    "deletions of segments that lie apart": [
        [item for n in range(1, 4) for item in life(n, {0: 10 * n}, 10 * n + 9)[:2]],
        [updated(2, DELETING), updated(2, DELETED), updated(1, DELETING), updated(1, DELETED)],
    ],
    "the farthest of an epoch": [[*life(1, {0: 0}, 9), *life(2, {0: 10}, 19)]],
    "a copy that failed, in an epoch without others": [
        [added(1, {4: 0}, 9), updated(1, DELETING), updated(1, DELETED)]
    ],
    "uploads that overlap, below others": [
        [
            *[added(1, {0: 0}, 9), updated(1, FINISHED), added(2, {0: 5}, 14)],
            *[updated(2, FINISHED), *life(3, {0: 20}, 29), *life(4, {0: 30}, 39)],
            *[added(5, {0: 4}, 12), updated(5, FINISHED)],
        ]
    ],
    "a record that contradicts its kind, of a partition that is deleted then": [
        [added(1, {0: 0}, 9, state=FINISHED), *life(2, {0: 0}, 9), partition_deleted()],
        [added(3, {0: 0}, 9, state=FINISHED)],
    ],
}


@pytest.mark.parametrize("waiting_max_bytes", [0, 1 << 20])
@pytest.mark.parametrize("windows", HISTORIES.values(), ids=HISTORIES.keys())
def test_fold_of_windows_is_that_of_each_record(
    windows: list[list[Record]], waiting_max_bytes: int
) -> None:
    problems: list[int] = []
    fold = ColumnarFold(
        lambda _: True,
        lambda offset, _: problems.append(offset),
        waiting_max_bytes=waiting_max_bytes,
    )
    offsets = itertools.count()
    for window in windows:
        records = [MetadataTopicRecord(0, next(offsets), 0, *record) for record in window]
        fold.feed(decode_run(columns_of(records, 0)))
    fold.finish()

    store = RemotePartitionMetadataStore()
    store.open(PARTITION)
    expected_problems = []
    for offset, record in enumerate(itertools.chain.from_iterable(windows)):
        try:
            store.apply_change(decode_change(*record))
        except CorruptMetadataError:
            expected_problems.append(offset)
    cache = store.get(PARTITION)
    assert problems == expected_problems
    folded = fold.partitions.folded(next(offsets))
    assert [described(partition.cache) for partition in folded.partitions] == (
        [] if cache is None else [described(cache)]
    )
    deleted = store.finished_deletion(PARTITION)
    assert folded.deleted == ([] if deleted is None else [deleted])


def described(cache: RemoteLogMetadataCache) -> dict[str, object]:
    epochs = range(5)
    return {
        "segments": cache.segments(),
        "keys": cache.keys(),
        "stale": cache.stale_keys(),
        "listed": [cache.segments(epoch) for epoch in epochs],
        "highest": [cache.highest_offset_for_epoch(epoch) for epoch in epochs],
        "found": [[cache.find(epoch, at) for at in range(45)] for epoch in epochs],
        "epochs": sorted(cache._epochs),
    }
