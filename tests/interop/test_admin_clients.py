"""Administration by the admin clients of librdkafka and kafka-python."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.conditions import wait_until

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePatternFilter,
    )
    from kafka.admin import ResourceType as PythonResourceType
    from kafka.errors import SecurityDisabledError

from isotherm.testing.bucket_files import files_below
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker

TIMEOUT_S = 300
_numbers = itertools.count()


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def python_admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def topic(admin: AdminClient) -> Callable[..., str]:
    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"admin-{next(_numbers)}"
        only(admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]))
        return name

    return make


def only(futures: Any) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def error_of(futures: Any) -> int:
    with pytest.raises(KafkaException) as raised:
        only(futures)
    return int(raised.value.args[0].code())


def produce(broker: EmbeddedBroker, topic: str, count: int, size: int = 10, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **config})
    for _ in range(count):
        producer.produce(topic, b"x" * size, partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def start_offset(admin: AdminClient, topic: str) -> int:
    asked = {TopicPartition(topic, 0): OffsetSpec.earliest()}
    return int(only(admin.list_offsets(asked)).offset)


def test_partitions_are_added(
    admin: AdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    name = topic()
    only(admin.create_partitions([NewPartitions(name, 3)]))
    assert len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) == 3
    assert error_of(admin.create_partitions([NewPartitions(name, 2)])) == (
        KafkaError.INVALID_PARTITIONS
    )


def test_records_are_deleted_over_both_tiers(
    admin: AdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    name = topic(config=TIERED_TOPIC)
    produce(broker, name, 60, 100_000, **{"batch.size": 100_000})
    log = broker.node.services.replica_manager.find_partition(name, None, 0).log
    wait_until(lambda: log.local_log_start_offset > 30)
    bucket = broker.directory / "bucket"

    def remote_segments() -> int:
        return sum(path.suffix == ".log" and name in str(path) for path in files_below(bucket))

    before = remote_segments()
    deleted = only(admin.delete_records([TopicPartition(name, 0, 25)]))
    assert deleted.low_watermark == 25
    assert start_offset(admin, name) == 25
    wait_until(lambda: remote_segments() < before)
    assert only(admin.delete_records([TopicPartition(name, 0, OFFSET_END)])).low_watermark == 60
    beyond = admin.delete_records([TopicPartition(name, 0, 61)])
    assert error_of(beyond) == KafkaError.OFFSET_OUT_OF_RANGE
    wait_until(lambda: remote_segments() == 0)


def test_topic_deletion_leaves_nothing_in_the_bucket(
    admin: AdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2, config=TIERED_TOPIC)
    produce(broker, name, 40, 100_000, **{"batch.size": 100_000})
    log = broker.node.services.replica_manager.find_partition(name, None, 0).log
    wait_until(lambda: log.local_log_start_offset > 10)
    bucket, logs = broker.directory / "bucket", broker.directory / "log"

    def left(directory: Any) -> list[str]:
        # os.walk skips folders that are deleted meanwhile.
        paths = (
            os.path.join(folder, file) for folder, _, files in os.walk(directory) for file in files
        )
        return [path for path in paths if name in path]

    assert left(bucket)
    only(admin.delete_topics([name]))
    wait_until(lambda: not left(bucket))
    wait_until(lambda: not left(logs))
    cached = logs / "remote-log-index-cache"
    wait_until(lambda: not [path for path in cached.glob("*") if path.is_dir()])


def test_topic_config_is_altered_incrementally(
    admin: AdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    name = topic()
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("retention.ms", "77", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
        ],
    )
    only(admin.incremental_alter_configs([resource]))
    described = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert described["retention.ms"].value == "77"
    assert described["cleanup.policy"].value == "delete,compact"
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        replaced = admin.alter_configs(
            [ConfigResource(ResourceType.TOPIC, name, {"segment.ms": "9"})]
        )
    only(replaced)
    described = only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert (described["segment.ms"].value, described["retention.ms"].is_default) == ("9", True)


def test_cluster_is_described(admin: AdminClient, broker: EmbeddedBroker) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert cluster.cluster_id == broker.node.services.cluster_id
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]


def test_acls_are_disabled(python_admin: KafkaAdminClient) -> None:
    anything = ACLFilter(
        None,
        None,
        ACLOperation.ANY,
        ACLPermissionType.ANY,
        ResourcePatternFilter(PythonResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    with pytest.raises(SecurityDisabledError, match="No Authorizer is configured"):
        python_admin.describe_acls(anything)
    [(_, _, error)] = python_admin.delete_acls([anything])
    assert error is SecurityDisabledError


def test_kafka_python_administers(
    python_admin: KafkaAdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(broker, name, 5)
    python_admin.create_partitions({name: 2})
    (described,) = python_admin.describe_topics([name])
    assert len(described["partitions"]) == 2
    assert python_admin.describe_cluster()["cluster_id"] == broker.node.services.cluster_id
    directories = python_admin.describe_log_dirs()
    assert str(broker.directory / "log") in str(directories)
    assert python_admin.describe_features()
    assert name in str(python_admin.list_config_resources())
    assert python_admin.list_partition_reassignments() in ({}, [], None)


def test_producer_over_its_quota_is_throttled(
    admin: AdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    """librdkafka reports the broker's throttle time in its statistics."""
    from isotherm.broker.metadata.client_quotas import PRODUCER_BYTE_RATE, QuotaChange

    name = topic()
    controller = broker.node.services.controller
    entity = [("client-id", "greedy")]

    def set_quota(value: float | None) -> None:
        changes = [QuotaChange(PRODUCER_BYTE_RATE, value)]
        broker.node.services.control_executor.submit(
            controller.alter_client_quotas, entity, changes
        ).result(TIMEOUT_S)

    throttled: list[float] = []
    set_quota(100_000.0)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "greedy",
            "linger.ms": 0,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    for _ in range(3):
        producer.produce(name, b"x" * 400_000, partition=0)
        producer.poll(0.1)
    try:
        wait_until(lambda: producer.poll(0.05) >= 0 and bool(throttled))
        assert max(throttled) > 0
    finally:
        set_quota(None)
        producer.purge()
        producer.flush(1)


