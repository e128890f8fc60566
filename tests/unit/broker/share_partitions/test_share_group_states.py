"""Share groups of one broker, with the states of their partitions: what happens behind an answer,
when share coordinators fail, when topics go, and while share groups are off."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.features import FeatureUpdate
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.node import BrokerNode
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.share_partitions.end_offsets import EndOffset, EndOffsets, ask_end_offsets
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import SystemClock
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import IsothermError, NotLeaderOrFollowerError, PeerDisconnectedError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import blank_entity, entity_of
from isotherm.protocol.framing import RequestHeader
from isotherm.record.batch import build_batch
from isotherm.types import TopicPartition

E = ErrorCode
PARTITIONS = 3
OF_CLIENTS = (
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
)


class Broker:
    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.services = node.services

    async def call(self, key: ApiKey, version: int, **fields: Any) -> Any:
        return await self.handle(key, version, entity_of(request_class(key, version), fields))

    async def handle(self, key: ApiKey, version: int, request: Any) -> Any:
        header = RequestHeader(key, version, 1, "test")
        context = RequestContext(self.services, header, "127.0.0.1", "PLAINTEXT")
        response = APIS[key].handle(context, request)
        return await response if inspect.isawaitable(response) else response

    async def beat(self, member: str, epoch: int = 0, *names: str) -> Any:
        return await self.call(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=names or (("t",) if epoch == 0 else None),
        )

    async def settle(self) -> None:
        """Let the initializations under way end."""
        tasks = self.services.share_group_states._tasks
        while tasks:
            await asyncio.wait(tuple(tasks))

    async def offsets(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The start offset and the lag of each partition that has a state."""
        answer = await self.call(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            1,
            groups=[{"group_id": "g", "topics": None}],
        )
        (group,) = answer.groups
        return {
            (topic.topic_name, partition.partition_index): (partition.start_offset, partition.lag)
            for topic in group.topics
            for partition in topic.partitions
        }

    def metric(self, name: str) -> dict[str, float]:
        """The values of a metric of the group coordinator, by its label."""
        prefix = "kafka_server_group_coordinator_metrics_"
        return {
            "".join(sample.labels.values()): sample.value
            for metric in self.node.metrics.registry.collect()
            if metric.name == prefix + name
            for sample in metric.samples
        }

    async def change(self, function: Callable[[Any], Any]) -> Any:
        controller = self.services.controller
        return await self.services.run_control(lambda: function(controller))


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Broker], Awaitable[None]]], None]:
    """Runs a scenario with a broker with topic t."""

    async def main(scenario: Callable[[Broker], Awaitable[None]]) -> None:
        texts = {
            **embedded_defaults(tmp_path, {}),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "remote.log.storage.system.enable": "false",
            "offsets.topic.num.partitions": "2",
            "share.coordinator.state.topic.num.partitions": "2",
            "group.share.assignment.interval.ms": "0",
        }
        node = BrokerNode(parse_broker_config(texts))
        await node.start()
        broker = Broker(node)
        topic = NewTopic(name="t", num_partitions=PARTITIONS)
        await broker.change(lambda controller: controller.create_topics([topic]))
        try:
            await scenario(broker)
        finally:
            await node.stop()

    return lambda scenario: asyncio.run(main(scenario))


