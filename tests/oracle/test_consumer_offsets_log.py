"""Group records both ways: we decode and encode Kafka's, and Kafka's tool dumps ours."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.coordinators.groups.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.record.batch import iterate_batches, read_records
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.dump_text import parse_dump
from oracle.kafka import KafkaOracle, dump_log_segments

TIMEOUT_S = 300
OFFSETS_TOPIC = "__consumer_offsets"
OFFSET_COMMIT, CLASSIC_GROUP = 1, 2
CONSUMER_GROUP_TYPES = {3, 5, 6, 7, 8}


def use_groups(bootstrap_servers: str) -> None:
    """Use a classic and a consumer group: two members, a rebalance, a commit, and a member that
    leaves.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic("grouped", 4)])["grouped"].result()
    for protocol in ("classic", "consumer"):
        with closing(_member(bootstrap_servers, protocol)) as first:
            with closing(_member(bootstrap_servers, protocol)) as second:
                _await_shares([first, second])
                first.commit(
                    offsets=[TopicPartition("grouped", 0, 7, metadata="noted")], asynchronous=False
                )
            _await_shares([first])


def _member(bootstrap_servers: str, protocol: str) -> Consumer:
    member = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"group-{protocol}",
            "group.protocol": protocol,
            "client.id": "a client",
            "enable.auto.commit": False,
        }
    )
    member.subscribe(["grouped"])
    return member


def _await_shares(members: Sequence[Consumer]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while any(len(member.assignment()) != 4 // len(members) for member in members):
        assert time.monotonic() < deadline
        for member in members:
            member.poll(0.05)


def records_of(log_dir: Path) -> list[tuple[bytes, bytes | None]]:
    return [
        (record.key, record.value)
        for path in sorted(log_dir.glob(f"{OFFSETS_TOPIC}-*/*.log"))
        for data in [path.read_bytes()]
        for position, header in iterate_batches(data)
        if not header.is_control
        for record in read_records(data, position, header)
    ]


@pytest.fixture(scope="module")
def written_by_kafka(kafka: KafkaOracle) -> list[tuple[bytes, bytes | None]]:
    use_groups(kafka.bootstrap_server)
    return records_of(kafka.log_dir)


def test_records_of_kafka_encode_to_the_bytes_it_wrote(written_by_kafka) -> None:
    seen = set()
    for key, value in written_by_kafka:
        decoded = decode_record(key, value)
        assert decoded is not None, key
        assert encode_key(decoded.key) == key
        assert encode_value(decoded.value) == value
        if value is not None:
            seen.add(decoded.key.__api_key__)
    assert seen >= {OFFSET_COMMIT, CLASSIC_GROUP} | CONSUMER_GROUP_TYPES


def test_kafkas_tool_reads_what_isotherm_writes(kafka_tools: Path, tmp_path: Path) -> None:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "offsets.topic.num.partitions": "1",
    }
    with EmbeddedBroker(tmp_path, settings) as broker:
        use_groups(broker.bootstrap_servers)
        (log_dir,) = broker.config.log_dirs
    (segment,) = log_dir.glob(f"{OFFSETS_TOPIC}-0/*.log")
    dump = parse_dump(dump_log_segments([segment], "--offsets-decoder"))[str(segment)]
    assert dump.remarks == []
    written = records_of(log_dir)
    assert len(dump.records) == len(written) > 0
    types = set()
    for printed, (key, value) in zip(dump.records, written, strict=True):
        decoded = decode_record(key, value)
        shown_key = json.loads(printed["key"])
        types.add(int(shown_key["type"]))
        group_id = getattr(decoded.key, "group", None) or decoded.key.group_id
        assert group_id in (shown_key["data"].get("group"), shown_key["data"].get("groupId"))
        if value is None:
            continue
        shown = json.loads(printed["payload"])
        assert int(shown["version"]) == decoded.value.__version__
        if isinstance(decoded.key, ConsumerGroupMetadataKey):
            assert isinstance(decoded.value, ConsumerGroupMetadataValue)
            assert shown["data"]["epoch"] == decoded.value.epoch
    assert types == {OFFSET_COMMIT, CLASSIC_GROUP} | CONSUMER_GROUP_TYPES
