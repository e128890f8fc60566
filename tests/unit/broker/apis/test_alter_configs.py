"""IncrementalAlterConfigs and AlterConfigs, for topics and for the broker."""

from __future__ import annotations

import logging

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.server_properties import parse_broker_config
from isotherm.protocol.api_keys import ApiKey

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(broker, *changes, kind=TOPIC, name="t", version=1, validate_only=False):
    """Alter one resource. `changes` are (key, operation, value). Returns (error code, message)."""
    (answer,) = broker.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in changes
                ],
            }
        ],
        validate_only=validate_only,
    ).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


def replace(broker, configs, *, kind=TOPIC, name="t", version=2, validate_only=False):
    (answer,) = broker.call(
        ApiKey.ALTER_CONFIGS,
        version,
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "value": value} for key, value in configs],
            }
        ],
        validate_only=validate_only,
    ).responses
    return answer.error_code, answer.error_message


def described(broker, kind, name):
    (result,) = broker.call(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        include_synonyms=True,
        include_documentation=False,
    ).results
    return {config.name: config for config in result.configs}


def synonyms(config):
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


DONE = (ErrorCode.none, None)


@pytest.fixture
def hosted(broker, tmp_path):
    broker.host(tmp_path / "log", explicit={"log.retention.hours": "3"})
    broker.controller.create_topics([NewTopic(name="t", configs={"segment.ms": "7"})])
    return broker


def log_config(broker):
    return broker.services.replica_manager.find_partition("t", None, 0).log.config


@pytest.mark.parametrize("version", [0, 1])
def test_topic_is_changed_incrementally_and_its_log_with_it(hosted, version):
    changes = [("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")]
    assert alter(hosted, *changes, version=version) == DONE
    config = log_config(hosted)
    assert (config.retention_ms, config.segment_ms) == (5, 7)
    assert config.cleanup_policy == ("delete", "compact")
    again = [("cleanup.policy", SUBTRACT, "delete"), ("segment.ms", DELETE, None)]
    assert alter(hosted, *again, version=version) == DONE
    assert log_config(hosted).cleanup_policy == ("compact",)
    assert log_config(hosted).segment_ms == 604_800_000


@pytest.mark.parametrize("version", [0, 1, 2])
def test_topic_is_given_other_settings_altogether(hosted, version):
    assert replace(hosted, [("retention.ms", "5")], version=version) == DONE
    assert hosted.controller.topic_texts("t") == {"retention.ms": "5"}
    assert log_config(hosted).segment_ms == 604_800_000