def test_partitions_are_assigned_once_their_states_are_begun(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        joined = await broker.beat("a")
        assert (joined.error_code, joined.assignment.topic_partitions) == (E.none, ())
        await broker.settle()
        assert await broker.offsets() == {("t", index): (-1, -1) for index in range(PARTITIONS)}
        answer = await broker.beat("a", joined.member_epoch)
        (assigned,) = answer.assignment.topic_partitions
        assert assigned.partitions == tuple(range(PARTITIONS))
        assert broker.metric("share_group_count") == {"Dead": 0, "Empty": 0, "Stable": 1}
        left = await broker.beat("a", -1)
        assert (left.error_code, left.member_epoch) == (E.none, -1)
        assert broker.metric("share_group_count") == {"Dead": 0, "Empty": 1, "Stable": 0}
        assert broker.metric("group_count") == {"share": 1}
        # Joining, the partitions, and leaving.
        assert broker.metric("share_group_rebalance_count") == {"": 3}

    run(scenario)


def test_states_that_cannot_be_begun_are_begun_by_a_later_heartbeat(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        persister = broker.services.persister
        asked = persister.initialize

        async def fail(requests: Any) -> Any:
            answers = await asked(requests[:1])
            error = PeerDisconnectedError("the coordinator is away")
            return {**dict.fromkeys((request.key for request in requests), error), **answers}

        persister.initialize = fail  # type: ignore[method-assign]
        joined = await broker.beat("a")
        await broker.settle()
        assert await broker.offsets() == {}
        persister.initialize = asked  # type: ignore[method-assign]
        answer = await broker.beat("a", joined.member_epoch)
        assert answer.assignment is None
        await broker.settle()
        assert len(await broker.offsets()) == PARTITIONS

    run(scenario)


def test_a_group_that_goes_during_an_initialization_stays_away(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        persister = broker.services.persister
        asked = persister.initialize
        going_on = asyncio.Event()

        async def wait(requests: Any) -> Any:
            await going_on.wait()
            return await asked(requests)

        persister.initialize = wait  # type: ignore[method-assign]
        await broker.beat("a")
        await broker.beat("a", -1)
        deleted = await broker.call(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])
        assert [result.error_code for result in deleted.results] == [E.none]
        going_on.set()
        await broker.settle()
        listed = await broker.call(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=())
        assert listed.groups == ()

    run(scenario)


def test_lag_is_counted_from_the_start_offset(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        partition = broker.services.replica_manager.find_partition("t", None, 1)
        now_ms = SystemClock().now_ms()
        records = [(now_ms, None, b"v", ())] * 7
        partition.append(build_batch(records), required_acks=1, now_ms=now_ms)
        entry = {"partition_index": 1, "start_offset": 2}
        unknown = [{"partition_index": index, "start_offset": 0} for index in (-1, PARTITIONS)]
        altered = await broker.call(
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            0,
            group_id="g",
            topics=[{"topic_name": "t", "partitions": [entry, *unknown]}],
        )
        (topic,) = altered.responses
        assert [each.error_code for each in topic.partitions] == [
            E.none,
            E.unknown_topic_or_partition,
            E.unknown_topic_or_partition,
        ]
        assert await broker.offsets() == {("t", 1): (2, 5)}

    run(scenario)


def test_a_state_that_is_not_deleted_is_told_whichever_coordinator_has_it(run: Any) -> None:
    """The partitions of a topic have several coordinators, whose answers come one after the
    other: here those of partition 0 of both topics first."""

    async def scenario(broker: Broker) -> None:
        other = NewTopic(name="u", num_partitions=PARTITIONS)
        await broker.change(lambda controller: controller.create_topics([other]))
        await broker.beat("a", 0, "t", "u")
        await broker.settle()
        await broker.beat("a", -1)
        topic_id = broker.services.metadata.image.topics_by_name["t"].topic_id
        persister = broker.services.persister
        asked = persister.delete
        lost = PeerDisconnectedError("the coordinator has gone")

        async def delete(keys: Any) -> Any:
            by_coordinator = sorted(keys, key=lambda key: key.partition)
            return {
                key: lost if (key.topic_id, key.partition) == (topic_id, 0) else None
                for key in by_coordinator
            }

        persister.delete = delete  # type: ignore[method-assign]
        topics = [{"topic_name": name} for name in ("t", "u")]
        answer = await broker.call(
            ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics
        )
        codes = {topic.topic_name: topic.error_code for topic in answer.responses}
        assert codes == {"t": error_code(lost), "u": E.none}
        deleted = await broker.services.share_group_states.delete_group("g")
        assert deleted is error_code(lost)
        persister.delete = asked  # type: ignore[method-assign]
        assert await broker.services.share_group_states.delete_group("g") is E.none

    run(scenario)


def test_a_group_forgets_deleted_topics(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.beat("a")
        await broker.settle()
        group = broker.services.group_coordinator.share.find("g")
        assert group.states is not None
        assert len(group.states.initialized) == 1
        (topic_id,) = group.states.initialized
        await broker.change(lambda controller: controller.delete_topics([topic_id]))
        # The listener's call is on the loop before this one's answer.
        await asyncio.sleep(0)
        group = broker.services.group_coordinator.share.find("g")
        assert group.states is not None
        assert not group.states.initialized

    run(scenario)


@pytest.mark.parametrize("key", OF_CLIENTS)
def test_requests_are_refused_while_share_groups_are_off(run: Any, key: ApiKey) -> None:
    async def scenario(broker: Broker) -> None:
        off, on = (FeatureUpdate("share.version", level, 2 - level) for level in (0, 1))
        await broker.change(lambda controller: controller.update_features([off]))
        asked = {"group_ids": ["a"], "groups": [{"group_id": "a", "topics": None}]}
        version = APIS[key].versions.max
        request = blank_entity(request_class(key, version), asked)
        refused = await broker.handle(key, version, request)
        assert repr(refused).count(repr(E.unsupported_version)) == 1
        await broker.change(lambda controller: controller.update_features([on]))
        answer = await broker.handle(key, version, request)
        assert repr(E.unsupported_version) not in repr(answer)

    run(scenario)


# ---- ends of partitions that other brokers lead


def connect(address: NodeAddress) -> NodeConnection:
    return NodeConnection(
        address,
        client_id="broker-2",
        connect_timeout_s=300,
        request_timeout_s=300,
        response_bytes_max=1 << 20,
    )


def test_ends_come_from_the_leaders(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        partition = broker.services.replica_manager.find_partition("t", None, 1)
        now_ms = SystemClock().now_ms()
        batch = build_batch([(now_ms, None, b"v", ())])
        partition.append(batch, required_acks=1, now_ms=now_ms)
        (own,) = broker.node.endpoints
        leaders = [PartitionImage(0, (1, 2), (1, 2), leader, 1, 1) for leader in (1, 1, -1, 1)]
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", own.port)
        image = MetadataImage(
            topics_by_name={"t": TopicImage("t", None, tuple(leaders))},  # type: ignore[arg-type]
            brokers={1: BrokerImage(1, 1, None, None, False, endpoints=(endpoint,))},
        )
        metadata: Any = SimpleNamespace(image=image, broker_config=SimpleNamespace(node_id=2))
        batches: PeerBatches[TopicPartition, EndOffset] = PeerBatches(
            "ends", connect, ask_end_offsets, SystemClock(), queued_max=100, batch_max=100
        )
        ends = EndOffsets(metadata, broker.services.replica_manager, batches, "PLAINTEXT")
        asked = [TopicPartition("t", index) for index in range(4)]
        found = await ends.find(asked)
        assert [found[each] for each in asked[:2]] == [0, 1]
        assert isinstance(found[asked[2]], NotLeaderOrFollowerError)
        # Broker 2 sees a partition that the leader does not have.
        assert isinstance(found[asked[3]], Exception)
        await ends.stop()

    run(scenario)


def test_a_lost_leader_is_asked_again_and_a_stop_ends_that(run: Any) -> None:
    async def scenario(broker: Broker) -> None:
        first, second = (TopicPartition("t", index) for index in range(2))
        lost, hour_s = PeerDisconnectedError("lost"), 3600.0

        class Leaders:
            """Brokers of which each has these answers, one after the other."""

            def __init__(self, *answers: EndOffset) -> None:
                self.answers = list(answers)

            def submit(self, *_: Any) -> asyncio.Future[EndOffset]:
                answer = self.answers.pop(0)
                future: asyncio.Future[EndOffset] = asyncio.get_running_loop().create_future()
                if isinstance(answer, IsothermError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
                return future

            async def stop(self) -> None: ...

        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 1)
        leaders = tuple(PartitionImage(0, (1,), (1,), 1, 1, 1) for _ in range(2))
        image = MetadataImage(
            topics_by_name={"t": TopicImage("t", None, leaders)},  # type: ignore[arg-type]
            brokers={1: BrokerImage(1, 1, None, None, False, endpoints=(endpoint,))},
        )
        metadata: Any = SimpleNamespace(image=image, broker_config=SimpleNamespace(node_id=2))

        def ends_of(leaders: Any, *backoffs_s: float) -> EndOffsets:
            replicas = broker.services.replica_manager
            return EndOffsets(metadata, replicas, leaders, "PLAINTEXT", backoffs_s)

        # What has an answer, or an error of its leader, is not asked again.
        refusal = NotLeaderOrFollowerError("no")
        answers: Any = Leaders(lost, refusal, lost, 7)
        assert await ends_of(answers, 0, 0).find([first, second]) == {first: 7, second: refusal}
        assert answers.answers == []
        # Nor is anything after the last attempt.
        answers = Leaders(lost, lost, 7)
        assert await ends_of(answers, 0).find([first]) == {first: lost}
        assert answers.answers == [7]
        # A stop ends the wait.
        ends = ends_of(Leaders(lost), hour_s)
        waiting = asyncio.ensure_future(ends.find([first]))
        await asyncio.sleep(0)
        await ends.stop()
        assert await waiting == {first: lost}

    run(scenario)
