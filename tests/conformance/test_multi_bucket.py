"""The example of a user's storage manager passes the contract's suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from examples.multi_bucket.storage import MultiBucketStorageManager
from isotherm.errors import ConfigError, CorruptMetadataError
from isotherm.testing.conformance.random_histories import RandomHistoriesConformance
from isotherm.testing.conformance.remote_storage import (
    FolderAccess,
    RemoteStorageManagerConformance,
    StoreUnderTest,
    copied,
)
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.segment_files import SegmentMaker
from tests.support.conditions import wait_until

LOCAL_TOPIC_LENGTH_MAX = 220


def config_of(folder: Path, *names: str, **more: str) -> dict[str, str]:
    urls = {f"bucket.{name}.url": (folder / name).as_uri() for name in names}
    return {"buckets": ",".join(names), **urls, **more}


def store_of(folder: Path, *names: str, **more: str) -> StoreUnderTest:
    manager = MultiBucketStorageManager.from_config(config_of(folder, *names, **more))
    return StoreUnderTest(manager, FolderAccess(folder))


class TestMultiBucket(RandomHistoriesConformance, RemoteStorageManagerConformance):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return store_of(tmp_path / "buckets", "near", "far", "third")


class TestMultiBucketWithCustomMetadataOfItsOwn(RemoteStorageManagerConformance):
    """The inner manager's custom metadata fits beside the bucket's name."""

    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        more = {"custom.metadata.fields.include": "REMOTE_SIZE", "compression.enabled": "true"}
        return store_of(tmp_path / "buckets", "near", "far", **more)


def test_segments_are_spread_and_found_after_buckets_were_added(tmp_path: Path) -> None:
    maker = SegmentMaker(tmp_path / "segments")
    segments = [maker.segment(start_offset=number * 100) for number in range(12)]
    store = store_of(tmp_path, "near", "far")
    kept = [copied(store, segment) for segment in segments]
    used = {name.partition("/")[0] for name in store.raw.object_keys()} & {"near", "far"}
    assert used == {"near", "far"}
    later = store_of(tmp_path, "third", "far", "near")
    for segment, metadata in zip(segments, kept, strict=True):
        assert later.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()
        later.manager.delete_log_segment_data(metadata)
    left = {name.partition("/")[0] for name in later.raw.object_keys()}
    assert not left & {"near", "far", "third"}


def test_segment_of_a_bucket_that_is_not_configured_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path, "near")
    metadata = copied(store, SegmentMaker(tmp_path / "segments").segment())
    with pytest.raises(CorruptMetadataError, match="configured=far"):
        store_of(tmp_path, "far").manager.fetch_log_segment(metadata, 0)


@pytest.mark.parametrize("names", [(), ("x" * 33,)])
def test_buckets_that_cannot_be_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="key=buckets"):
        store_of(tmp_path, *names)


def test_broker_tiers_into_several_buckets_and_reads_back(
    tmp_path: Path, start_broker: Callable[..., EmbeddedBroker]
) -> None:
    keys = config_of(tmp_path / "buckets", "near", "far")
    broker = start_broker(
        {
            "remote.log.storage.manager.class.name": (
                "examples.multi_bucket.storage.MultiBucketStorageManager"
            ),
            **{f"rsm.config.{key}": value for key, value in keys.items()},
        }
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic(
        "spread",
        1,
        config={
            "remote.storage.enable": "true",
            "segment.bytes": "1048576",
            "local.retention.bytes": "1",
        },
    )
    admin.create_topics([topic])["spread"].result(300)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    log = broker.node.services.replica_manager.find_partition("spread", None, 0).log
    values: list[bytes] = []
    used: set[str] = set()
    # A segment's id is random and decides where it goes: with 25 each bucket gets one.
    while len(used) < 2 and len(values) < 250:
        for _ in range(30):
            values.append(b"%07d" % len(values) + bytes(100_000))
            producer.produce("spread", values[-1])
            producer.flush(300)
        wait_until(lambda: log.local_log_start_offset >= len(values) - 20, "the closed segments")
        buckets = (tmp_path / "buckets").iterdir()
        used = {bucket.name for bucket in buckets if any(bucket.rglob("*.log"))}
    assert used == {"near", "far"}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["spread"])
    found = []
    while len(found) < len(values):
        message = consumer.poll(300)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    assert found == values