def test_consumer_of_deleted_records_goes_on_at_the_start(
    admin: AdminClient, broker: EmbeddedBroker, topic: Callable[..., str]
) -> None:
    name = topic()
    produce(broker, name, 10)
    only(admin.delete_records([TopicPartition(name, 0, 7)]))
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert (message.error(), message.offset()) == (None, 7)
    finally:
        consumer.close()


def test_dynamic_keys_of_the_broker_take_effect_at_once_and_after_a_restart(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    only(admin.create_topics([NewTopic("t", 1, 1)]))
    entries = [
        ConfigEntry("log.retention.ms", "123456", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("remote.fetch.max.wait.ms", "77", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry(
            "producer.id.expiration.ms", "5000", incremental_operation=AlterConfigOpType.SET
        ),
    ]
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
    only(admin.incremental_alter_configs([resource]))

    def check(running: EmbeddedBroker) -> None:
        services = running.node.services
        log = services.replica_manager.find_partition("t", None, 0).log
        assert log.config.retention_ms == 123456
        assert log.producers.expiration_ms == 5000
        assert services.config.remote.remote_fetch_max_wait_ms == 77

    check(broker)
    broker.stop()
    check(start_broker())


def test_consumer_over_its_quota_waits_and_gets_every_record(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    from isotherm.broker.metadata.client_quotas import CONSUMER_BYTE_RATE, QuotaChange

    broker = start_broker({"quota.window.num": "2"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    only(admin.create_topics([NewTopic("t", 1, 1)]))
    produce(broker, "t", 20, 20_000, **{"batch.size": 20_000})
    services = broker.node.services
    services.control_executor.submit(
        services.controller.alter_client_quotas,
        [("client-id", "hungry")],
        [QuotaChange(CONSUMER_BYTE_RATE, 200_000.0)],
    ).result(TIMEOUT_S)
    throttled: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "hungry",
            "group.id": "unused",
            "enable.auto.commit": False,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        offsets: list[int | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(offsets) < 20 and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                offsets.append(message.offset())
        assert offsets == list(range(20))
        # Its callback may run after that of the last record.
        wait_until(lambda: consumer.poll(0.05) is None and bool(throttled))
    finally:
        consumer.close()
