"""The persister of share partitions' states, beside the coordinator's own methods: with the
coordinator in this broker, in another one over a real connection, away, moved, and in another
epoch."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.coordinators.shares.share_state import BATCHES_MAX, StateWrite
from isotherm.broker.coordinators.shares.share_state_records import (
    SHARE_STATE_TOPIC,
    UNKNOWN_COUNT,
    SharePartitionKey,
)
from isotherm.broker.coordinators.shares.state_batches import NO_START_OFFSET, StateBatch
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.node import BrokerNode
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.share_partitions.persister import (
    BATCHES_TOGETHER_MAX,
    Persister,
    StateBatches,
    send_state_requests,
)
from isotherm.broker.share_partitions.state_requests import (
    InitializeState,
    ReadByLeader,
    ReadState,
    StateSummary,
    WriteState,
)
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import SystemClock
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import (
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    NotCoordinatorError,
    PeerDisconnectedError,
    UnknownTopicOrPartitionError,
)

PARTITIONS = 5
NO_SUCH_TOPIC = uuid.UUID(int=7)
BATCHES = (StateBatch(10, 19, 1, 0), StateBatch(20, 20, 2, 2))


def connect(address: NodeAddress) -> NodeConnection:
    return NodeConnection(
        address,
        client_id="broker-2",
        connect_timeout_s=300,
        request_timeout_s=300,
        response_bytes_max=1 << 20,
    )


class Local:
    """Broker 2's own coordinator, which is asked for nothing but the topic. A test has `actions`
    done before the attempts, one before each."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.attempt_count = 0
        self.actions: list[Callable[[], None]] = []

    async def ensure_topic(self) -> None:
        self.attempt_count += 1
        await self._node.services.share_coordinator.ensure_topic()
        if self.actions:
            self.actions.pop(0)()
            await self._node.services.share_coordinator.wait_until_loaded()


class Brokers:
    """Broker 1 is real. `elsewhere` is the persister of broker 2, which sees broker 1 as the
    coordinator of all states; `local` is that of broker 1."""

    def __init__(self, node: BrokerNode) -> None:
        self.coordinator = node.services.share_coordinator
        self.local = Persister(node.services.metadata, self.coordinator)
        self._node = node
        (endpoint,) = node.endpoints
        self.address = NodeAddress("127.0.0.1", endpoint.port)
        self.leader = 1
        self.own = Local(node)
        self.metadata: Any = SimpleNamespace(broker_config=SimpleNamespace(node_id=2))
        self.batches: StateBatches = PeerBatches(
            "states", connect, send_state_requests, SystemClock(), queued_max=100, batch_max=100
        )
        self.elsewhere = Persister(
            self.metadata,
            self.own,
            self.batches,
            "PLAINTEXT",
            (0, 0, 0),  # type: ignore[arg-type]
        )

    @property
    def topics(self) -> Any:
        return self._node.services.metadata.image.topics_by_name

    def key(self, partition: int = 0, group_id: str = "g") -> SharePartitionKey:
        return SharePartitionKey(group_id, self.topics["t"].topic_id, partition)

    def update(self) -> None:
        """Publish broker 2's image, with the present leader and address."""
        partition = PartitionImage(0, (1, 2), (1, 2), self.leader, 1, 1)
        topics = {
            name: TopicImage(name, topic.topic_id, (partition,) * len(topic.partitions))
            for name, topic in self.topics.items()
        }
        endpoint = Endpoint("PLAINTEXT", self.address.host, self.address.port)
        broker = BrokerImage(1, 1, None, None, False, endpoints=(endpoint,))
        self.metadata.image = MetadataImage(
            topics_by_name=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
            brokers={1: broker},
        )

    def resign(self) -> None:
        for partition in self.topics[SHARE_STATE_TOPIC].partitions:
            self.coordinator.on_resignation(partition.partition, None)

    def elect(self) -> None:
        for partition in self.topics[SHARE_STATE_TOPIC].partitions:
            self.coordinator.on_election(partition.partition, partition.leader_epoch)

    async def initialize(self, *keys: SharePartitionKey) -> None:
        answers = await self.local.initialize([InitializeState(key, 1, 10) for key in keys])
        assert answers == dict.fromkeys(keys)
        self.update()

    async def stop(self) -> None:
        await self.local.stop()
        await self.elsewhere.stop()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Brokers], Awaitable[None]]], None]:
    """Runs a scenario with broker 1 started over an empty folder."""

    async def main(scenario: Callable[[Brokers], Awaitable[None]]) -> None:
        texts = {
            **embedded_defaults(tmp_path, {}),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "remote.log.storage.system.enable": "false",
            "share.coordinator.state.topic.num.partitions": "2",
        }
        node = BrokerNode(parse_broker_config(texts))
        await node.start()
        controller = node.services.controller
        topic = NewTopic(name="t", num_partitions=PARTITIONS)
        await node.services.run_control(lambda: controller.create_topics([topic]))
        brokers = Brokers(node)
        try:
            await scenario(brokers)
        finally:
            await brokers.stop()
            await node.stop()

    return lambda scenario: asyncio.run(main(scenario))