def test_validating_only_changes_nothing(hosted):
    before = hosted.controller.image
    assert alter(hosted, ("retention.ms", SET, "5"), validate_only=True) == DONE
    assert replace(hosted, [], validate_only=True) == DONE
    own = {"kind": BROKER, "name": "1", "validate_only": True}
    assert alter(hosted, ("log.retention.ms", SET, "5"), **own) == DONE
    assert hosted.controller.image is before


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "gone", ("retention.ms", SET, "1"), ErrorCode.unknown_topic_or_partition),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.invalid_request),
        (TOPIC, "t", ("retention.mss", SET, "1"), ErrorCode.invalid_config),
        (TOPIC, "t", ("retention.ms", SET, "x"), ErrorCode.invalid_config),
        (TOPIC, "t", ("retention.ms", APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, "t", ("remote.storage.enable", SET, "true"), ErrorCode.invalid_config),
        (TOPIC, "t", ("retention.ms", SET, None), ErrorCode.invalid_request),
        (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.invalid_request),
        (TOPIC, "t", ("", SET, "1"), ErrorCode.invalid_request),
        (BROKER, "7", ("log.retention.ms", SET, "1"), ErrorCode.invalid_request),
        (BROKER, "1", ("log.retention.hours", SET, "1"), ErrorCode.invalid_request),
        (BROKER, "1", ("node.id", SET, "2"), ErrorCode.invalid_request),
        (BROKER, "1", ("log.retention.ms", SET, "x"), ErrorCode.invalid_request),
        (BROKER, "1", ("log.retention.ms", SET, "0"), ErrorCode.invalid_request),
        (BROKER, "", ("log.retention.ms", SET, "0"), ErrorCode.invalid_request),
        (BROKER, "", ("message.max.bytes", SET, "-1"), ErrorCode.invalid_request),
        # Kafka has these, and does not change them while it runs.
        (BROKER, "1", ("queued.max.requests", SET, "9"), ErrorCode.invalid_request),
        (BROKER, "1", ("authorizer.class.name", SET, ""), ErrorCode.invalid_request),
        (BROKER, "1", ("listener.name.x.sasl.jaas.config", SET, "x"), ErrorCode.invalid_request),
        (BROKER, "1", ("config.providers", SET, "file"), ErrorCode.invalid_request),
        (BROKER, "1", ("rsm.config.secret", SET, "x"), ErrorCode.invalid_request),
        # Without an effect, but with Kafka's checks.
        (BROKER, "1", ("num.io.threads", SET, "many"), ErrorCode.invalid_request),
        (BROKER, "1", ("num.io.threads", SET, "0"), ErrorCode.invalid_request),
        (BROKER, "1", ("num.network.threads", SET, "7"), ErrorCode.invalid_request),
        (BROKER, "1", ("background.threads", SET, "4"), ErrorCode.invalid_request),
        (BROKER, "", ("cordoned.log.dirs", SET, "*"), ErrorCode.invalid_request),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "1"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "60001"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "15001"), ErrorCode.invalid_config),
        (GROUP, "g", ("no.such.key", SET, "1"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.assignment.interval.ms", SET, "15001"), ErrorCode.invalid_config),
        (GROUP, "g", ("consumer.assignment.interval.ms", SET, "-1"), ErrorCode.invalid_config),
        (GROUP, "g", ("share.delivery.count.limit", SET, "11"), ErrorCode.invalid_config),
        (GROUP, "g", ("share.record.lock.duration.ms", SET, "14999"), ErrorCode.invalid_config),
        (GROUP, "g", ("share.auto.offset.reset", SET, "none"), ErrorCode.invalid_config),
        (GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:P"), ErrorCode.invalid_config),
        (
            GROUP,
            "g",
            ("share.auto.offset.reset", SET, "by_duration:-PT1S"),
            ErrorCode.invalid_config,
        ),
        (GROUP, "g", ("share.isolation.level", SET, "none"), ErrorCode.invalid_config),
        (GROUP, "g", ("streams.num.standby.replicas", SET, "3"), ErrorCode.invalid_config),
        (GROUP, "g", ("streams.session.timeout.ms", SET, "44999"), ErrorCode.invalid_config),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), ErrorCode.invalid_request),
        (CLIENT_METRICS, "s", ("interval.ms", SET, "99"), ErrorCode.invalid_request),
        (CLIENT_METRICS, "s", ("no.such.key", SET, "1"), ErrorCode.invalid_request),
        (CLIENT_METRICS, "s", ("match", SET, "colour=blue"), ErrorCode.invalid_config),
        (LOGGER, "7", ("isotherm.broker.node", SET, "DEBUG"), ErrorCode.invalid_request),
        (LOGGER, "1", ("no.such.logger", SET, "DEBUG"), ErrorCode.invalid_config),
        (LOGGER, "1", ("isotherm.broker.node", SET, "LOUD"), ErrorCode.invalid_config),
        (LOGGER, "1", ("isotherm.broker.node", APPEND, "DEBUG"), ErrorCode.invalid_request),
        (LOGGER, "1", ("root", DELETE, None), ErrorCode.invalid_request),
        (
            TOPIC,
            "t",
            ("leader.replication.throttled.replicas", SET, "1-1"),
            ErrorCode.invalid_config,
        ),
        (99, "g", ("x", SET, "1"), ErrorCode.invalid_request),
    ],
)
def test_invalid_change_is_an_error_and_changes_nothing(hosted, kind, name, change, code):
    before = hosted.controller.image
    error_code, message = alter(hosted, change, kind=kind, name=name)
    assert error_code is code
    assert message
    assert hosted.controller.image is before


def test_resource_named_twice_is_refused(hosted):
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": []}
    answers = hosted.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource] * 2, validate_only=False
    ).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.invalid_request] * 2


