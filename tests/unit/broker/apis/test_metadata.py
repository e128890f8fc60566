"""Metadata: the description of topics, their automatic creation, and authorized operations."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.broker import BrokerConfig
from isotherm.protocol.api_keys import ApiKey

VERSIONS = range(14)
DECLINED = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def ask(broker, version, *names, **fields):
    topics = [{"name": name, "topic_id": None} for name in names]
    return broker.call(ApiKey.METADATA, version, topics=topics, **{**DECLINED, **fields})


@pytest.fixture
def topic(broker):
    broker.controller.create_topics([NewTopic(name="t", num_partitions=2)])
    return broker.controller.image.topics_by_name["t"]


@pytest.mark.parametrize("version", VERSIONS)
def test_topic_is_described_with_partitions_and_this_broker(broker, topic, version):
    response = ask(broker, version, "t")
    (found,) = response.topics
    assert (found.name, found.error_code) == ("t", ErrorCode.none)
    assert [(p.partition_index, p.leader_id) for p in found.partitions] == [(0, 1), (1, 1)]
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, "broker.example", 9092)]
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id == "the-cluster"
    if version >= 7:
        assert [p.leader_epoch for p in found.partitions] == [0, 0]
    if version >= 10:
        assert found.topic_id == topic.topic_id


@pytest.mark.parametrize("version", VERSIONS)
def test_asking_for_all_gives_every_topic(broker, topic, version):
    topics = () if version == 0 else None
    response = broker.call(ApiKey.METADATA, version, topics=topics, **DECLINED)
    assert [found.name for found in response.topics] == ["t"]


@pytest.mark.parametrize("version", range(1, 14))
def test_asking_for_none_gives_none(broker, topic, version):
    assert ask(broker, version).topics == ()


def test_address_is_that_of_the_listener_the_request_came_by(broker):
    response = broker.call(ApiKey.METADATA, 12, topics=(), listener="INTERNAL", **DECLINED)
    assert (response.brokers[0].host, response.brokers[0].port) == ("10.0.0.1", 19092)


@pytest.mark.parametrize("version", range(4, 14))
def test_unknown_topic_is_not_made_when_the_client_declines(broker, version):
    (found,) = ask(broker, version, "nope").topics
    assert (found.name, found.error_code) == ("nope", ErrorCode.unknown_topic_or_partition)
    assert broker.controller.image.topics_by_name == {}


@pytest.mark.parametrize("version", [0, 3])
def test_unknown_topic_is_made_in_versions_that_cannot_decline(broker, version):
    (found,) = ask(broker, version, "new").topics
    assert found.error_code is ErrorCode.none
    assert len(found.partitions) == 1


def test_unknown_topic_is_made_and_answered_at_once_when_the_client_allows(broker):
    (found,) = ask(broker, 12, "new", allow_auto_topic_creation=True).topics
    assert found.error_code is ErrorCode.none
    assert found.topic_id == broker.controller.image.topics_by_name["new"].topic_id


def test_unknown_topic_is_not_made_when_the_broker_does_not(broker):
    broker.configure(BrokerConfig(auto_create_topics_enable=False))
    (found,) = ask(broker, 12, "new", allow_auto_topic_creation=True).topics
    assert found.error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("allow", [True, False])
def test_illegal_name_is_distinguished_from_an_unknown_one(broker, allow):
    (found,) = ask(broker, 12, "a b", allow_auto_topic_creation=allow).topics
    assert found.error_code is ErrorCode.invalid_topic_exception


def by_id(broker, version, *ids, **fields):
    topics = [{"topic_id": topic_id, "name": None} for topic_id in ids]
    return broker.call(ApiKey.METADATA, version, topics=topics, **{**DECLINED, **fields})


@pytest.mark.parametrize("version", [12, 13])
def test_topic_is_found_by_id(broker, topic, version):
    (found,) = by_id(broker, version, topic.topic_id).topics
    assert (found.name, found.topic_id) == ("t", topic.topic_id)


def test_unknown_id_is_answered_under_the_id(broker):
    unknown = uuid.UUID(int=5)
    (found,) = by_id(broker, 12, unknown, allow_auto_topic_creation=True).topics
    assert (found.error_code, found.topic_id, found.name) == (
        ErrorCode.unknown_topic_id,
        unknown,
        None,
    )


@pytest.mark.parametrize("version", [10, 11])
def test_id_in_a_version_that_does_not_read_it_is_an_invalid_request(broker, topic, version):
    topics = [{"topic_id": topic.topic_id, "name": "t"}]
    response = broker.call(ApiKey.METADATA, version, topics=topics, **DECLINED)
    assert [found.error_code for found in response.topics] == [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", [10, 11])
def test_id_alone_in_a_version_that_does_not_read_it_is_answered_without_a_name(
    broker, topic, version
):
    topics = [{"topic_id": topic.topic_id, "name": None}]
    response = broker.call(ApiKey.METADATA, version, topics=topics, **DECLINED)
    assert [(found.name, found.error_code) for found in response.topics] == [
        ("", ErrorCode.invalid_request)
    ]


def test_topic_asked_for_twice_is_answered_once(broker, topic):
    assert len(ask(broker, 12, "t", "t").topics) == 1


def test_authorized_operations_are_returned_on_request_only(broker, topic):
    asked = ask(
        broker,
        8,
        "t",
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    # READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS
    assert asked.topics[0].topic_authorized_operations == 0b1101_1111_1000
    # CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE
    assert asked.cluster_authorized_operations == 0b1_1111_1010_0000
    silent = ask(broker, 8, "t")
    assert silent.topics[0].topic_authorized_operations == -(2**31)


def test_internal_topics_are_marked(broker):
    response = ask(broker, 12, "__consumer_offsets", "t", allow_auto_topic_creation=True)
    assert [found.is_internal for found in response.topics] == [True, False]


@pytest.mark.parametrize("version", VERSIONS)
def test_error_response_answers_every_topic(broker, version):
    topics = [{"name": "a", "topic_id": None}, {"name": "b", "topic_id": None}]
    code = ErrorCode.kafka_storage_error
    response = broker.error_response(ApiKey.METADATA, version, code, topics=topics, **DECLINED)
    assert [(t.name, t.error_code) for t in response.topics] == [("a", code), ("b", code)]


@pytest.mark.parametrize(
    ("version", "code"),
    [(5, ErrorCode.leader_not_available), (6, ErrorCode.listener_not_found)],
)
def test_listener_that_is_not_advertised_has_no_broker_and_no_leader(broker, topic, version, code):
    fields = {"topics": None, **DECLINED, "listener": "HIDDEN"}
    response = broker.call(ApiKey.METADATA, version, **fields)
    assert response.brokers == ()
    (partition, *_) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (code, -1)
    assert partition.offline_replicas == partition.replica_nodes
