"""CreateTopics: created topics with their settings, and an error for each refused one. The codes
are Kafka's."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode

from isotherm.config.broker import BrokerConfig
from isotherm.protocol.api_keys import ApiKey

VERSIONS = range(2, 8)
TIMEOUT = datetime.timedelta(seconds=1)


def topic(name, partitions=1, replicas=1, assignments=(), **configs):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": p, "broker_ids": b} for p, b in assignments],
        "configs": [
            {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
        ],
    }


def create(broker, version, *topics, validate_only=False):
    return broker.call(
        ApiKey.CREATE_TOPICS, version, topics=topics, timeout=TIMEOUT, validate_only=validate_only
    ).topics


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_made_and_the_bad_one_is_an_error(broker, version):
    made, bad = create(broker, version, topic("a", 3), topic("b", 0))
    assert (made.name, made.error_code, made.error_message) == ("a", ErrorCode.none, None)
    assert (bad.name, bad.error_code) == ("b", ErrorCode.invalid_partitions)
    assert "topic=b" in bad.error_message
    assert set(broker.controller.image.topics_by_name) == {"a"}
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        assert (bad.num_partitions, bad.replication_factor) == (-1, -1)
    if version >= 7:
        assert made.topic_id == broker.controller.image.topics_by_name["a"].topic_id


def test_defaults_and_settings_are_listed_with_their_sources(broker):
    broker.configure(BrokerConfig(num_partitions=4, explicit={"log.retention.ms": "604800000"}))
    (made,) = create(broker, 7, topic("a", -1, -1, segment_ms="7"))
    assert made.num_partitions == 4
    configs = {config.name: config for config in made.configs}
    assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("7", 1)
    assert configs["retention.ms"].config_source == 4
    assert (configs["max.message.bytes"].value, configs["max.message.bytes"].config_source) == (
        "1048588",
        5,
    )
    assert "internal.segment.bytes" not in configs


def test_validating_only_makes_nothing(broker):
    good, bad = create(broker, 7, topic("a"), topic("a b"), validate_only=True)
    assert good.error_code is ErrorCode.none
    assert good.num_partitions == 1
    assert bad.error_code is ErrorCode.invalid_topic_exception
    assert broker.controller.image.topics_by_name == {}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic("old"), ErrorCode.topic_already_exists),
        (topic(".."), ErrorCode.invalid_topic_exception),
        (topic("t", 0), ErrorCode.invalid_partitions),
        (topic("t", 1, 2), ErrorCode.invalid_replication_factor),
        (topic("t", -1, -1, [(0, (9,))]), ErrorCode.invalid_replica_assignment),
        (topic("t", 1, 1, [(0, (1,))]), ErrorCode.invalid_request),
        (topic("t", no_such_key="1"), ErrorCode.invalid_config),
        (topic("t", retention_ms="x"), ErrorCode.invalid_config),
        (topic("t", remote_storage_enable="true"), ErrorCode.invalid_config),
        (topic("t", 10_001), ErrorCode.policy_violation),
    ],
)
def test_topic_that_breaks_a_rule_gets_kafkas_code(broker, wanted, code):
    create(broker, 7, topic("old"))
    (result,) = create(broker, 7, wanted)
    assert result.error_code is code
    assert set(broker.controller.image.topics_by_name) == {"old"}


def test_assignment_by_hand_is_taken(broker):
    (made,) = create(broker, 7, topic("t", -1, -1, [(0, (1,)), (1, (1,))]))
    assert (made.error_code, made.num_partitions) == (ErrorCode.none, 2)
