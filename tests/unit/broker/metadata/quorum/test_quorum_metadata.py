"""Metadata that a quorum publishes: the broker's own settings, and the notification of
listeners."""

from __future__ import annotations

import queue
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.configs.config_description import (
    describe_client_metrics,
    describe_group_config,
)
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    NoOpRecord,
    TopicRecord,
)
from isotherm.broker.metadata.quorum.quorum_metadata import Publication, QuorumMetadata
from isotherm.config.broker import BrokerConfig

CONFIG = BrokerConfig(node_id=5)
# Ends a test that hangs. No assertion depends on it.
PATIENT_S = 300.0


def after(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.end_offset + len(records))


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=uuid.uuid5(uuid.NAMESPACE_URL, name))


def setting(resource: tuple[int, str], name: str, value: str | None) -> ConfigRecord:
    kind, of = resource
    return ConfigRecord(resource_type=kind, resource_name=of, name=name, value=value)


@pytest.fixture
def metadata() -> QuorumMetadata:
    return QuorumMetadata(CONFIG, MetadataImage())


@pytest.fixture
def changes(metadata: QuorumMetadata) -> list[MetadataChange]:
    heard: list[MetadataChange] = []
    metadata.add_listener(heard.append)
    return heard


def test_listeners_hear_what_changed_when_the_image_is_there(metadata, changes):
    seen: list[MetadataImage] = []
    metadata.add_listener(lambda _: seen.append(metadata.image))
    image = after(metadata.image, topic("a"))
    metadata.publish(image)
    (change,) = changes
    assert [each.name for each in change.created] == ["a"]
    assert seen == [image]


def test_records_without_a_change_wake_no_listener(metadata, changes):
    metadata.publish(after(metadata.image, NoOpRecord()))
    assert changes == []
    assert metadata.image.end_offset == 1


@pytest.mark.parametrize("name", ["", "5"])
def test_broker_is_configured_by_the_cluster(metadata, changes, name):
    record = setting((BROKER_RESOURCE, name), "max.connections", "7")
    metadata.publish(after(metadata.image, record))
    assert metadata.broker_config.max_connections == 7
    assert changes[0].broker_config == metadata.broker_config
    other = setting((BROKER_RESOURCE, "6"), "max.connections", "8")
    metadata.publish(after(metadata.image, other))
    assert len(changes) == 1


def test_settings_that_are_not_understood_are_left_out(metadata, caplog):
    image = after(
        metadata.image,
        topic("t"),
        setting((BROKER_RESOURCE, ""), "max.connections", "7"),
        setting((BROKER_RESOURCE, ""), "max.connections.per.ip", "many"),
        setting((BROKER_RESOURCE, ""), "some.plugin.key", "x"),
        setting((TOPIC_RESOURCE, "t"), "segment.bytes", "2000000"),
        setting((TOPIC_RESOURCE, "t"), "some.later.key", "x"),
    )
    metadata.publish(image)
    assert metadata.broker_config.max_connections == 7
    assert metadata.broker_config.max_connections_per_ip == CONFIG.max_connections_per_ip
    assert metadata.topic_config("t").segment_bytes == 2_000_000
    for key in ("max.connections.per.ip", "some.plugin.key", "some.later.key"):
        assert f"key={key}" in caplog.text
    # Unknown keys in the metadata prevent neither a reload of the broker's file nor a start.
    assert metadata.reload_broker_config(replace(CONFIG, max_connections=8)).applied
    assert QuorumMetadata(CONFIG, image).broker_config.max_connections == 7


def test_settings_that_do_not_fit_to_this_brokers_file_are_left_out(metadata, caplog):
    """Another broker, whose file has other values, has accepted them for all."""
    image = after(
        metadata.image,
        setting((BROKER_RESOURCE, ""), "log.cleaner.threads", "500"),
        setting((BROKER_RESOURCE, ""), "max.connections", "7"),
    )
    metadata.publish(image)
    assert metadata.broker_config.max_connections == 7
    assert metadata.broker_config.cleaner.log_cleaner_threads == 1
    assert "dedupe buffer must be above 1 MiB per cleaner thread" in caplog.text
    assert QuorumMetadata(CONFIG, image).broker_config.max_connections == 7
    # A later change of what did not fit is applied.
    metadata.publish(
        after(metadata.image, setting((BROKER_RESOURCE, ""), "log.cleaner.threads", "4"))
    )
    assert metadata.broker_config.cleaner.log_cleaner_threads == 4


def test_assignment_intervals_of_groups_are_held_within_this_brokers_limits(caplog):
    """As in Kafka's GroupCoordinatorConfig.clampDynamicConfigs."""
    groups = replace(
        CONFIG.groups,
        group_share_max_assignment_interval_ms=5000,
        group_consumer_min_assignment_interval_ms=500,
    )
    metadata = QuorumMetadata(replace(CONFIG, groups=groups), MetadataImage())
    image = after(
        metadata.image,
        setting((BROKER_RESOURCE, ""), "group.share.assignment.interval.ms", "6000"),
        setting((BROKER_RESOURCE, "5"), "group.consumer.assignment.interval.ms", "5"),
    )
    metadata.publish(image)
    used = metadata.broker_config.groups
    assert used.group_share_assignment_interval_ms == 5000
    assert used.group_consumer_assignment_interval_ms == 500
    assert "key=group.share.assignment.interval.ms value=6000 used=5000" in caplog.text
    fitting = setting((BROKER_RESOURCE, ""), "group.share.assignment.interval.ms", "4000")
    metadata.publish(after(metadata.image, fitting))
    assert metadata.broker_config.groups.group_share_assignment_interval_ms == 4000


