"""FindCoordinator: the broker itself with an embedded controller, the leader of the key's partition
in a cluster."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import find_coordinator
from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.server.requests.context import RequestContext
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader


@pytest.mark.parametrize("version", range(4))
def test_this_broker_coordinates_one_key(broker, version):
    response = broker.call(ApiKey.FIND_COORDINATOR, version, key="group", key_type=0)
    assert (response.error_code, response.node_id, response.host, response.port) == (
        ErrorCode.none,
        1,
        "broker.example",
        9092,
    )


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("key_type", [0, 1])
def test_this_broker_coordinates_every_key_of_a_batch(broker, version, key_type):
    response = broker.call(
        ApiKey.FIND_COORDINATOR,
        version,
        coordinator_keys=("a", "b"),
        key_type=key_type,
        listener="INTERNAL",
    )
    assert [(c.key, c.error_code, c.node_id, c.host, c.port) for c in response.coordinators] == [
        ("a", ErrorCode.none, 1, "10.0.0.1", 19092),
        ("b", ErrorCode.none, 1, "10.0.0.1", 19092),
    ]


@pytest.mark.parametrize("key_type", [2, 9, -1])
def test_unknown_key_type_is_an_invalid_request(broker, key_type):
    one = broker.call(ApiKey.FIND_COORDINATOR, 3, key="a", key_type=key_type)
    many = broker.call(ApiKey.FIND_COORDINATOR, 6, coordinator_keys=("a",), key_type=key_type)
    assert one.error_code is ErrorCode.invalid_request
    assert (one.node_id, one.host, one.port) == (-1, "", -1)
    assert many.coordinators[0].error_code is ErrorCode.invalid_request


def test_this_broker_coordinates_every_share_partition(broker):
    share_partition = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
    response = broker.call(
        ApiKey.FIND_COORDINATOR, 6, coordinator_keys=(share_partition, "g"), key_type=2
    )
    assert [(c.key, c.error_code, c.node_id) for c in response.coordinators] == [
        (share_partition, ErrorCode.none, 1),
        ("g", ErrorCode.invalid_request, -1),
    ]


def test_coordinator_is_not_available_by_a_listener_that_is_not_advertised(broker):
    response = broker.call(
        ApiKey.FIND_COORDINATOR, 6, coordinator_keys=("a",), key_type=0, listener="HIDDEN"
    )
    (answer,) = response.coordinators
    assert answer.error_code is ErrorCode.coordinator_not_available
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)


class Member:
    """A member of a cluster. Its image has the leaders; the controller is another process."""

    def __init__(self, broker):
        topic = TopicImage(
            "__consumer_offsets",
            uuid.UUID(int=1),
            tuple(
                PartitionImage(index, (1, 2), (1, 2), leader, 5, 5)
                for index, leader in enumerate(LEADERS)
            ),
        )
        brokers = {
            2: BrokerImage(2, 1, None, None, False, endpoints=(Endpoint("PLAINTEXT", "two", 9),)),
            3: BrokerImage(3, 1, None, None, True, endpoints=(Endpoint("PLAINTEXT", "three", 9),)),
        }
        image = MetadataImage(topics_by_name={topic.name: topic}, brokers=brokers)
        self.asked = []
        self._services = replace(
            broker.services,
            embedded_controller=None,
            metadata=SimpleNamespace(image=image),
            group_coordinator=SimpleNamespace(ensure_topic=self._ensure("groups")),
            transaction_coordinator=SimpleNamespace(ensure_topic=self._ensure("transactions")),
            share_coordinator=SimpleNamespace(ensure_topic=self._ensure("shares")),
        )

    def _ensure(self, name):
        async def ensure():
            self.asked.append(name)

        return ensure

    def find(self, key_type, *keys, listener="PLAINTEXT"):
        header = RequestHeader(ApiKey.FIND_COORDINATOR, 6, 1, "test")
        context = RequestContext(self._services, header, "127.0.0.1", listener)
        fields = {"coordinator_keys": keys, "key_type": key_type}
        request = entity_of(request_class(ApiKey.FIND_COORDINATOR, 6), fields)
        return asyncio.run(find_coordinator.handle(context, request)).coordinators


# Leaders by partition: this broker, another one, none, a fenced one, one that is not registered.
LEADERS = (1, 2, -1, 3, 4)


def key_of(index):
    return next(f"g{n}" for n in range(99) if coordinator_partition(f"g{n}", len(LEADERS)) == index)


def test_coordinator_is_the_leader_of_the_keys_partition(broker):
    member = Member(broker)
    found = member.find(0, *(key_of(index) for index in range(len(LEADERS))))
    away = (ErrorCode.coordinator_not_available, -1, "", -1)
    assert [(each.error_code, each.node_id, each.host, each.port) for each in found] == [
        (ErrorCode.none, 1, "broker.example", 9092),
        (ErrorCode.none, 2, "two", 9),
        away,
        away,
        away,
    ]
    assert member.asked == []


def test_coordinator_without_the_clients_listener_is_not_available(broker):
    (found,) = Member(broker).find(0, key_of(1), listener="INTERNAL")
    assert found.error_code is ErrorCode.coordinator_not_available


def test_missing_topic_of_a_cluster_is_asked_for(broker):
    member = Member(broker)
    (found,) = member.find(1, "tx")
    assert found.error_code is ErrorCode.coordinator_not_available
    assert member.asked == ["transactions"]
