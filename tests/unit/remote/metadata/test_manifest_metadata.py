"""What repeated listings of a bucket read, and what a listing shows that loses a page."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from pathlib import Path

import pytest

from isotherm.remote.metadata.manifest_metadata import ManifestMetadataManager, ManifestReader
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage import inventory
from isotherm.remote.storage.inventory import LISTINGS
from isotherm.remote.storage.object_client import ObjectClient, StoredObject
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import SegmentMaker
from isotherm.types import TopicIdPartition

PLACES = [TopicIdPartition(uuid.UUID(int=7), "t", number) for number in range(3)]


class Bucket:
    """A bucket, a reader of it, and what the reader has told so far. `listed` counts the listings
    of each partition since the last call of `look`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "bucket"
        self._maker = SegmentMaker(folder / "segments")
        settings = ObjectStoreSettings(url=self.folder.as_uri())
        self._storage = ObjectStoreRemoteStorageManager(settings)
        self.metadata = ManifestMetadataManager()
        self.segments = [self.copy(place, number) for place in PLACES for number in (0, 1)]
        self.listed: Counter[int] = Counter()
        self.loses_objects = False
        self._list_folder = inventory._list_folder
        monkeypatch.setattr(inventory, "_list_folder", self._list)
        self._reader = ManifestReader(settings)

    def copy(self, place: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
        made = self._maker.segment(place, start_offset=number * 1000)
        self._storage.copy_log_segment_data(made.metadata, made.data)
        return made.metadata

    def delete(self, segment: RemoteLogSegmentMetadata) -> None:
        self._storage.delete_log_segment_data(segment)

    def _list(self, client: ObjectClient, folder: str) -> list[StoredObject]:
        number = int(folder.rstrip("/").rpartition("/")[2])
        self.listed[number] += 1
        objects = self._list_folder(client, folder)
        # One listing of two lacks all objects but the first.
        return objects[:1] if self.loses_objects and self.listed[number] % 2 else objects

    def look(self) -> set[int]:
        """List the bucket. Returns the partitions that differ."""
        self.listed.clear()
        content = self._reader.read(self.metadata.segments)
        return {place.partition for place in self.metadata.take_over(content)}

    def ids(self) -> set[uuid.UUID]:
        return set(self.metadata.segments)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    (tmp_path / "bucket").mkdir()
    return Bucket(tmp_path, monkeypatch)


def ids_of(segments: list[RemoteLogSegmentMetadata]) -> set[uuid.UUID]:
    return {each.segment_id.id for each in segments}


def test_a_partition_that_is_as_before_is_listed_once(bucket: Bucket) -> None:
    assert bucket.look() == {0, 1, 2}
    assert bucket.listed == dict.fromkeys(range(3), LISTINGS)
    assert bucket.look() == set()
    assert bucket.listed == dict.fromkeys(range(3), 1)
    assert bucket.ids() == ids_of(bucket.segments)


def test_what_a_partition_gains_and_loses_is_seen(bucket: Bucket) -> None:
    bucket.look()
    new = bucket.copy(PLACES[1], 2)
    first = bucket.segments[0]
    bucket.delete(first)
    assert bucket.look() == {0, 1}
    assert bucket.listed == {0: LISTINGS, 1: LISTINGS, 2: 1}
    assert bucket.ids() == ids_of([*bucket.segments[1:], new])
    # The last of a partition, whose folder goes with it.
    bucket.delete(bucket.segments[1])
    assert bucket.look() == {0}
    assert bucket.ids() == ids_of([*bucket.segments[2:], new])


def test_a_listing_that_lost_a_page_is_no_measure_for_the_next_one(bucket: Bucket) -> None:
    bucket.loses_objects = True
    for _ in range(3):
        bucket.look()
        # The other listing has shown them.
        assert bucket.ids() == ids_of(bucket.segments)
        assert bucket.listed == dict.fromkeys(range(3), LISTINGS)
    bucket.loses_objects = False
    assert bucket.look() == bucket.look() == set()
    assert bucket.listed == dict.fromkeys(range(3), 1)


def test_a_damaged_segment_is_told_once_and_read_when_its_objects_differ(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    damaged = bucket.segments[0]
    (manifest,) = bucket.folder.glob(f"*/0/{0:020}-*.rsm-manifest")
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    others = ids_of(bucket.segments) - ids_of([damaged])
    for _ in range(3):
        bucket.look()
        assert bucket.ids() == others
    # Another segment of its partition.
    new = bucket.copy(PLACES[0], 2)
    assert bucket.look() == {0}
    assert bucket.ids() == others | ids_of([new])
    assert caplog.text.count("is damaged and left out") == 1
    manifest.write_bytes(whole)
    assert bucket.look() == {0}
    assert bucket.ids() == ids_of([*bucket.segments, new])