def test_settings_that_need_each_other_are_applied_together():
    remote = replace(CONFIG.remote, remote_log_storage_system_enable=True)
    metadata = QuorumMetadata(replace(CONFIG, remote=remote), MetadataImage())
    broker = (BROKER_RESOURCE, "")
    image = after(
        metadata.image,
        setting(broker, "log.cleaner.threads", "500"),
        setting(broker, "log.local.retention.ms", "800000000"),
        setting(broker, "log.retention.ms", "900000000"),
    )
    metadata.publish(image)
    defaults = metadata.broker_config.topic_defaults
    assert (defaults.local_retention_ms, defaults.retention_ms) == (800_000_000, 900_000_000)


GROUP = (GROUP_RESOURCE, "g")


def test_settings_of_a_group_that_are_not_understood_are_left_out(metadata, caplog):
    """Controllers of a later version have accepted them. A group that is not served for them, and a
    partition of offsets that does not load, would be worse than a default."""
    image = after(
        metadata.image,
        setting(GROUP, "consumer.session.timeout.ms", "50000"),
        setting(GROUP, "consumer.heartbeat.interval.ms", "soon"),
        setting(GROUP, "some.later.key", "x"),
    )
    metadata.publish(image)
    config = metadata.group_config("g")
    assert (config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms) == (
        50_000,
        5_000,
    )
    for text in ("some.later.key", "Invalid value soon"):
        assert caplog.text.count(text) == 1
    assert metadata.group_config("g") is config
    assert len(caplog.records) == 2, "a heartbeat logs nothing"
    assert metadata.group_config("h").consumer_session_timeout_ms == 45_000


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("consumer.session.timeout.ms", "90000", 60_000),
        ("consumer.session.timeout.ms", "1", 45_000),
        ("consumer.session.timeout.ms", "59999", 59_999),
        ("share.delivery.count.limit", "20", 10),
        ("share.partition.max.record.locks", "5000", 4000),
        ("streams.num.standby.replicas", "7", 2),
        ("streams.initial.rebalance.delay.ms", "7", 7),
    ],
)
def test_values_of_a_group_are_held_within_this_brokers_limits(metadata, name, value, used):
    """As in Kafka's GroupConfig.evaluate: the controllers have other limits, or had."""
    metadata.publish(after(metadata.image, setting(GROUP, name, value)))
    assert getattr(metadata.group_config("g"), name.replace(".", "_")) == used


def test_settings_of_a_group_follow_its_own_and_the_brokers(metadata):
    metadata.publish(after(metadata.image, setting(GROUP, "share.session.timeout.ms", "50000")))
    assert metadata.group_config("g").share_session_timeout_ms == 50_000
    metadata.publish(after(metadata.image, setting(GROUP, "share.session.timeout.ms", None)))
    assert metadata.group_config("g").share_session_timeout_ms == 45_000


@pytest.mark.parametrize("describe", [describe_group_config, describe_client_metrics])
def test_resource_is_described_without_what_is_not_understood(describe):
    described = {config.name: config for config in describe({"some.later.key": "x"}, CONFIG)}
    assert described
    assert "some.later.key" not in described


def test_key_material_is_set_for_a_listener_of_this_broker(metadata, changes):
    name = "listener.name.tls.ssl.keystore.location"
    metadata.publish(after(metadata.image, setting((BROKER_RESOURCE, "5"), name, "own")))
    assert metadata.broker_config.security_of("TLS").ssl_keystore_location == "own"
    metadata.publish(after(metadata.image, setting((BROKER_RESOURCE, ""), name, "of all")))
    assert metadata.broker_config.security_of("TLS").ssl_keystore_location == "own"
    assert len(changes) == 2


def test_images_that_come_while_one_is_taken_over_are_passed_on_as_one(metadata, changes):
    has_begun, may_go_on = threading.Event(), threading.Event()

    def wait(_change: MetadataChange) -> None:
        has_begun.set()
        may_go_on.wait(PATIENT_S)

    metadata.add_listener(wait)
    images = [metadata.image]
    for name in "abcd":
        images.append(after(images[-1], topic(name)))
    with ThreadPoolExecutor(1) as executor:
        publication = Publication(metadata, executor, lambda error: None)
        publication.offer(images[1])
        has_begun.wait(PATIENT_S)
        for image in images[2:]:
            publication.offer(image)
        may_go_on.set()
        publication_end = threading.Event()
        executor.submit(publication_end.set)
        publication_end.wait(PATIENT_S)
        publication.stop()
        publication.offer(after(images[-1], topic("e")))
    created = [[each.name for each in change.created] for change in changes]
    assert created == [["a"], ["b", "c", "d"]]


def test_listener_that_fails_ends_the_publication(metadata):
    failures: queue.Queue[Exception] = queue.Queue()

    def fail(_change: MetadataChange) -> None:
        raise ValueError("a bug")

    metadata.add_listener(fail)
    with ThreadPoolExecutor(1) as executor:
        publication = Publication(metadata, executor, failures.put)
        first = after(metadata.image, topic("a"))
        publication.offer(first)
        assert str(failures.get(timeout=PATIENT_S)) == "a bug"
        publication.offer(after(first, topic("b")))
        publication.stop()
    assert metadata.image is first
    assert failures.empty()
