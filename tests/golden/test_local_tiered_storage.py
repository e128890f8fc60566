"""Segments that Kafka's LocalTieredStorage keeps, read through our storage manager."""

from __future__ import annotations

from isotherm.record.batch import iterate_batches, read_records
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.segment.offset_index import read_offset_index
from isotherm.segment.producer_snapshot import read_producer_snapshot


def _segments(golden, topic: str) -> list[RemoteLogSegmentMetadata]:
    """The topic's segments that are finished in Kafka's metadata, by start offset."""
    cache: RemoteLogMetadataCache | None = None
    for path in golden.log_dir.glob("__remote_log_metadata-*/*.log"):
        data = path.read_bytes()
        for position, header in iterate_batches(data):
            for record in read_records(data, position, header):
                event = decode_event(record.value)
                partition = event.segment_id.topic_id_partition
                if partition.topic != topic:
                    continue
                cache = cache or RemoteLogMetadataCache(partition)
                is_new = isinstance(event, RemoteLogSegmentMetadata)
                (cache.apply_add if is_new else cache.apply_update)(event)
    assert cache is not None
    return sorted(cache.segments(), key=lambda segment: segment.start_offset)


def _open_storage(golden) -> ObjectStoreRemoteStorageManager:
    url = (golden.root / "remote").resolve().as_uri()
    return ObjectStoreRemoteStorageManager.from_config(
        {"url": url, "layout": "local-tiered-storage"}
    )


def test_remote_segments_hold_the_records_that_the_consumer_got(golden) -> None:
    segments = _segments(golden, "tiered")
    storage = _open_storage(golden)
    records = []
    for segment in segments:
        data = bytes(storage.fetch_log_segment(segment, 0))
        assert len(data) == segment.segment_size_in_bytes
        for position, header in iterate_batches(data):
            if not header.is_control:
                records += read_records(data, position, header)
    storage.close()
    end_offset = segments[-1].end_offset_inclusive
    expected = [r for r in golden.records("tiered") if r.offset <= end_offset]
    assert [record._replace(sequence=-1) for record in records] == expected


def test_indexes_of_remote_segments_are_those_beside_them(golden) -> None:
    storage = _open_storage(golden)
    for segment in _segments(golden, "tiered"):
        base_offset = segment.start_offset
        positions = read_offset_index(storage.fetch_index(segment, IndexType.OFFSET), base_offset)
        assert all(position < segment.segment_size_in_bytes for _, position in positions)
        epochs = read_leader_epoch_checkpoint(storage.fetch_index(segment, IndexType.LEADER_EPOCH))
        assert {e.epoch: max(e.start_offset, base_offset) for e in epochs} == dict(
            segment.segment_leader_epochs
        )
        snapshot = storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        assert all(
            entry.last_offset <= segment.end_offset_inclusive
            for entry in read_producer_snapshot(snapshot)
        )
    storage.close()
