"""Requests of kafka-python's administrator that test_admin_clients.py does not cover."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import (
        ConfigResource,
        ConfigResourceType,
        KafkaAdminClient,
        NewTopic,
        OffsetSpec,
        UpdateFeatureType,
    )
    from kafka.structs import OffsetAndMetadata

from isotherm.testing.embedded_broker import EmbeddedBroker

TIMEOUT_S = 300
RECORDS = 10
_numbers = itertools.count()


@pytest.fixture(scope="module")
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def topic(admin: KafkaAdminClient, broker: EmbeddedBroker) -> str:
    """A topic with RECORDS records in its one partition."""
    name = f"asked-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 1, 1, topic_configs={"retention.ms": "-1"})])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number in range(RECORDS):
        producer.send(name, b"%d" % number, partition=0, timestamp_ms=1000 * number)
    producer.flush(TIMEOUT_S)
    producer.close()
    return name


@pytest.fixture
def group(topic: str, broker: EmbeddedBroker) -> str:
    """A group that has committed offset 4."""
    name = f"group-of-{topic}"
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=name)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(4, "note", -1)})
    consumer.close()
    return name


def test_offsets_are_listed_by_every_spec(admin: KafkaAdminClient, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    found = {
        spec.name: admin.list_partition_offsets({partition: spec})[partition].offset
        for spec in OffsetSpec
    }
    assert found == {
        "LATEST": RECORDS,
        "EARLIEST": 0,
        "MAX_TIMESTAMP": RECORDS - 1,
        "EARLIEST_LOCAL": 0,
        "LATEST_TIERED": -1,
    }


def test_group_offsets_are_listed_altered_reset_and_deleted(
    admin: KafkaAdminClient, topic: str, group: str
) -> None:
    partition = TopicPartition(topic, 0)

    def committed() -> dict[TopicPartition, int]:
        listed = admin.list_group_offsets({group: None})[group]
        return {each: found.offset for each, found in listed.items()}

    assert committed() == {partition: 4}
    admin.alter_group_offsets(group, {partition: OffsetAndMetadata(6, "", -1)})
    assert committed() == {partition: 6}
    admin.reset_group_offsets(group, {partition: OffsetSpec.EARLIEST})
    assert committed() == {partition: 0}
    admin.delete_group_offsets(group, [partition])
    assert committed() == {}


def test_groups_are_listed_described_and_deleted(admin: KafkaAdminClient, group: str) -> None:
    states = {each["group_id"]: each["group_state"] for each in admin.list_groups()}
    assert states[group] == "Empty"
    assert admin.describe_groups([group])[group]["error"] is None
    assert admin.delete_groups([group]) == {group: "OK"}
    assert group not in {each["group_id"] for each in admin.list_groups()}


def test_configs_are_altered_and_reset(admin: KafkaAdminClient, topic: str) -> None:
    def changed() -> set[str]:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return set(described["topic"][topic])

    assert changed() == {"retention.ms"}
    settings = {"retention.bytes": "77"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
    assert changed() == {"retention.ms", "retention.bytes"}
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.bytes"])])
    assert changed() == {"retention.ms"}


def test_records_are_deleted(admin: KafkaAdminClient, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 6})[partition]["low_watermark"] == 6


def test_producers_and_transactions_are_described(
    admin: KafkaAdminClient, topic: str, broker: EmbeddedBroker
) -> None:
    partition, name = TopicPartition(topic, 0), f"of-{topic}"
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open", partition=0).get(TIMEOUT_S)
    (described,) = admin.describe_producers([partition])[partition].active_producers
    assert described.current_transaction_start_offset == RECORDS
    (listed,) = admin.list_transactions()[broker.config.node_id]
    assert (listed.transactional_id, listed.producer_id) == (name, described.producer_id)
    assert admin.describe_transactions([name])[name].topic_partitions == {partition}
    assert admin.find_hanging_transactions() == []
    producer.abort_transaction()
    producer.close()


def test_cluster_is_described_and_its_features_are_changed(
    admin: KafkaAdminClient, topic: str
) -> None:
    feature = "transaction.version"
    for kind, level in ((UpdateFeatureType.SAFE_DOWNGRADE, 1), (UpdateFeatureType.UPGRADE, 2)):
        assert admin.update_features({feature: (kind, level)}) == {feature: "OK"}
    (described,) = admin.describe_topic_partitions([topic])["topics"]
    assert [each["leader_id"] for each in described["partitions"]] == [1]
    assert admin.api_versions()
    elected = admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
    assert "partition=asked-" in str(elected)
