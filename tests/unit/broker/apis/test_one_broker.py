"""APIs about several brokers, answered by the only one."""

from __future__ import annotations

import datetime
import uuid

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.server_properties import parse_broker_config
from isotherm.protocol.api_keys import ApiKey

SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def hosted(broker, tmp_path):
    broker.host(tmp_path / "log")
    broker.controller.create_topics([NewTopic(name="t", num_partitions=2)])
    return broker


@pytest.mark.parametrize("version", [0, 1, 2])
def test_quorum_has_one_voter_that_is_caught_up(broker, version):
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = broker.call(ApiKey.DESCRIBE_QUORUM, version, topics=topics)
    (partition,) = answer.topics[0].partitions
    (voter,) = partition.current_voters
    assert (partition.leader_id, partition.leader_epoch, voter.replica_id) == (1, 1, 1)
    end = broker.controller.image.end_offset
    assert (partition.high_watermark, voter.log_end_offset) == (end, end)
    if version >= 2:
        # No listener is for controllers, and a client's listener is none.
        assert [(node.node_id, node.listeners) for node in answer.nodes] == [(1, ())]


def test_quorum_shows_the_directory_and_the_controllers_listener(broker):
    """As Kafka with its controller in the process."""
    directory_id = uuid.UUID(int=77)
    broker.configure(
        parse_broker_config(
            {
                "node.id": "1",
                "listeners": "PLAINTEXT://:9092,CONTROLLER://localhost:9093",
                "controller.listener.names": "CONTROLLER",
            }
        )
    )
    broker.controller.directory_id = directory_id
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = broker.call(ApiKey.DESCRIBE_QUORUM, 2, topics=topics)
    (voter,) = answer.topics[0].partitions[0].current_voters
    assert voter.replica_directory_id == directory_id
    ((listener,),) = [node.listeners for node in answer.nodes]
    assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "localhost", 9093)


def test_quorum_of_another_partition_is_unknown(broker):
    topics = [{"topic_name": "t", "partitions": [{"partition_index": 0}]}]
    answer = broker.call(ApiKey.DESCRIBE_QUORUM, 2, topics=topics)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("broker_id", "code"),
    [(7, ErrorCode.broker_id_not_registered), (1, ErrorCode.invalid_request)],
)
def test_no_broker_is_unregistered(broker, broker_id, code):
    answer = broker.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=broker_id)
    assert (answer.error_code, bool(answer.error_message)) == (code, True)


@pytest.mark.parametrize(
    ("topic", "number", "replicas", "code"),
    [
        ("t", 0, [1], ErrorCode.none),
        ("t", 0, [2], ErrorCode.invalid_replica_assignment),
        ("t", 0, [1, 2], ErrorCode.invalid_replica_assignment),
        ("t", 0, [1, 1], ErrorCode.invalid_replica_assignment),
        ("t", 0, [], ErrorCode.invalid_replica_assignment),
        ("t", 0, None, ErrorCode.no_reassignment_in_progress),
        ("t", 2, [1], ErrorCode.unknown_topic_or_partition),
        ("gone", 0, [1], ErrorCode.unknown_topic_or_partition),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_partitions_can_only_be_where_they_are(hosted, version, topic, number, replicas, code):
    asked = {"partition_index": number, "replicas": replicas}
    answer = hosted.call(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        version,
        topics=[{"name": topic, "partitions": [asked]}],
        timeout=SECOND,
    )
    ((partition,),) = (response.partitions for response in answer.responses)
    assert (answer.error_code, partition.error_code) == (ErrorCode.none, code)


def test_there_are_no_credentials(broker):
    every = broker.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert (every.error_code, every.results) == (ErrorCode.none, ())
    named = broker.call(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        users=[{"name": "ann"}, {"name": "bob"}, {"name": "bob"}],
    )
    assert [(result.user, result.error_code) for result in named.results] == [
        ("ann", ErrorCode.resource_not_found),
        ("bob", ErrorCode.duplicate_resource),
    ]