def write(key: SharePartitionKey, state_epoch: int = 1, leader_epoch: int = 5) -> WriteState:
    return WriteState(key, StateWrite(state_epoch, leader_epoch, 10, 3, BATCHES))


def test_a_state_that_this_broker_alone_has_is_written_at_once(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        assert not brokers.local.write_at_once(write(key)), "there is no topic yet"
        await brokers.initialize(key)
        await brokers.local.read([ReadByLeader(key, 5)])
        assert brokers.local.write_at_once(write(key))
        read = await brokers.local.read([ReadByLeader(key, 5)])
        assert read == {key: ReadState(1, 10, BATCHES)}
        assert not brokers.elsewhere.write_at_once(write(key)), "broker 1 coordinates it"
        # The error is that of `write`.
        assert not brokers.local.write_at_once(write(key, leader_epoch=4))
        answers = await brokers.local.write([write(key, leader_epoch=4)])
        assert isinstance(answers[key], FencedLeaderEpochError)
        brokers.resign()
        assert not brokers.local.write_at_once(write(key)), "this broker coordinates nothing"
        brokers.leader = 2
        brokers.update()
        assert not brokers.elsewhere.write_at_once(write(key)), "broker 1 has a replica, too"

    run(scenario)


@pytest.mark.parametrize("place", ["local", "elsewhere"])
def test_a_state_begins_is_written_read_and_deleted(run: Any, place: str) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.coordinator.ensure_topic()
        brokers.update()
        persister: Persister = getattr(brokers, place)
        keys = [brokers.key(partition) for partition in range(PARTITIONS)]
        keys.append(brokers.key(0, "another"))
        begun = await persister.initialize([InitializeState(key, 2, 10) for key in keys])
        assert begun == dict.fromkeys(keys)
        assert await persister.read([ReadByLeader(key, 5) for key in keys]) == dict.fromkeys(
            keys, ReadState(2, 10, ())
        )
        written = await persister.write([write(keys[1], state_epoch=2)])
        assert written == {keys[1]: None}
        read = await persister.read([ReadByLeader(keys[1], 5)])
        assert read == {keys[1]: ReadState(2, 10, BATCHES)}
        assert await persister.read_summaries(keys[:2]) == {
            keys[0]: StateSummary(2, 5, 10, 0),
            keys[1]: StateSummary(2, 5, 10, 3),
        }
        assert await persister.delete(keys[:2]) == dict.fromkeys(keys[:2])
        assert await persister.read_summaries(keys[1:3]) == {
            keys[1]: StateSummary(0, 0, NO_START_OFFSET, UNKNOWN_COUNT),
            keys[2]: StateSummary(2, 5, 10, 0),
        }
        left = {key for shard in range(2) for key in brokers.coordinator._shards.at(shard).states}
        assert left == set(keys[2:])

    run(scenario)


def test_the_topic_of_the_states_is_created_by_the_first_state(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        none = StateSummary(0, 0, NO_START_OFFSET, UNKNOWN_COUNT)
        assert await brokers.local.read_summaries([key]) == {key: none}
        assert await brokers.local.delete([key]) == {key: None}
        for refused in (
            await brokers.local.read([ReadByLeader(key, 5)]),
            await brokers.local.write([write(key)]),
        ):
            assert isinstance(refused[key], InvalidRequestError)
        assert SHARE_STATE_TOPIC not in brokers.topics
        await brokers.initialize(brokers.key())
        assert len(brokers.topics[SHARE_STATE_TOPIC].partitions) == 2

    run(scenario)


@pytest.mark.parametrize("place", ["local", "elsewhere"])
def test_another_epoch_is_refused_at_once(run: Any, place: str) -> None:
    async def scenario(brokers: Brokers) -> None:
        keys = [brokers.key(partition) for partition in range(4)]
        await brokers.initialize(*keys[:3])
        persister: Persister = getattr(brokers, place)
        assert await persister.read([ReadByLeader(keys[0], 5)]) == {keys[0]: ReadState(1, 10, ())}
        answers = await persister.write(
            [
                write(keys[0], leader_epoch=4),
                write(keys[1], state_epoch=0),
                write(keys[2]),
                write(keys[3]),
            ]
        )
        assert [type(answers[key]) for key in keys] == [
            FencedLeaderEpochError,
            FencedStateEpochError,
            type(None),
            InvalidRequestError,
        ]
        assert brokers.own.attempt_count == (2 if place == "elsewhere" else 0)

    run(scenario)


def test_a_coordinator_that_moves_is_found(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        await brokers.initialize(key)
        # Nobody leads the partition, then a broker that has resigned, then one that is elected.
        brokers.leader = -1
        brokers.update()

        def lead() -> None:
            brokers.leader = 1
            brokers.update()

        brokers.own.actions = [brokers.resign, lead, brokers.elect]
        assert await brokers.elsewhere.read([ReadByLeader(key, 5)]) == {key: ReadState(1, 10, ())}
        assert brokers.own.attempt_count == 3

    run(scenario)


def test_attempts_end(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        await brokers.initialize(key)
        brokers.resign()
        answers = await brokers.elsewhere.read([ReadByLeader(key, 5)])
        assert isinstance(answers[key], NotCoordinatorError)
        assert brokers.own.attempt_count == 4
        brokers.leader = -1
        brokers.update()
        answers = await brokers.elsewhere.read([ReadByLeader(key, 5)])
        assert isinstance(answers[key], CoordinatorNotAvailableError)

    run(scenario)


def test_a_coordinator_that_is_away_is_asked_again_at_its_new_address(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        await brokers.initialize(key)
        present = brokers.address
        with socket.create_server(("127.0.0.1", 0)) as closed:
            brokers.address = NodeAddress("127.0.0.1", closed.getsockname()[1])
        brokers.update()

        def restart() -> None:
            brokers.address = present
            brokers.update()

        brokers.own.actions = [lambda: None, restart]
        assert await brokers.elsewhere.write([write(key)]) == {key: None}
        assert brokers.own.attempt_count == 2

    run(scenario)


def test_a_coordinator_that_stays_away_is_told(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        await brokers.initialize(key)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            brokers.address = NodeAddress("127.0.0.1", closed.getsockname()[1])
        brokers.update()
        answers = await brokers.elsewhere.write([write(key)])
        assert isinstance(answers[key], PeerDisconnectedError)

    run(scenario)


def test_a_topic_that_the_coordinator_has_not_seen_is_asked_again(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.initialize(brokers.key())
        unseen = SharePartitionKey("g", NO_SUCH_TOPIC, 0)
        gone = await brokers.elsewhere.initialize([InitializeState(unseen, 1, 0)])
        assert isinstance(gone[unseen], UnknownTopicOrPartitionError)
        assert brokers.own.attempt_count == 1
        topic = TopicImage("new", NO_SUCH_TOPIC, brokers.topics["t"].partitions)
        brokers.metadata.image.topics_by_id[NO_SUCH_TOPIC] = topic
        unseen_yet = await brokers.elsewhere.initialize([InitializeState(unseen, 1, 0)])
        assert isinstance(unseen_yet[unseen], UnknownTopicOrPartitionError)
        assert brokers.own.attempt_count == 5

    run(scenario)


def test_a_stop_ends_the_wait_for_another_attempt(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        key = brokers.key()
        await brokers.initialize(key)
        brokers.resign()
        hour_s = 3600
        local = Persister(brokers.metadata, brokers.coordinator, backoffs_s=(hour_s,))
        asked = asyncio.create_task(local.read([ReadByLeader(key, 5)]))
        await asyncio.sleep(0)
        await local.stop()
        assert isinstance((await asked)[key], NotCoordinatorError)

    run(scenario)


class Recorded:
    """A connection that refuses what it is sent from the `limit`th request on."""

    def __init__(self, limit: int = 100) -> None:
        self.requests: list[Any] = []
        self._limit = limit

    def send(self, request: Any) -> Any:
        if len(self.requests) == self._limit:
            raise PeerDisconnectedError("away")
        self.requests.append(request)
        return SimpleNamespace(results=())

    def sizes(self) -> list[tuple[str, str, int]]:
        return [
            (
                type(request).__name__,
                request.group_id,
                sum(len(topic.partitions) for topic in request.topics),
            )
            for request in self.requests
        ]


def test_requests_of_one_kind_and_group_are_sent_together() -> None:
    keys = [SharePartitionKey(group, NO_SUCH_TOPIC, index) for group in "ab" for index in range(2)]
    connection: Any = Recorded()
    answers = send_state_requests(
        connection, [ReadByLeader(keys[0], 1), *map(write, keys), write(keys[0])]
    )
    assert sorted(connection.sizes()) == [
        ("ReadShareGroupStateRequest", "a", 1),
        ("WriteShareGroupStateRequest", "a", 1),
        ("WriteShareGroupStateRequest", "a", 2),
        ("WriteShareGroupStateRequest", "b", 2),
    ]
    # A broker that leaves partitions out of its response is asked again.
    assert {type(answer) for answer in answers} == {CoordinatorNotAvailableError}


def test_one_answer_is_bounded() -> None:
    together = BATCHES_TOGETHER_MAX // BATCHES_MAX
    keys = [SharePartitionKey("g", NO_SUCH_TOPIC, index) for index in range(together + 1)]
    connection: Any = Recorded()
    send_state_requests(connection, [ReadByLeader(key, 1) for key in keys])
    assert [size for *_, size in connection.sizes()] == [together, 1]


def test_a_lost_connection_is_the_answer_to_what_was_not_answered() -> None:
    keys = [SharePartitionKey(group, NO_SUCH_TOPIC, 0) for group in "ab"]
    connection: Any = Recorded(limit=1)
    answers = send_state_requests(connection, [ReadByLeader(key, 1) for key in keys])
    assert [type(answer) for answer in answers] == [
        CoordinatorNotAvailableError,
        PeerDisconnectedError,
    ]
