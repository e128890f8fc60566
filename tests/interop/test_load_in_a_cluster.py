"""A history is loaded in a cluster of three Isotherm brokers: every replica begins behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from isotherm.clock import SystemClock
from isotherm.remote.rewriting.journal import RewriteJournals
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.reading.brokers import KafkaBrokers, RequestSettings
from oracle.cluster_members import IsothermMember
from oracle.consumed_records import consume_all
from oracle.mixed_cluster import MixedCluster
from oracle.topics import wait_until
from tests.support.staged_history import stage_history

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

TIMEOUT_S = 300
TOPIC = "loaded"
COUNT = 20_000


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_replica_begins_behind_a_loaded_history(kafka_tools: Path, tmp_path: Path) -> None:
    settings = {
        "rsm.config.layout": "aiven",
        "rlmm.config.remote.log.rewrite.check.interval.ms": "300",
    }
    kinds = dict.fromkeys((1, 2, 3), IsothermMember)
    with MixedCluster(tmp_path / "cluster", kinds, settings) as cluster:
        tiered = {"remote.storage.enable": "true", "retention.ms": "-1"}
        cluster.create(TOPIC, [1, 2, 3], **tiered, **{"min.insync.replicas": "2"})
        bucket = ObjectStoreSettings(url=cluster.bucket.as_uri())
        storage = ObjectStoreRemoteStorageManager(
            bucket, store=open_object_store(bucket, create_folder=True)
        )
        journals = RewriteJournals(storage.client, storage.root_directory)
        brokers = KafkaBrokers(
            {"bootstrap.servers": cluster.servers}, SystemClock(), RequestSettings()
        )
        (partition,) = brokers.partitions([TOPIC])
        values = [b"%d-" % number + b"x" * 200 for number in range(COUNT)]
        stage_history(
            storage,
            journals,
            tmp_path / "job",
            partition,
            values,
            now_ms=SystemClock().now_ms(),
            segment_bytes=1_000_000,
            batch_size=16_384,
        )
        wait_until(lambda: not journals.list_runs(), "the adoption", TIMEOUT_S)
        # The journal goes when every in-sync replica has followed. The next leader has nothing
        # but what the first one had.
        cluster.members[1].kill()
        producer = Producer({"bootstrap.servers": cluster.servers, "acks": "all", "log_level": 0})
        for number in range(10):
            producer.produce(TOPIC, b"new-%d" % number)
        assert producer.flush(TIMEOUT_S) == 0
        read = [message.value for message in consume_all(cluster.servers, TOPIC)]
        assert read == [*values, *(b"new-%d" % number for number in range(10))]
