"""DescribeConfigs: values, sources, synonyms and types, by resource type; and a bound on its
cost."""

from __future__ import annotations

import sys

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.describe_configs import BROKER, CONFIG_TYPES, TOPIC, handle
from isotherm.broker.metadata.configs.config_description import describe_broker_config
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.broker import BrokerConfig
from isotherm.config.definition import config_keys
from isotherm.config.dynamic import CONFIG_GROUPS
from isotherm.config.server_properties import parse_broker_config
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import encoder
from isotherm.protocol.entities import entity_of

BROKER_LOGGER, GROUP = 8, 32
FURTHER_CALLS_MAX = 17
"""Python calls for each resource after the first, with the encoding of the answer."""


def describe(broker, kind, name, *, version=4, keys=None, synonyms=True, documentation=True):
    (result,) = broker.call(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        include_synonyms=synonyms,
        include_documentation=documentation,
    ).results
    return result


@pytest.fixture
def topic(broker):
    broker.configure(
        parse_broker_config({"log.retention.hours": "2", "log.segment.bytes": "2097152"})
    )
    configs = {"retention.ms": "5", "internal.segment.bytes": "20"}
    broker.controller.create_topics([NewTopic(name="t", configs=configs)])


def synonyms_of(config):
    return [(s.name, s.value, s.source) for s in config.synonyms]


@pytest.mark.parametrize("version", range(1, 5))
def test_topic_keys_tell_value_and_source(broker, topic, version):
    result = describe(broker, TOPIC, "t", version=version)
    configs = {config.name: config for config in result.configs}
    assert (result.error_code, result.resource_type, result.resource_name) == (
        ErrorCode.none,
        TOPIC,
        "t",
    )
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == (
        "2097152",
        4,
    )
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == (
        "delete",
        5,
    )
    assert configs["internal.segment.bytes"].value == "20"
    assert not any(config.read_only or config.is_sensitive for config in result.configs)


def test_every_key_of_a_broker_is_described(broker):
    described = {config.name for config in describe(broker, BROKER, "1").configs}
    declared = {
        name
        for config_class in CONFIG_GROUPS.values()
        for name, (_, key) in config_keys(config_class).items()
        if not key.internal
    }
    assert declared - described == set()


def test_synonyms_lead_from_the_topic_to_the_default(broker, topic):
    result = describe(broker, TOPIC, "t", keys=("retention.ms",))
    (config,) = result.configs
    assert synonyms_of(config) == [
        ("retention.ms", "5", 1),
        ("log.retention.hours", "2", 4),
    ]
    assert config.config_type == CONFIG_TYPES["LONG"]
    assert "both tiers" in config.documentation


def test_synonyms_and_documentation_are_left_out_unless_asked_for(broker, topic):
    result = describe(broker, TOPIC, "t", synonyms=False, documentation=False)
    assert all(c.synonyms == () and c.documentation is None for c in result.configs)


def test_certain_keys_give_those_that_exist(broker, topic):
    result = describe(broker, TOPIC, "t", keys=("segment.ms", "no.such.key"))
    assert [config.name for config in result.configs] == ["segment.ms"]


