"""A crash right after a topic's removal is recorded leaves nothing of it in the bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.metadata.metadata_records import RemoveTopicRecord
from isotherm.testing.bucket_files import files_below
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.conditions import wait_until

TIMEOUT_S = 300
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}


def create_tiered(broker: EmbeddedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1, config=TIERED)])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(300):
        producer.produce(topic, bytes(10_000), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    log = broker.node.services.replica_manager.find_partition(topic, None, 0).log
    wait_until(lambda: len(log.segments()) == 1)


def objects(bucket: Path, topic: str) -> list[Path]:
    return sorted(path for path in files_below(bucket) if topic in str(path))


@pytest.mark.parametrize("level", [0, 1])
def test_deletion_that_was_recorded_and_not_begun_is_done_by_the_next_start(
    start_broker: Callable[..., EmbeddedBroker], tmp_path: Path, level: int
) -> None:
    settings = {"remote.log.metadata.compaction.initial.level": str(level)}
    bucket = tmp_path / "broker" / "bucket"
    broker = start_broker(settings)
    create_tiered(broker, "doomed")
    create_tiered(broker, "kept")
    kept = objects(bucket, "kept")
    assert kept
    assert objects(bucket, "doomed")
    services = broker.node.services
    topic_id = services.metadata.image.topics_by_name["doomed"].topic_id
    # The crash comes after the record: nothing that follows it happens.
    services.control_executor.submit(
        services.controller._commit,
        [RemoveTopicRecord(topic_id=topic_id)],
    ).result()
    broker.stop()
    start_broker(settings)
    wait_until(lambda: not objects(bucket, "doomed"))
    assert objects(bucket, "kept") == kept
