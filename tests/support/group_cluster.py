"""Three group coordinators over a model of replicated logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.groups.classic_protocol import Protocol
from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator, Joining
from isotherm.broker.coordinators.groups.offset_coordinator import Committer
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC, OffsetsTopic
from isotherm.broker.metadata.image import ConfigResource, MetadataImage
from isotherm.broker.metadata.internal_topics import InternalTopic
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.model_replicas import (
    LateEvents,
    ModelPartition,
    ModelReplicaManager,
    model_metadata,
)

BROKERS = 3
T0 = TopicPartition("t", 0)


class Cluster:
    """The replicated offsets partition and a coordinator on each broker. `late` holds the
    notifications of leadership that have not arrived. `group_texts` are the settings of every
    group. `loop` is by default the running one. `settings` are those of the brokers."""

    def __init__(self, loop: Any = None, **settings: Any) -> None:
        self.partition = ModelPartition(TopicPartition(OFFSETS_TOPIC, 0), leader=0)
        self.clock = SimClock()
        self.group_texts: dict[str, str] = {}
        self.image = MetadataImage()
        self._loop = loop or asyncio.get_running_loop()
        config = GroupConfig(group_initial_rebalance_delay_ms=0, **settings)
        self.broker_config = SimpleNamespace(groups=config)
        self.coordinators = [self._coordinator(number, config) for number in range(BROKERS)]
        self.late = LateEvents(self.coordinators)
        self.late.moved(self.partition)
        self.late.deliver_all()

    def texts_of(self, _resource: ConfigResource) -> Mapping[str, str]:
        return self.group_texts

    def group_config(self, _group_id: str) -> GroupLevelConfig:
        return GroupLevelConfig.parse(self.group_texts, self.broker_config.groups)

    def _coordinator(self, broker_id: int, config: GroupConfig) -> Any:
        replicas: Any = ModelReplicaManager({self.partition.name: self.partition}, broker_id)
        described = InternalTopic(name=OFFSETS_TOPIC, partitions=1, replication_factor=3)
        nothing: Any = None
        metadata: Any = self
        topic = CoordinatorTopic(model_metadata(__consumer_offsets=1), replicas, nothing, described)
        return GroupCoordinator(
            config,
            OffsetsTopic(topic, self.clock),
            metadata,
            self.clock,
            random.Random(0),
            self._loop,
        )

    def move(self, leader: int, *, kept: int = 0, is_known: bool = True) -> None:
        self.partition.move(leader, kept=kept)
        self.late.moved(self.partition)
        if is_known:
            self.late.deliver_all()

    async def commit(self, broker_id: int, offset: int) -> None:
        coordinator = self.coordinators[broker_id]
        codes = coordinator.offsets.commit("g", Committer(), {T0: OffsetAndMetadata(offset)})
        if (waiting := coordinator.uncommitted("g")) is not None:
            await waiting
        assert set(codes.values()) == {ErrorCode.none}

    async def fetch(self, broker_id: int) -> int:
        coordinator = self.coordinators[broker_id]
        found = coordinator.offsets.fetch("g", [T0])[T0].committed
        if (waiting := coordinator.uncommitted("g")) is not None:
            await waiting
        return -1 if found is None else found.offset

    async def stop(self) -> None:
        for coordinator in self.coordinators:
            await coordinator.stop()


def run(scenario: Callable[[Cluster], Awaitable[None]], loop: Any = None, **settings: Any) -> None:
    async def main() -> None:
        cluster = Cluster(loop, **settings)
        try:
            await scenario(cluster)
        finally:
            await cluster.stop()

    asyncio.run(main())


def joining(member_id: str = "") -> Joining:
    protocols = (Protocol("range", b"m"),)
    return Joining(
        "g", member_id, None, "c", "/h", "consumer", protocols, 10_000, 10_000, False, False
    )


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
