"""The inventory of a bucket: segments, uncommitted copies, damage and foreign objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from isotherm.errors import CorruptMetadataError, CorruptObjectError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.inventory import list_segment_objects
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import SegmentMaker
from tests.support.bucket_inventory import Inventory, read_inventory


class Bucket:
    """A bucket in memory, with copied segments and its inventory."""

    def __init__(self, tmp_path: Path, **config: str) -> None:
        self.maker = SegmentMaker(tmp_path)
        self.settings = ObjectStoreSettings.from_config({"url": "memory://", **config})
        self.memory = MemoryStore()
        self.client = ObjectClient(self.settings, self.memory)
        self.layout = self.settings.create_layout()
        self.manager = ObjectStoreRemoteStorageManager(self.settings, store=self.memory)

    def copy(self, topic: str = "flights", **options: int) -> RemoteLogSegmentMetadata:
        segment = self.maker.segment(self.maker.partition(topic), **options)
        self.manager.copy_log_segment_data(segment.metadata, segment.data)
        return replace(segment.metadata, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED)

    def read(self, *topics: str) -> Inventory:
        return read_inventory(self.client, self.layout, lambda topic: not topics or topic in topics)

    def key(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
        (key,) = (key for key in self.layout.object_keys(metadata) if key.endswith("." + suffix))
        return key


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


@pytest.mark.parametrize("prefix", ["", "folder/", "name-", "folder/name-"])
def test_inventory_gives_back_what_was_copied(tmp_path: Path, prefix: str) -> None:
    bucket = Bucket(tmp_path, **{"key.prefix": prefix})
    copied = [bucket.copy(topic, start_offset=5) for topic in ("b", "a", "a-b")]
    expected = sorted(copied, key=lambda metadata: metadata.topic_id_partition.topic)
    assert bucket.read() == Inventory(segments=expected)


def test_inventory_reads_only_the_wanted_topics(bucket: Bucket) -> None:
    """`flights` is a prefix of `flights-old`, which must not be read."""
    wanted = bucket.copy("flights")
    bucket.copy("flights-old")
    assert bucket.read("flights").segments == [wanted]


def test_empty_bucket_has_an_empty_inventory(bucket: Bucket) -> None:
    assert bucket.read() == Inventory()


def test_foreign_objects_are_passed_over(bucket: Bucket) -> None:
    metadata = bucket.copy()
    obstore.put(bucket.memory, "README", b"hello")
    obstore.put(bucket.memory, "other/thing", b"hello")
    directory = bucket.key(metadata, "log").rpartition("/")[0]
    obstore.put(bucket.memory, directory + "/notes.txt", b"hello")
    assert bucket.read() == Inventory(segments=[metadata])


def test_segment_without_manifest_is_uncommitted(bucket: Bucket) -> None:
    metadata = bucket.copy(size=777)
    obstore.delete(bucket.memory, bucket.key(metadata, "rsm-manifest"))
    inventory = bucket.read()
    assert (inventory.segments, inventory.damaged) == ([], [])
    (objects,) = inventory.uncommitted
    assert objects.segment_id == metadata.segment_id
    assert set(objects.objects) == {"log", "indexes"}
    assert objects.size > 777


def test_unreadable_manifest_is_damage_that_names_the_object(bucket: Bucket) -> None:
    metadata = bucket.copy()
    obstore.put(bucket.memory, bucket.key(metadata, "rsm-manifest"), b"{}")
    (damaged,) = bucket.read().damaged
    assert damaged.objects.segment_id == metadata.segment_id
    assert isinstance(damaged.error, CorruptMetadataError)
    assert bucket.key(metadata, "rsm-manifest") in str(damaged.error)


@pytest.mark.parametrize("content", [None, b"short"])
def test_log_object_missing_or_short_is_damage(bucket: Bucket, content: bytes | None) -> None:
    metadata = bucket.copy()
    key = bucket.key(metadata, "log")
    if content is None:
        obstore.delete(bucket.memory, key)
    else:
        obstore.put(bucket.memory, key, content)
    inventory = bucket.read()
    assert inventory.segments == []
    assert isinstance(inventory.damaged[0].error, CorruptObjectError)


def test_manifest_of_another_segment_is_damage(bucket: Bucket) -> None:
    first, second = bucket.copy(), bucket.copy()
    manifest = obstore.get(bucket.memory, bucket.key(first, "rsm-manifest")).bytes()
    obstore.put(bucket.memory, bucket.key(second, "rsm-manifest"), manifest)
    inventory = bucket.read()
    assert inventory.segments == [first]
    assert "another segment" in str(inventory.damaged[0].error)


def test_segment_deleted_meanwhile_is_in_no_list(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = bucket.copy()
    get = bucket.client.get

    def delete_then_get(key: str, size_max: int) -> bytes:
        bucket.manager.delete_log_segment_data(metadata)
        return get(key, size_max)

    monkeypatch.setattr(bucket.client, "get", delete_then_get)
    assert bucket.read() == Inventory()


def test_layout_without_manifests_lists_objects_only(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, layout="local-tiered-storage")
    metadata = bucket.copy("a-topic", start_offset=12)
    (objects,) = list_segment_objects(bucket.client, bucket.layout)
    assert (objects.segment_id, objects.start_offset) == (metadata.segment_id, 12)
    assert set(objects.objects) == {
        "log",
        "index",
        "timeindex",
        "leader_epoch_checkpoint",
        "snapshot",
    }
