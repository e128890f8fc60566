"""The scrub of segments alone, without Spark, finds each planted kind of damage."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from isotherm.record.batch import build_batch
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.scrub.segment_scrub import SegmentScrubber
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentState
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition
from tests.support.planted_bucket import PlantedBucket
from tests.support.planted_damage import PLANTED, Damage, damage_table, plant_all
from tests.support.record_segments import RecordSegmentMaker

PAGE = Path(__file__).parents[4] / "docs" / "pipeline" / "planted-damage.md"
OF_HISTORIES = {
    FindingKind.HISTORY_GAP,
    FindingKind.DUPLICATE_SEGMENT,
    FindingKind.OUTSIDE_HISTORY,
    FindingKind.CONFLICTING_SEGMENT,
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    bucket = PlantedBucket(tmp_path_factory.mktemp("planted"))
    bucket.add_sound_topics()
    plant_all(bucket)
    return bucket


def kinds_in(bucket: PlantedBucket, topic: str) -> set[str]:
    scrubber = SegmentScrubber.of_bucket(bucket.settings)
    return {
        finding.kind
        for previous, segment in pairwise([None, *bucket.topics[topic].segments])
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        for finding in scrubber.scrub(segment, previous).findings
    }


@pytest.mark.parametrize("damage", PLANTED, ids=lambda damage: damage.name)
def test_planted_damage_is_named(planted: PlantedBucket, damage: Damage) -> None:
    found = kinds_in(planted, damage.name)
    assert found == {kind.value for kind in damage.scrub - OF_HISTORIES}


def test_sound_segments_have_no_findings(planted: PlantedBucket) -> None:
    assert kinds_in(planted, "sound-0") == set()


def test_records_below_the_log_start_have_no_epoch_in_the_metadata(tmp_path: Path) -> None:
    """The log start was inside the segment when it was copied: the copy has the batches below it,
    but its epochs begin at it."""
    bucket = PlantedBucket(tmp_path)
    topic = bucket.add_topic("cut")
    first = topic.segments[0]
    log_start_offset = first.start_offset + 7
    topic.segments[0] = replace(first, segment_leader_epochs={2: log_start_offset})
    topic.retell_manifest(first, segmentLeaderEpochs={"2": log_start_offset})
    position = topic.index_position(first, IndexType.LEADER_EPOCH)
    topic.change_bytes(first, "indexes", position, f"0\n1\n2 {log_start_offset}\n".encode())
    assert kinds_in(bucket, "cut") == set()


@pytest.mark.parametrize(
    ("timestamp_ms", "of_metadata", "is_right"),
    [(0, 0, True), (0, 5, False), (5, 4, False), (5, 5, True), (-1, 5, True)],
)
def test_largest_timestamp_of_the_log_is_that_of_the_metadata(
    tmp_path: Path, timestamp_ms: int, of_metadata: int, is_right: bool
) -> None:
    """Records may lie at the start of 1970. Records without a timestamp tell nothing."""
    settings = ObjectStoreSettings(url=(tmp_path / "bucket").as_uri())
    storage = ObjectStoreRemoteStorageManager(settings)
    owner = TopicIdPartition(uuid.UUID(int=1), "t", 0)
    batch = build_batch([(timestamp_ms, b"k", b"v", ())])
    segment = RecordSegmentMaker(tmp_path / "made", storage).tier(owner, [batch])
    segment = replace(segment, max_timestamp_ms=of_metadata)
    found = SegmentScrubber(storage, None).scrub(segment).findings
    kinds = [each.kind for each in found]
    assert kinds == [] if is_right else kinds == ["wrong-timestamp"]


def test_page_has_every_kind_of_damage() -> None:
    assert damage_table() in PAGE.read_text(encoding="utf-8")
