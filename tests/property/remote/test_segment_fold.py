"""A fold that is stored and continued gives the result of a fold of all records."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.remote.metadata.folding.decoded_run import decode_run
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.folding.segment_fold import FoldState, SegmentFold
from isotherm.remote.metadata.state.segment_columns import STATES, id_texts
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import uuid_to_text
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.metadata_histories import UNWANTED, Record, histories, orderly_histories


def topic_of(records: list[Record]) -> MemoryMetadataTopic:
    topic = MemoryMetadataTopic(1)
    for key, value in records:
        topic.append(0, key, value, 0)
    return topic


def fold_on(state: FoldState | None, topic: MemoryMetadataTopic, offsets: range) -> FoldState:
    fold = SegmentFold(lambda offset, reason: None, lambda partition: partition != UNWANTED)
    if state is not None:
        fold.restore(state)
    records = [r for r in topic.read(0, 0, 1 << 30) if r.offset in offsets] if offsets else []
    fold.feed(decode_run(columns_of(records, offsets.start)))
    return fold.state()


def described(segment: RemoteLogSegmentMetadata) -> dict[str, object]:
    """The row of the projection that a segment's metadata gives."""
    partition = segment.topic_id_partition
    return {
        "topic": partition.topic,
        "topic_id": uuid_to_text(partition.topic_id),
        "partition": partition.partition,
        "segment_id": id_texts([segment.segment_id.id.bytes])[0],
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset_inclusive,
        "state": STATES[segment.state],
        "leader_epochs": [
            {"epoch": epoch, "start_offset": start}
            for epoch, start in segment.segment_leader_epochs.items()
        ],
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "broker_id": segment.broker_id,
        "size_in_bytes": segment.segment_size_in_bytes,
        "custom_metadata": segment.custom_metadata,
        "txn_index_empty": segment.txn_index_empty,
        "broker_leader_epoch": segment.broker_leader_epoch,
    }


def as_known(state: FoldState) -> tuple[object, ...]:
    rows = sorted(state.segments.to_pylist(), key=lambda row: (row["topic"], str(row)))
    return rows, sorted(state.other_keys), sorted(state.deletions)


@given(st.one_of(histories, orderly_histories()))
@settings(max_examples=100)
def test_rows_are_the_segments_of_the_brokers_cache(records: list[Record]) -> None:
    topic = topic_of(records)
    folded = fold_metadata_partition(
        topic, 0, lambda partition: partition != UNWANTED, lambda error: None
    )
    expected = [
        described(segment) for cache, _ in folded.partitions for segment in cache.segments()
    ]
    rows = fold_on(None, topic, range(len(records))).segments.to_pylist()
    found = [
        {name: value for name, value in row.items() if name not in ("has_key", "source_offset")}
        for row in rows
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    for row in rows:
        _, value = records[row["source_offset"]]
        assert value is not None


@given(st.one_of(histories, orderly_histories()), st.lists(st.integers(0, 40), max_size=3))
@settings(max_examples=200)
def test_state_taken_up_again_goes_on_as_if_nothing_had_happened(
    records: list[Record], cuts: list[int]
) -> None:
    topic = topic_of(records)
    state: FoldState | None = None
    borders = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    for start, end in itertools.pairwise(borders):
        state = fold_on(state, topic, range(start, end))
    assert state is not None
    assert as_known(state) == as_known(fold_on(None, topic, range(len(records))))
