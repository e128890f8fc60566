"""CreatePartitions: assignments, bounds, and an error for each topic."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.protocol.api_keys import ApiKey

VERSIONS = range(4)


def grow(broker, version, *topics, validate_only=False):
    return broker.call(
        ApiKey.CREATE_PARTITIONS,
        version,
        topics=[
            {
                "name": name,
                "count": count,
                "assignments": assignments and [{"broker_ids": ids} for ids in assignments],
            }
            for name, count, assignments in topics
        ],
        timeout=datetime.timedelta(seconds=1),
        validate_only=validate_only,
    ).results


@pytest.fixture
def hosted(broker, tmp_path):
    broker.host(tmp_path / "log")
    names = ("t", "__consumer_offsets", "__share_group_state")
    broker.controller.create_topics([NewTopic(name=name) for name in names])
    return broker


def partition_count(broker, topic):
    return len(broker.controller.image.topics_by_name[topic].partitions)


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_are_added_and_led(hosted, version):
    (result,) = grow(hosted, version, ("t", 3, None))
    assert (result.name, result.error_code, result.error_message) == ("t", ErrorCode.none, None)
    assert partition_count(hosted, "t") == 3
    hosted.append("t", b"x", partition=2)


def test_partitions_are_assigned_by_hand(hosted):
    (result,) = grow(hosted, 3, ("t", 3, [(1,), (1,)]))
    assert result.error_code is ErrorCode.none
    assert hosted.controller.image.topics_by_name["t"].partitions[2].replicas == (1,)


def test_validating_only_adds_nothing(hosted):
    (result,) = grow(hosted, 3, ("t", 3, None), validate_only=True)
    assert result.error_code is ErrorCode.none
    assert partition_count(hosted, "t") == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("gone", 3, None), ErrorCode.unknown_topic_or_partition),
        (("t", 1, None), ErrorCode.invalid_partitions),
        (("t", 0, None), ErrorCode.invalid_partitions),
        (("t", 2**31 - 1, None), ErrorCode.policy_violation),
        (("t", 3, [(1,)]), ErrorCode.invalid_replica_assignment),
        (("t", 2, [(9,)]), ErrorCode.invalid_replica_assignment),
        (("t", 2, [(1, 1)]), ErrorCode.invalid_replica_assignment),
        (("t", 2, [()]), ErrorCode.invalid_replica_assignment),
        (("__consumer_offsets", 2, None), ErrorCode.policy_violation),
        (("__share_group_state", 2, None), ErrorCode.policy_violation),
    ],
)
def test_failed_additions_are_errors_of_their_topics(hosted, asked, code):
    hosted.controller.create_topics([NewTopic(name="other")])
    bad, good = grow(hosted, 3, asked, ("other", 2, None))
    assert bad.error_code is code
    assert asked[0] in bad.error_message
    assert good.error_code is ErrorCode.none
    assert partition_count(hosted, "other") == 2


def test_topic_named_twice_is_refused(hosted):
    results = grow(hosted, 3, ("t", 2, None), ("t", 3, None))
    assert [result.error_code for result in results] == [ErrorCode.invalid_request]


def test_too_many_partitions_over_all_topics_are_refused(hosted):
    results = grow(hosted, 3, ("t", 9_001, None), ("t2", 2_000, None), validate_only=True)
    assert results[0].error_code is ErrorCode.none
    hosted.controller.create_topics([NewTopic(name="t2")])
    results = grow(hosted, 3, ("t", 9_001, None), ("t2", 2_000, None), validate_only=True)
    assert results[1].error_code is ErrorCode.policy_violation


def test_partitions_are_there_after_a_restart(hosted, cluster_metadata):
    grow(hosted, 3, ("t", 4, None))
    assert len(cluster_metadata.replayed().image.topics_by_name["t"].partitions) == 4