def test_broker_keys_are_applied_and_described_with_their_sources(hosted):
    assert alter(hosted, ("log.retention.ms", SET, "50"), kind=BROKER, name="") == DONE
    assert log_config(hosted).retention_ms == 50
    assert alter(hosted, ("log.retention.ms", SET, "60"), kind=BROKER, name="1") == DONE
    assert log_config(hosted).retention_ms == 60

    hosted.services.config = hosted.controller.broker_config
    chain = [
        ("log.retention.ms", "60", 2),
        ("log.retention.ms", "50", 3),
        ("log.retention.hours", "3", 4),
    ]
    topic = described(hosted, TOPIC, "t")["retention.ms"]
    assert (topic.value, topic.config_source, synonyms(topic)) == ("60", 2, chain)
    own = described(hosted, BROKER, "1")
    assert own["log.retention.ms"].value == "60"
    # As in Kafka, the default comes from the key in hours.
    default = ("log.retention.hours", "168", 5)
    assert synonyms(own["log.retention.ms"]) == [*chain, default]
    assert not own["log.retention.ms"].read_only
    assert own["node.id"].read_only
    for_all = described(hosted, BROKER, "")
    assert {name: each.value for name, each in for_all.items()} == {
        "log.retention.ms": "50",
        "min.insync.replicas": "1",
    }

    assert alter(hosted, ("log.retention.ms", DELETE, None), kind=BROKER, name="1") == DONE
    assert log_config(hosted).retention_ms == 50
    # As in Kafka, the cluster keeps this one.
    assert replace(hosted, [], kind=BROKER, name="")[0] is ErrorCode.invalid_config
    assert replace(hosted, [("min.insync.replicas", "1")], kind=BROKER, name="") == DONE
    assert log_config(hosted).retention_ms == 604_800_000


def test_lists_of_the_broker_are_appended_to(hosted):
    change = ("log.cleanup.policy", APPEND, "compact")
    assert alter(hosted, change, kind=BROKER, name="") == DONE
    assert log_config(hosted).cleanup_policy == ("delete", "compact")


def test_broker_keys_hold_after_a_restart_and_over_the_file(hosted, cluster_metadata):
    change = ("log.retention.ms", SET, "50")
    alter(hosted, change, kind=BROKER, name="")
    alter(hosted, ("remote.fetch.max.wait.ms", SET, "77"), kind=BROKER, name="1")
    file = parse_broker_config({"log.retention.ms": "9", "max.connections": "8"})
    config = cluster_metadata.replayed(file).broker_config
    assert config.topic_defaults.retention_ms == 50
    assert config.remote.remote_fetch_max_wait_ms == 77
    assert config.max_connections == 8


@pytest.mark.parametrize("name", ["", "1"])
def test_keys_without_effect_are_stored_and_described(hosted, cluster_metadata, caplog, name):
    """A tool that sets them on Kafka goes on here.

    An unknown key may be a secret: Kafka shows no value.
    """
    own = {"kind": BROKER, "name": name}
    texts = {
        "num.io.threads": "16",
        "metric.reporters": "org.Reporter",
        "follower.fetch.last.tiered.offset.enable": "true",
        "log.retentoin.ms": "5",
        "some.vendor.key": "x",
        "zookeeper.connect": "z:1",
    }
    assert alter(hosted, *((key, SET, text) for key, text in texts.items()), **own) == DONE
    stored = dict(hosted.controller.broker_texts(name))
    stored.pop("min.insync.replicas", None)
    assert stored == texts
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    inert = "configuration key has no effect"
    assert sorted(warnings) == [
        f"{inert} key=metric.reporters reason=prometheus.listener serves the metrics",
        f"{inert} key=num.io.threads reason=one event loop serves the network",
        f"{inert} key=zookeeper.connect reason=there is no ZooKeeper",
        "unknown configuration key is ignored key=log.retentoin.ms nearest=log.retention.ms",
        "unknown configuration key is ignored key=some.vendor.key",
    ]
    hosted.services.config = hosted.controller.broker_config
    source = 2 if name else 3
    for described_name in {name, "1"}:
        configs = described(hosted, BROKER, described_name)
        io = configs["num.io.threads"]
        assert (io.value, io.config_source, io.read_only, io.config_type) == (
            "16",
            source,
            False,
            3,
        )
        vendor = configs["some.vendor.key"]
        assert (vendor.value, vendor.config_source, vendor.is_sensitive) == (None, source, True)
        assert (vendor.read_only, vendor.config_type) == (True, 0)
        assert synonyms(vendor) == [("some.vendor.key", None, source)]
    assert hosted.controller.broker_config.replication.follower_fetch_last_tiered_offset_enable
    # A start finds them stored, and goes on too.
    caplog.clear()
    assert (
        cluster_metadata.replayed(parse_broker_config({})).broker_config.inert.num_io_threads == 16
    )
    assert "nearest=log.retention.ms" in caplog.text
    assert alter(hosted, *((key, DELETE, None) for key in texts), **own) == DONE
    hosted.services.config = hosted.controller.broker_config
    assert "some.vendor.key" not in described(hosted, BROKER, name)


