"""Kafka's records of share groups in `__consumer_offsets`: decoded and encoded again, they are the
same bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.coordinators.groups.group_records import encode_key, encode_value
from isotherm.broker.coordinators.groups.share_group_records import decode_share_record
from isotherm.record.batch import iterate_batches, read_records
from oracle.kafka import EAGER_SETTINGS, running_kafka
from tests.support.conditions import wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

TIMEOUT_S = 300
TOPIC, GROUP = "shared", "workers"
# The member, the group, its target, the member's target and assignment, initialized partitions.
TYPES = {10, 11, 12, 13, 14, 15}


def test_kafkas_records_of_a_share_group_are_read_and_written(
    kafka_tools: Path, tmp_path: Path
) -> None:
    with running_kafka(tmp_path, EAGER_SETTINGS) as kafka:
        servers = kafka.bootstrap_server
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": servers})
        for _ in range(2):
            with closing(_consumer(servers)) as first, closing(_consumer(servers)) as second:
                wait_until(_gets_records(producer, first), "records", timeout_s=TIMEOUT_S)
                wait_until(_gets_records(producer, second), "records", timeout_s=TIMEOUT_S)
        log_dir = kafka.log_dir
    seen = set()
    tombstones = set()
    for key, value in _records(log_dir):
        record = decode_share_record(key, value)
        if record is None:
            continue
        assert (encode_key(record.key), encode_value(record.value)) == (key, value)
        assert record.key.group_id == GROUP
        (tombstones if value is None else seen).add(record.key.__api_key__)
    assert seen == TYPES
    # Of members that have left.
    assert tombstones >= {10, 13, 14}


def _consumer(servers: str) -> ShareConsumer:
    consumer = ShareConsumer(
        {"bootstrap.servers": servers, "group.id": GROUP, "client.id": "a client"}
    )
    consumer.subscribe([TOPIC])
    return consumer


def _gets_records(producer: Producer, consumer: ShareConsumer) -> Callable[[], bool]:
    def gets_records() -> bool:
        for partition in range(3):
            producer.produce(TOPIC, b"value", partition=partition)
        producer.flush(TIMEOUT_S)
        return bool([each for each in consumer.poll(0.5) if each.error() is None])

    return gets_records


def _records(log_dir: Path) -> list[tuple[bytes, bytes | None]]:
    return [
        (record.key or b"", record.value)
        for path in sorted(log_dir.glob("__consumer_offsets-*/*.log"))
        for data in [path.read_bytes()]
        for position, header in iterate_batches(data)
        if not header.is_control
        for record in read_records(data, position, header)
    ]
