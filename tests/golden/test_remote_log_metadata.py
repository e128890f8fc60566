"""The metadata of the remote tier as Kafka wrote it, and the files that it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from isotherm.record.batch import Record, iterate_batches, read_records
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import decode_event, encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from isotherm.types import uuid_to_text

# Kafka's default of remote.log.metadata.topic.num.partitions, which the golden broker has.
METADATA_PARTITION_COUNT = 50


def _metadata_records(golden) -> Iterator[tuple[int, Record]]:
    for directory in sorted(golden.log_dir.glob("__remote_log_metadata-*")):
        partition = int(directory.name.rsplit("-", 1)[1])
        for path in sorted(directory.glob("*.log")):
            data = path.read_bytes()
            for position, header in iterate_batches(data):
                for record in read_records(data, position, header):
                    yield partition, record


def _events(golden) -> list:
    return [decode_event(record.value) for _, record in _metadata_records(golden)]


def test_events_encode_to_the_bytes_that_kafka_wrote(golden) -> None:
    values = [record.value for _, record in _metadata_records(golden)]
    assert len(values) > 20
    assert [encode_event(decode_event(value)) for value in values] == values


def test_events_lie_in_the_partition_that_the_partitioner_names(golden) -> None:
    for partition, record in _metadata_records(golden):
        event = decode_event(record.value)
        topic_id_partition = event.segment_id.topic_id_partition
        assert metadata_partition(topic_id_partition, METADATA_PARTITION_COUNT) == partition


def test_events_are_what_kafka_prints(golden) -> None:
    for directory in golden.log_dir.glob("__remote_log_metadata-*"):
        dump = golden.dump(directory.name)
        for path in directory.glob("*.log"):
            data = path.read_bytes()
            events = [
                decode_event(record.value)
                for position, header in iterate_batches(data)
                for record in read_records(data, position, header)
            ]
            printed = [record["payload"] for record in dump[path.name].records]
            assert [_as_printed(event) for event in events] == printed


def _as_printed(event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> str:
    """Kafka's toString of the two events that it writes."""
    partition = event.segment_id.topic_id_partition
    segment_id = (
        f"RemoteLogSegmentId{{topicIdPartition={uuid_to_text(partition.topic_id)}:"
        f"{partition.topic}-{partition.partition}, id={uuid_to_text(event.segment_id.id)}}}"
    )
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return (
            f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment_id}, "
            f"customMetadata=Optional.empty, state={event.state.name}, "
            f"eventTimestampMs={event.event_timestamp_ms}, brokerId={event.broker_id}}}"
        )
    epochs = ", ".join(f"{e}={start}" for e, start in event.segment_leader_epochs.items())
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment_id}, "
        f"startOffset={event.start_offset}, endOffset={event.end_offset_inclusive}, "
        f"brokerId={event.broker_id}, maxTimestampMs={event.max_timestamp_ms}, "
        f"eventTimestampMs={event.event_timestamp_ms}, segmentLeaderEpochs={{{epochs}}}, "
        f"segmentSizeInBytes={event.segment_size_in_bytes}, customMetadata=Optional.empty, "
        f"state={event.state.name}, txnIdxEmpty={str(event.txn_index_empty).lower()}}}"
    )


@pytest.mark.parametrize("topic_name", ["tiered", "tiered-expired", "tiered-deleted"])
def test_folded_events_name_exactly_the_segments_in_the_remote_tier(golden, topic_name) -> None:
    events = [e for e in _events(golden) if e.segment_id.topic_id_partition.topic == topic_name]
    partition = events[0].segment_id.topic_id_partition
    cache = RemoteLogMetadataCache(partition)
    for event in events:
        if isinstance(event, RemoteLogSegmentMetadata):
            cache.apply_add(event)
        else:
            cache.apply_update(event)
    folder = golden.tiered_root / f"{topic_name}-0-{uuid_to_text(partition.topic_id)}"
    on_disk = {
        (match[1], match[2], path.stat().st_size)
        for path in folder.glob("*.log")
        if (match := re.fullmatch(r"(\d{20})-(.{22})\.log", path.name))
    }
    assert {
        (f"{s.start_offset:020}", uuid_to_text(s.segment_id.id), s.segment_size_in_bytes)
        for s in cache.segments()
    } == on_disk
    assert bool(on_disk) == (topic_name != "tiered-deleted")