@pytest.mark.parametrize("name", ["__remote_log_metadata", "__remote_log_metadata_audit"])
def test_policy_of_the_metadata_topics_follows_their_feature(broker, name):
    configs = {"cleanup.policy": "compact", "segment.ms": "3600000"}
    broker.controller.create_topics([NewTopic(name=name, num_partitions=1, configs=configs)])
    policy = "cleanup.policy"
    for change in ((policy, SET, "delete"), (policy, DELETE, None), (policy, APPEND, "delete")):
        code, message = alter(broker, change, name=name)
        assert code is ErrorCode.policy_violation
        assert "remote.log.metadata.compaction" in message
    assert replace(broker, [("segment.ms", "1")], name=name)[0] is ErrorCode.policy_violation
    assert broker.controller.topic_texts(name) == configs
    assert alter(broker, (policy, SET, "compact"), ("retention.ms", SET, "5"), name=name) == DONE
    assert replace(broker, [(policy, "compact")], name=name) == DONE
    assert broker.controller.topic_texts(name) == {policy: "compact"}


def test_groups_have_settings_of_their_own(hosted):
    own = {"kind": GROUP, "name": "g"}
    assert alter(hosted, ("consumer.session.timeout.ms", SET, "50000"), **own) == DONE
    configs = described(hosted, GROUP, "g")
    session = configs["consumer.session.timeout.ms"]
    assert (session.value, session.config_source) == ("50000", 8)
    assert synonyms(session) == [
        ("consumer.session.timeout.ms", "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    assert configs["consumer.heartbeat.interval.ms"].config_source == 5
    assert described(hosted, GROUP, "other")["consumer.session.timeout.ms"].value == "45000"
    accepted = {
        "share.auto.offset.reset": "by_duration:P1DT2H3M4.5S",
        "streams.num.standby.replicas": "2",
        "consumer.assignment.interval.ms": "0",
        "share.renew.acknowledge.enable": "false",
    }
    for key, text in accepted.items():
        assert alter(hosted, (key, SET, text), **own) == DONE
        assert described(hosted, GROUP, "g")[key].value == text
    assert alter(hosted, ("consumer.session.timeout.ms", DELETE, None), **own) == DONE
    assert described(hosted, GROUP, "g")["consumer.session.timeout.ms"].value == "45000"


def test_subscriptions_to_metrics_are_kept_and_listed(hosted):
    own = {"kind": CLIENT_METRICS, "name": "s"}
    assert alter(hosted, ("metrics", APPEND, "org.apache.kafka.producer."), **own) == DONE
    assert alter(hosted, ("metrics", APPEND, "org.apache.kafka.consumer."), **own) == DONE
    value = described(hosted, CLIENT_METRICS, "s")["metrics"].value
    assert value == "org.apache.kafka.producer.,org.apache.kafka.consumer."
    for version in (0, 1):
        fields = {"resource_types": [CLIENT_METRICS]} if version else {}
        listed = hosted.call(ApiKey.LIST_CONFIG_RESOURCES, version, **fields)
        assert [resource.resource_name for resource in listed.config_resources] == ["s"]


def test_levels_of_loggers_are_set_and_taken_back(hosted):
    name = "isotherm.broker.node"
    logger = logging.getLogger(name)
    assert alter(hosted, (name, SET, "ERROR"), kind=LOGGER, name="1", validate_only=True) == DONE
    assert logger.level == logging.NOTSET
    assert alter(hosted, (name, SET, "ERROR"), kind=LOGGER, name="1") == DONE
    try:
        assert logger.level == logging.ERROR
        shown = described(hosted, LOGGER, "1")[name]
        assert (shown.value, shown.config_source) == ("ERROR", 6)
    finally:
        assert alter(hosted, (name, DELETE, None), kind=LOGGER, name="1") == DONE
    assert logger.level == logging.NOTSET