def test_broker_tells_its_own_the_tiers_and_the_topics_keys(broker):
    broker.configure(
        parse_broker_config({"num.partitions": "3", "log.roll.ms": "9", "rsm.config.secret": "s"})
    )
    configs = {c.name: c for c in describe(broker, BROKER, "1").configs}
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("3", 4)
    assert (configs["log.roll.ms"].value, configs["log.roll.ms"].config_source) == ("9", 4)
    assert configs["remote.log.manager.task.interval.ms"].config_source == 5
    assert configs["num.partitions"].read_only
    assert not configs["log.roll.ms"].read_only
    assert "rsm.config.secret" not in configs


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER_LOGGER, "2", ErrorCode.invalid_request),
        (GROUP, "", ErrorCode.invalid_request),
        (0, "", ErrorCode.invalid_request),
    ],
)
def test_resource_that_cannot_be_described_has_its_own_error(broker, kind, name, code):
    result = describe(broker, kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


# Kafka 4.3.1: kafka-configs.sh --describe --all --entity-type groups --entity-name new
GROUP_KEYS = """
consumer.assignment.interval.ms=1000 {DEFAULT_CONFIG:group.consumer.assignment.interval.ms=1000}
consumer.heartbeat.interval.ms=5000 {DEFAULT_CONFIG:group.consumer.heartbeat.interval.ms=5000}
consumer.session.timeout.ms=45000 {DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}
share.assignment.interval.ms=1000 {DEFAULT_CONFIG:group.share.assignment.interval.ms=1000}
share.auto.offset.reset=latest {DEFAULT_CONFIG:share.auto.offset.reset=latest}
share.delivery.count.limit=5 {DEFAULT_CONFIG:group.share.delivery.count.limit=5}
share.heartbeat.interval.ms=5000 {DEFAULT_CONFIG:group.share.heartbeat.interval.ms=5000}
share.isolation.level=read_uncommitted {DEFAULT_CONFIG:share.isolation.level=read_uncommitted}
share.partition.max.record.locks=2000 {DEFAULT_CONFIG:group.share.partition.max.record.locks=2000}
share.record.lock.duration.ms=30000 {DEFAULT_CONFIG:group.share.record.lock.duration.ms=30000}
share.renew.acknowledge.enable=true {DEFAULT_CONFIG:share.renew.acknowledge.enable=true}
share.session.timeout.ms=45000 {DEFAULT_CONFIG:group.share.session.timeout.ms=45000}
streams.assignment.interval.ms=1000 {DEFAULT_CONFIG:group.streams.assignment.interval.ms=1000}
streams.heartbeat.interval.ms=5000 {DEFAULT_CONFIG:group.streams.heartbeat.interval.ms=5000}
streams.initial.rebalance.delay.ms=3000 \
{DEFAULT_CONFIG:group.streams.initial.rebalance.delay.ms=3000}
streams.num.standby.replicas=0 {DEFAULT_CONFIG:group.streams.num.standby.replicas=0}
streams.session.timeout.ms=45000 {DEFAULT_CONFIG:group.streams.session.timeout.ms=45000}
"""


def test_group_has_kafkas_keys_defaults_and_synonyms(broker):
    shown = []
    for config in sorted(describe(broker, GROUP, "new").configs, key=lambda each: each.name):
        (synonym,) = config.synonyms
        assert (config.config_source, synonym.source, config.read_only) == (5, 5, False)
        shown.append(
            f"{config.name}={config.value} {{DEFAULT_CONFIG:{synonym.name}={synonym.value}}}"
        )
    assert shown == GROUP_KEYS.split("\n")[1:-1]


def test_settings_of_all_brokers_at_once_are_none(broker):
    result = describe(broker, BROKER, "")
    assert (result.error_code, result.configs) == (ErrorCode.none, ())


def test_every_type_of_a_key_has_a_number():
    types = {config.type_name for config in describe_broker_config(BrokerConfig())}
    assert types <= set(CONFIG_TYPES)


SETTINGS = {
    "a": {"retention.ms": "5"},
    "b": {"retention.ms": "5"},
    "c": {"retention.ms": "6"},
    "d": {},
    "e": {"retention.ms": "5", "segment.ms": "7"},
    "f": {},
}


@pytest.mark.parametrize("version", range(1, 5))
def test_topics_asked_for_at_once_are_described_like_each_alone(broker, version):
    for name, configs in SETTINGS.items():
        broker.controller.create_topics([NewTopic(name=name, configs=configs)])
    asked = [(name, keys) for keys in (None, ["retention.ms"]) for name in SETTINGS]
    results = broker.call(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[
            {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
            for name, keys in [*asked, ("missing", None)]
        ],
        include_synonyms=True,
        include_documentation=True,
    ).results
    assert [result.resource_name for result in results] == [*SETTINGS, *SETTINGS, "missing"]
    for (name, keys), result in zip(asked, results, strict=False):
        assert result == describe(broker, TOPIC, name, version=version, keys=keys)
    assert results[-1].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(1, 5))
def test_resources_of_all_kinds_asked_for_at_once_are_described_like_each_alone(broker, version):
    broker.controller.create_topics([NewTopic(name="1", configs={"retention.ms": "5"})])
    each = [(TOPIC, "1"), (BROKER, "1"), (BROKER, ""), (BROKER_LOGGER, "1"), (GROUP, "1")]
    asked = [(*one, keys) for keys in (None, ["retention.ms", "node.id"]) for one in each * 2]
    results = broker.call(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in asked
        ],
        include_synonyms=True,
        include_documentation=True,
    ).results
    for (kind, name, keys), result in zip(asked, results, strict=True):
        assert result == describe(broker, kind, name, version=version, keys=keys)


@pytest.mark.parametrize("kind", [TOPIC, BROKER, BROKER_LOGGER, GROUP])
def test_further_resource_with_the_same_settings_takes_few_calls(broker, kind):
    """Clients ask for the settings of thousands of topics in one request. Other resource types may
    be asked for in such numbers too."""
    names = ["1"] * 51
    if kind in (TOPIC, GROUP):
        names = [f"t{index}" for index in range(51)]
    for name in names if kind == TOPIC else ():
        broker.controller.create_topics([NewTopic(name=name, configs={"retention.ms": "5"})])

    def calls(count):
        seen = 0

        def note(frame, event, argument):
            nonlocal seen
            seen += event == "call"

        context = broker.context(ApiKey.DESCRIBE_CONFIGS, 4)
        request = entity_of(
            request_class(ApiKey.DESCRIBE_CONFIGS, 4),
            {
                "resources": [
                    {"resource_type": kind, "resource_name": name, "configuration_keys": None}
                    for name in names[:count]
                ],
                "include_synonyms": False,
                "include_documentation": False,
            },
        )
        sys.setprofile(note)
        try:
            encode(handle(context, request), bytearray())
        finally:
            sys.setprofile(None)
        return seen

    encode = encoder(response_class(ApiKey.DESCRIBE_CONFIGS, 4))
    calls(1)
    assert (calls(51) - calls(1)) / 50 <= FURTHER_CALLS_MAX
