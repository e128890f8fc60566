"""The APIs that describe the cluster, and others that name no single replica."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.config.broker import BrokerConfig
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import TopicPartition


@pytest.fixture
def hosted(broker, tmp_path):
    broker.host(tmp_path / "log", max_request_partition_size_limit=4)
    broker.controller.create_topics(
        [NewTopic(name="a", num_partitions=3), NewTopic(name="b", num_partitions=2)]
    )
    return broker


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    ("listener", "address"),
    [("PLAINTEXT", ("broker.example", 9092)), ("INTERNAL", ("10.0.0.1", 19092))],
)
def test_cluster_is_this_broker_at_the_listener_that_was_asked(broker, version, listener, address):
    broker.configure(BrokerConfig(broker_rack="r1"))
    answer = broker.call(
        ApiKey.DESCRIBE_CLUSTER,
        version,
        listener=listener,
        include_cluster_authorized_operations=False,
        include_fenced_brokers=True,
    )
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (
        ErrorCode.none,
        "the-cluster",
        1,
    )
    (node,) = answer.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (1, *address, "r1")
    assert answer.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (7, ErrorCode.unsupported_endpoint_type)],
)
def test_other_endpoints_than_brokers_are_refused(broker, kind, code):
    answer = broker.call(
        ApiKey.DESCRIBE_CLUSTER,
        2,
        include_cluster_authorized_operations=True,
        endpoint_type=kind,
        include_fenced_brokers=False,
    )
    assert (answer.error_code, answer.brokers) == (code, ())


def log_dirs(broker, topics=None, version=5):
    return broker.call(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics).results


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_tell_the_size_of_every_partition(hosted, tmp_path, version):
    hosted.append("a", b"x" * 1000, partition=1)
    (directory,) = log_dirs(hosted, version=version)
    assert (directory.error_code, directory.log_dir) == (ErrorCode.none, str(tmp_path / "log"))
    sizes = {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }
    on_disk = sum(path.stat().st_size for path in (tmp_path / "log" / "a-1").glob("*.log"))
    assert on_disk > 1000
    assert sizes == {("a", 0): 0, ("a", 1): on_disk, ("a", 2): 0, ("b", 0): 0, ("b", 1): 0}
    if version >= 4:
        assert directory.total_bytes >= directory.usable_bytes > 0


def test_log_dirs_tell_what_was_asked_for(hosted):
    asked = [{"topic": "a", "partitions": [2, 9]}, {"topic": "gone", "partitions": [0]}]
    (directory,) = log_dirs(hosted, asked)
    found = [
        (topic.name, [p.partition_index for p in topic.partitions]) for topic in directory.topics
    ]
    assert found == [("a", [2])]


def test_remote_tier_is_a_directory_of_those_who_ask_for_everything(hosted):
    sizes = {TopicPartition("b", 0): 7, TopicPartition("a", 2): 5, TopicPartition("a", 1): 0}
    tier = SimpleNamespace(location="bucket/prefix", sizes=lambda: sizes)
    hosted.services = dataclasses.replace(hosted.services, remote_log_manager=tier)
    _, remote = log_dirs(hosted)
    assert (remote.error_code, remote.log_dir) == (ErrorCode.none, "remote://bucket/prefix")
    assert (remote.total_bytes, remote.usable_bytes) == (-1, -1)
    assert [
        (topic.name, [(p.partition_index, p.partition_size) for p in topic.partitions])
        for topic in remote.topics
    ] == [("a", [(1, 0), (2, 5)]), ("b", [(0, 7)])]
    # A tool that asks where a replica is must not find it in the remote tier.
    (local,) = log_dirs(hosted, [{"topic": "a", "partitions": [2]}])
    assert not local.log_dir.startswith("remote:")


def test_broker_that_leads_no_tiered_partition_has_no_remote_directory(hosted):
    tier = SimpleNamespace(location="bucket", sizes=dict)
    hosted.services = dataclasses.replace(hosted.services, remote_log_manager=tier)
    assert len(log_dirs(hosted)) == 1


def test_offline_log_dir_is_reported(hosted):
    (log_dir,) = hosted.services.replica_manager.log_dirs()
    log_dir.fail(OSError("gone"), "test")
    (directory,) = log_dirs(hosted)
    assert (directory.error_code, directory.topics) == (ErrorCode.kafka_storage_error, ())


def topic_partitions(broker, *names, limit=2000, cursor=None):
    cursor = cursor and {"topic_name": cursor[0], "partition_index": cursor[1]}
    answer = broker.call(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )
    next_cursor = answer.next_cursor
    return answer.topics, next_cursor and (next_cursor.topic_name, next_cursor.partition_index)


def numbers(topics):
    return [(topic.name, [p.partition_index for p in topic.partitions]) for topic in topics]


def test_topic_behind_a_cursor_whose_topic_is_missing_starts_at_its_beginning(hosted):
    described, _ = topic_partitions(hosted, "a0", "b", cursor=("a0", 1))
    assert [(name, indexes[:1]) for name, indexes in numbers(described) if indexes] == [("b", [0])]


def test_partitions_are_described_up_to_the_limit_and_on_from_the_cursor(hosted):
    first, cursor = topic_partitions(hosted)
    assert (numbers(first), cursor) == ([("a", [0, 1, 2]), ("b", [0])], ("b", 1))
    second, cursor = topic_partitions(hosted, cursor=cursor)
    assert (numbers(second), cursor) == ([("b", [1])], None)
    partition = second[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert partition.replica_nodes == partition.isr_nodes == (1,)


def test_limit_that_ends_with_a_topic_points_at_the_next(hosted):
    assert topic_partitions(hosted, limit=3)[1] == ("b", 0)
    assert numbers(topic_partitions(hosted, limit=0)[0]) == [("a", [0])]


def test_cursor_of_a_topic_that_is_gone_goes_on_with_the_next(hosted):
    topics, cursor = topic_partitions(hosted, cursor=("aa", 7))
    assert (numbers(topics), cursor) == ([("b", [0, 1])], None)


def test_topics_that_are_not_there_have_their_own_error(hosted):
    topics, _ = topic_partitions(hosted, "b", "gone", "..")
    assert [(topic.name, topic.error_code) for topic in topics] == [
        ("..", ErrorCode.invalid_topic_exception),
        ("b", ErrorCode.none),
        ("gone", ErrorCode.unknown_topic_or_partition),
    ]


def test_impossible_cursor_is_refused_for_every_topic(hosted):
    (topic,), _ = topic_partitions(hosted, "a", cursor=("a", -1))
    assert topic.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", [2, 3, 4])
def test_end_of_a_leader_epoch(hosted, version):
    hosted.append("a", b"1", b"2")

    def ask(epoch, current=0, partition=0):
        asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        (topic,) = hosted.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            version,
            topics=[{"topic": "a", "partitions": [asked]}],
        ).topics
        (found,) = topic.partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(0) == (ErrorCode.none, 0, 2)
    assert ask(0, current=-1) == (ErrorCode.none, 0, 2)
    assert ask(5) == (ErrorCode.none, -1, -1)
    assert ask(0, current=1) == (ErrorCode.unknown_leader_epoch, -1, -1)
    assert ask(0, partition=8) == (ErrorCode.unknown_topic_or_partition, -1, -1)


def test_config_resources_are_listed_by_type(hosted):
    def names(*types):
        answer = hosted.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=types)
        return answer.error_code, {
            (resource.resource_type, resource.resource_name) for resource in answer.config_resources
        }

    assert names(2) == (ErrorCode.none, {(2, "a"), (2, "b")})
    assert names() == (ErrorCode.none, {(2, "a"), (2, "b"), (4, "1"), (8, "1")})
    assert names(2, 99) == (ErrorCode.unsupported_version, set())
    assert hosted.call(ApiKey.LIST_CONFIG_RESOURCES, 0).config_resources == ()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_disabled(broker, version):
    answer = broker.call(
        ApiKey.DESCRIBE_ACLS,
        version,
        resource_type_filter=1,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    assert answer.error_code is ErrorCode.security_disabled
    assert answer.error_message == "No Authorizer is configured on the broker"
    disabled = (ErrorCode.security_disabled, "No Authorizer is configured.")
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "principal": "User:u",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    created = broker.call(ApiKey.CREATE_ACLS, version, creations=[acl, acl]).results
    assert [(result.error_code, result.error_message) for result in created] == [disabled] * 2
    wanted = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    deleted = broker.call(ApiKey.DELETE_ACLS, version, filters=[wanted]).filter_results
    assert [(result.error_code, result.error_message) for result in deleted] == [disabled]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_election_is_needed(hosted, version):
    fields = {"election_type": 0} if version else {}
    (topic,) = hosted.call(
        ApiKey.ELECT_LEADERS,
        version,
        topic_partitions=[{"topic": "a", "partitions": [0, 9]}],
        **fields,
    ).replica_election_results
    assert [result.error_code for result in topic.partition_result] == [
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
    ]
    everything = hosted.call(ApiKey.ELECT_LEADERS, version, topic_partitions=None, **fields)
    assert everything.replica_election_results == ()


def test_no_reassignment_goes_on(broker):
    answer = broker.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    assert (answer.error_code, answer.topics) == (ErrorCode.none, ())
