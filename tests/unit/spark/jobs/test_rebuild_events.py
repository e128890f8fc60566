"""Events of rebuilt segments, and the mapping of topic ids, without Spark."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from isotherm.errors import PolicyViolationError
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.cost import Cost, check_cost
from isotherm.spark.jobs.rebuild import (
    events_of,
    findings_of,
    kept_segments,
    lineage,
    renamed_segment,
)
from isotherm.spark.metadata.segment_frames import SEGMENT_ARROW, segment_row
from isotherm.spark.plan.planning import lineage_pieces
from isotherm.types import TopicIdPartition, uuid_to_text
from tests.support.bucket_inventory import read_inventory
from tests.support.bucket_queries import QueriedBucket
from tests.support.planted_bucket import PlantedBucket
from tests.support.record_segments import RecordSegmentMaker


@pytest.fixture
def bucket(tmp_path: Path) -> PlantedBucket:
    planted = PlantedBucket(tmp_path)
    planted.add_sound_topics()
    return planted


def segments_of(bucket: PlantedBucket) -> list[RemoteLogSegmentMetadata]:
    inventory = read_inventory(open_for_reading(bucket.settings), bucket.layout)
    return [
        segment for segment in inventory.segments if segment.topic_id_partition.topic == "sound-0"
    ]


def test_events_fold_to_what_the_manifests_say(bucket: PlantedBucket) -> None:
    segments = segments_of(bucket)
    cache = RemoteLogMetadataCache(segments[0].topic_id_partition)
    for segment in segments:
        for row in events_of(segment, 50, 0):
            assert row["metadata_partition"] == metadata_partition(segment.topic_id_partition, 50)
            event = decode_event(row["value"])
            if isinstance(event, RemoteLogSegmentMetadataUpdate):
                cache.apply_update(event)
            else:
                assert isinstance(event, RemoteLogSegmentMetadata)
                cache.apply_add(event)
    assert cache.segments() == segments


def test_keyed_state_is_under_the_key_of_its_segment(bucket: PlantedBucket) -> None:
    segment = segments_of(bucket)[-1]
    (row,) = events_of(segment, 50, 1)
    topic_id = uuid_to_text(segment.topic_id_partition.topic_id)
    assert row["key"].decode() == f"{topic_id}:0:{segment.end_offset_inclusive}:3"


def test_objects_of_a_mapped_topic_are_found_where_they_are(bucket: PlantedBucket) -> None:
    for segment in segments_of(bucket):
        old, new = segment.topic_id_partition.topic_id, uuid.UUID(int=99)
        mapping = {uuid_to_text(old): uuid_to_text(new)}
        renamed = renamed_segment(segment, bucket.settings, mapping)
        assert renamed.topic_id_partition.topic_id == new
        assert bucket.layout.object_keys(renamed) == bucket.layout.object_keys(segment)


def test_lineage_has_every_epoch_once(bucket: PlantedBucket) -> None:
    assert [tuple(entry) for entry in lineage(lineage_pieces(segments_of(bucket)))] == [
        (2, 0),
        (3, 56),
    ]


def test_job_beyond_its_bytes_is_refused() -> None:
    cost = Cost(gets=10, bytes_read=1000) + Cost(lists=2, tasks=2)
    assert (cost.gets, cost.lists, cost.tasks) == (10, 2, 2)
    check_cost(cost, 1000)
    with pytest.raises(PolicyViolationError, match="max_bytes=999"):
        check_cost(cost, 999)


@pytest.mark.parametrize("told", [{0: 100}, {0: 100, 1: 150}])
def test_a_partition_is_left_out_whose_log_may_be_that_of_a_deposed_leader(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
    told: dict[int, int],
) -> None:
    made = QueriedBucket(storage_settings, storage, maker, owner)
    before, deposed = made.store(0, 100), made.store(100, 196)
    elected = made.store(100, 180, epochs={0: 100, 1: 150})
    segments = [before, deposed, replace(elected, segment_leader_epochs=told)]
    segments.append(made.store(180, 220, epochs={1: 180}))
    group = pa.Table.from_pylist([segment_row(segment) for segment in segments], SEGMENT_ARROW)
    kept = kept_segments(group, storage_settings).num_rows
    found = findings_of(group, storage_settings).to_pylist()
    wrong = [each for each in found if each["kind"] == FindingKind.WRONG_EPOCH]
    if 1 in told:
        assert (kept, wrong) == (4, [])
    else:
        (finding,) = wrong
        assert kept == 0
        assert finding["segment_id"] == uuid_to_text(elected.segment_id.id)
        assert "another leader epoch" in finding["detail"]
