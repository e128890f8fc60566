"""Internal topics created by a member of a cluster. The test plays the controller channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.coordinator_elections import (
    offsets_topic,
    transaction_state_topic,
)
from isotherm.broker.metadata.quorum import topic_creation
from isotherm.broker.metadata.quorum.topic_creation import MemberTopicCreator
from isotherm.config.broker import BrokerConfig
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError, PeerTimeoutError
from isotherm.testing.sim_clock import SimClock


class Channel:
    """A controller channel that keeps each request with the future of its answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Future[Any]]] = []

    def send(self, request: Any, timeout_s: float) -> Future[Any]:
        answer: Future[Any] = Future()
        self.sent.append((request, answer))
        return answer


def run(scenario: Callable[[Channel, MemberTopicCreator], Awaitable[None]]) -> None:
    async def main() -> None:
        channel = Channel()
        await scenario(channel, MemberTopicCreator(channel.send, SimClock()))

    asyncio.run(main())


def answered(name: str, code: ErrorCode) -> Any:
    result = SimpleNamespace(name=name, error_code=code, error_message="why")
    return SimpleNamespace(topics=(result,))


def test_topics_have_kafkas_settings(tmp_path: Any) -> None:
    """The settings that AutoTopicCreationManager sends, read from the metadata records of a Kafka
    cluster."""

    async def scenario(channel: Channel, create: MemberTopicCreator) -> None:
        config = BrokerConfig(log_dirs=(tmp_path,))
        await create(offsets_topic(config))
        await create(transaction_state_topic(config))
        (offsets,), (transactions,) = (request.topics for request, _ in channel.sent)
        assert (offsets.name, offsets.num_partitions, offsets.replication_factor) == (
            "__consumer_offsets",
            50,
            3,
        )
        assert {each.name: each.value for each in offsets.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert (transactions.name, transactions.num_partitions) == ("__transaction_state", 50)
        assert transactions.replication_factor == 3
        assert {each.name: each.value for each in transactions.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": "104857600",
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "false",
        }

    run(scenario)


def test_topic_is_asked_for_once_at_a_time(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(channel: Channel, create: MemberTopicCreator) -> None:
        topic = offsets_topic(BrokerConfig(log_dirs=(tmp_path,)))
        await create(topic)
        await create(topic)
        assert len(channel.sent) == 1
        channel.sent[0][1].set_result(answered(topic.name, ErrorCode.invalid_replication_factor))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "INVALID_REPLICATION_FACTOR" in caplog.text
        await create(topic)
        assert len(channel.sent) == 2
        channel.sent[1][1].set_exception(PeerTimeoutError("no controller answers"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # The same outage: clients ask for the topic again and again.
        assert len(caplog.records) == 1
        await create(topic)
        assert len(channel.sent) == 3
        channel.sent[2][1].set_result(answered(topic.name, ErrorCode.none))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert caplog.messages[1:] == ["controller has created a topic topic=__consumer_offsets"]

    with caplog.at_level(logging.INFO, topic_creation.__name__):
        run(scenario)


@pytest.mark.parametrize(
    "key", ["offsets.topic.replication.factor", "transaction.state.log.replication.factor"]
)
def test_embedded_controller_refuses_more_than_one_replica(tmp_path: Any, key: str) -> None:
    texts = {"log.dirs": str(tmp_path)}
    parse_broker_config({**texts, key: "1"})
    with pytest.raises(ConfigError, match=key):
        parse_broker_config({**texts, key: "3"})
