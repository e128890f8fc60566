"""How a member of a cluster describes the other brokers, from the metadata alone."""

from __future__ import annotations

import dataclasses
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.directory_ids import LOST, MIGRATING, UNASSIGNED
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.protocol.api_keys import ApiKey

DIR_1, DIR_2, GONE = (uuid.UUID(int=number) for number in (1001, 1002, 1003))
TOPIC_ID = uuid.UUID(int=77)


def broker_image(broker_id: int, *listeners: str, **more: Any) -> BrokerImage:
    endpoints = tuple(Endpoint(name, f"host-{broker_id}", 9000 + broker_id) for name in listeners)
    values: dict[str, Any] = {"fenced": False, "log_dirs": (DIR_1, DIR_2), "endpoints": endpoints}
    return BrokerImage(broker_id, 100, None, rack=f"rack-{broker_id}", **{**values, **more})


def partition(index: int, leader: int, **more: Any) -> PartitionImage:
    values: dict[str, Any] = {
        "replicas": (1, 2, 3),
        "isr": (1, 2),
        "leader_epoch": 5,
        "partition_epoch": 9,
        "directories": (DIR_1, DIR_2, DIR_1),
    }
    return PartitionImage(index, leader=leader, **{**values, **more})


@pytest.fixture
def member(broker: Any) -> Any:
    """A member of a cluster. Brokers 1 (this one) and 2 are alive, 3 is fenced, 4 lacks the
    client's listener."""
    topic = TopicImage(
        "t",
        TOPIC_ID,
        (
            partition(0, 2),
            partition(1, 3),
            partition(2, -1, isr=(), elr=(2,), last_known_elr=(3,)),
            partition(3, 4, replicas=(4, 2, 1), directories=(DIR_1, GONE, LOST)),
            partition(4, 1, directories=(UNASSIGNED, MIGRATING, DIR_1)),
        ),
    )
    image = MetadataImage(
        topics_by_name={"t": topic},
        topics_by_id={TOPIC_ID: topic},
        brokers={
            1: broker_image(1, "PLAINTEXT", "INTERNAL"),
            2: broker_image(2, "PLAINTEXT"),
            3: broker_image(3, "PLAINTEXT", fenced=True),
            4: broker_image(4, "INTERNAL"),
        },
    )
    broker.services = dataclasses.replace(
        broker.services,
        embedded_controller=None,
        metadata=cast("Any", SimpleNamespace(image=image)),
    )
    return broker


def metadata(member: Any, version: int = 12, **more: Any) -> Any:
    return member.call(
        ApiKey.METADATA,
        version,
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
        **more,
    )


def test_metadata_names_the_brokers_that_the_listener_reaches(member: Any) -> None:
    response = metadata(member)
    assert [
        (broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
    ] == [
        (1, "host-1", 9001, "rack-1"),
        (2, "host-2", 9002, "rack-2"),
    ]
    assert response.controller_id == 1
    internal = metadata(member, listener="INTERNAL")
    assert [broker.node_id for broker in internal.brokers] == [1, 4]


def test_metadata_of_partitions(member: Any) -> None:
    response = metadata(member)
    (topic,) = response.topics
    assert [
        (each.error_code, each.leader_id, each.leader_epoch, tuple(each.offline_replicas))
        for each in topic.partitions
    ] == [
        (ErrorCode.none, 2, 5, (3,)),
        # The fenced leader is shown: clients stay with it until another one is elected.
        (ErrorCode.none, 3, 5, (3,)),
        (ErrorCode.leader_not_available, -1, 5, (3,)),
        (ErrorCode.listener_not_found, -1, 5, (4, 2, 1)),
        (ErrorCode.none, 1, 5, (3,)),
    ]
    old = metadata(member, 5)
    assert old.topics[0].partitions[3].error_code == ErrorCode.leader_not_available


def test_described_partitions_have_their_eligible_leaders(member: Any) -> None:
    response = member.call(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=(), response_partition_limit=2000, cursor=None
    )
    found = response.topics[0].partitions[2]
    assert (found.leader_id, tuple(found.isr_nodes)) == (-1, ())
    assert tuple(found.eligible_leader_replicas) == (2,)
    assert tuple(found.last_known_elr) == (3,)


@pytest.mark.parametrize(("with_fenced", "expected"), [(False, [1, 2]), (True, [1, 2, 3])])
def test_described_cluster(member: Any, with_fenced: bool, expected: list[int]) -> None:
    response = member.call(
        ApiKey.DESCRIBE_CLUSTER,
        2,
        include_cluster_authorized_operations=False,
        endpoint_type=1,
        include_fenced_brokers=with_fenced,
    )
    assert [broker.broker_id for broker in response.brokers] == expected
    assert [broker.is_fenced for broker in response.brokers] == [each == 3 for each in expected]
    assert response.controller_id == 1


def test_fenced_member_names_another_broker_for_the_controllers_requests(member: Any) -> None:
    image = member.services.metadata.image
    brokers = {**image.brokers, 1: image.brokers[1]._replace(fenced=True)}
    member.services.metadata.image = dataclasses.replace(image, brokers=brokers)
    response = metadata(member)
    assert response.controller_id == 2
