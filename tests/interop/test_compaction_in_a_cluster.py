"""A compaction in place, in a cluster of three Isotherm brokers: the leader is killed, and the
next publishes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from isotherm.clock import SystemClock
from isotherm.errors import IsothermError
from isotherm.remote.compaction.compacted_piece import CompactionRules
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.rewriting.journal import RewriteJournals, RunKind
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import uuid_to_text
from oracle.cluster_members import IsothermMember
from oracle.mixed_cluster import MixedCluster
from oracle.topics import wait_until
from tests.unit.remote.compaction.conftest import LocalCompaction

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

TIMEOUT_S = 300
TOPIC = "compacted"
KEYS = 50
COUNT = 24_000


def produce(cluster: MixedCluster) -> None:
    failed: list[KafkaError] = []
    settings = {"bootstrap.servers": cluster.servers, "acks": "all", "enable.idempotence": True}
    producer = Producer({**settings, "log_level": 0})
    for number in range(COUNT):
        producer.produce(
            TOPIC,
            b"%09d" % number + b"x" * 200,
            key=b"%d" % (number % KEYS),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def read(cluster: MixedCluster) -> dict[int, int]:
    """The number of the record at each offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[int, int] = {}

    def is_read() -> bool:
        for message in consumer.consume(5000, 1.0):
            error, offset = message.error(), message.offset()
            if error is None and offset is not None:
                found[offset] = int((message.value() or b"")[:9])
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                return True
        return False

    wait_until(is_read, f"the end of {TOPIC}", TIMEOUT_S)
    consumer.close()
    return found


def finished(cluster: MixedCluster) -> list[RemoteLogSegmentMetadata]:
    """The finished segments; none while the leaders of the metadata topic change."""
    try:
        topic = KafkaMetadataTopic({"bootstrap.servers": cluster.servers, "log_level": 0})
        folded = fold_metadata_topic(topic, lambda partition: partition.topic == TOPIC)
    except IsothermError:
        return []
    topic.close()
    return [
        segment
        for cache in folded.values()
        for segment in cache.segments()
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_next_leader_publishes_what_a_job_has_staged(kafka_tools: Path, tmp_path: Path) -> None:
    settings = {
        "rsm.config.layout": "aiven",
        "rlmm.config.remote.log.rewrite.check.interval.ms": "300",
    }
    kinds = dict.fromkeys((1, 2, 3), IsothermMember)
    with MixedCluster(tmp_path / "cluster", kinds, settings) as cluster:
        tiered = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
        local = {"local.retention.bytes": "1", "file.delete.delay.ms": "100"}
        cluster.create(TOPIC, [1, 2, 3], **tiered, **local)
        produce(cluster)
        wait_until(lambda: len(finished(cluster)) >= 4, "copied segments", TIMEOUT_S)
        before = sorted(finished(cluster), key=lambda each: each.start_offset)
        bucket = ObjectStoreSettings(url=cluster.bucket.as_uri())
        storage = ObjectStoreRemoteStorageManager(
            bucket, store=open_object_store(bucket, create_folder=False)
        )
        job = LocalCompaction(
            storage,
            RewriteJournals(storage.client, storage.root_directory),
            tmp_path / "job",
            CompactionRules(now_ms=SystemClock().now_ms(), delete_retention_ms=1000),
        )
        cluster.members[1].kill()
        staged = job.stage("run", before, in_place=True, keep_old_ms=0).replacements
        assert staged

        old = {each.old.segment_id for each in staged}
        new = {each.new.segment_id for each in staged}

        def is_published() -> bool:
            live = {segment.segment_id for segment in finished(cluster)}
            return new <= live and not old & live

        wait_until(is_published, "the compacted segments", TIMEOUT_S)
        assert all(objects_of(cluster, each) for each in new)
        wait_until(
            lambda: not any(objects_of(cluster, each) for each in old), "old objects", TIMEOUT_S
        )
        cluster.members[1].start()
        cluster.await_isr(TOPIC, {1, 2, 3})
        found = read(cluster)
    end = max(each.end_offset_inclusive for each in before)
    assert all(offset == number for offset, number in found.items())
    kept = {offset for offset in found if offset <= end}
    newest = {end - back for back in range(KEYS)}
    assert newest <= kept
    assert len(kept) < end / 2
    assert set(range(end + 1, COUNT)) <= found.keys()


def objects_of(cluster: MixedCluster, segment: RemoteLogSegmentId) -> list[Path]:
    text = uuid_to_text(segment.id)
    return [path for path in cluster.bucket.rglob("*") if text in path.name]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_replica_drops_its_local_copies_of_erased_records(
    kafka_tools: Path, tmp_path: Path
) -> None:
    """One of them is down while the erasure is published, and drops them when it is back."""
    settings = {
        "rsm.config.layout": "aiven",
        "rlmm.config.remote.log.rewrite.check.interval.ms": "300",
    }
    kinds = dict.fromkeys((1, 2, 3), IsothermMember)
    with MixedCluster(tmp_path / "cluster", kinds, settings) as cluster:
        tiered = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
        local = {"local.retention.bytes": "-1", "file.delete.delay.ms": "100"}
        cluster.create(TOPIC, [1, 2, 3], **tiered, **local)
        produce(cluster)
        wait_until(lambda: len(finished(cluster)) >= 4, "copied segments", TIMEOUT_S)
        before = sorted(finished(cluster), key=lambda each: each.start_offset)
        bucket = ObjectStoreSettings(url=cluster.bucket.as_uri())
        storage = ObjectStoreRemoteStorageManager(
            bucket, store=open_object_store(bucket, create_folder=False)
        )
        journals = RewriteJournals(storage.client, storage.root_directory)
        job = LocalCompaction(
            storage,
            journals,
            tmp_path / "job",
            CompactionRules(now_ms=SystemClock().now_ms(), delete_retention_ms=1000),
        )
        cluster.members[3].kill()
        # What an erasure leaves may be any records.
        staged = job.stage("run", before, in_place=True, kind=RunKind.ERASURE).replacements
        end = max(each.old.end_offset_inclusive for each in staged) + 1
        wait_until(
            lambda: any(run.dropped_by == {1, 2} for run in journals.list_runs()),
            "two brokers without local copies",
            TIMEOUT_S,
        )
        assert local_bases(cluster, 3)[0] == 0
        cluster.members[3].start()
        wait_until(lambda: journals.list_runs() == [], "the end of the run", TIMEOUT_S)
        for node in kinds:
            assert local_bases(cluster, node)[0] >= end
        cluster.await_isr(TOPIC, {1, 2, 3})
        found = read(cluster)
    assert all(offset == number for offset, number in found.items())
    assert set(range(end, COUNT)) <= found.keys()


def local_bases(cluster: MixedCluster, node: int) -> list[int]:
    """The base offsets of a broker's local segments, and of those that wait for their deletion."""
    logs = cluster.members[node].data_dir.glob(f"{TOPIC}-0/*.log*")
    return sorted(int(path.name.partition(".")[0]) for path in logs)
