"""A share coordinator over real logs and a real controller, without a network."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.coordinators.coordinator_elections import (
    embedded_topic_creator,
    open_share_coordinator,
)
from isotherm.broker.coordinators.shares.share_state_records import (
    SHARE_STATE_TOPIC,
    ShareStateRecord,
    decode_record,
)
from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.server.requests.context import RequestContext
from isotherm.config.broker import BrokerConfig
from isotherm.config.share_coordinator import ShareCoordinatorConfig
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.protocol.api_keys import request_class
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader
from isotherm.record.batch import iterate_batches, read_records
from tests.support.led_topic import alone, delete_topic


class Broker:
    """A broker over one folder. Each `run` starts it, plays a scenario, and stops it."""

    def __init__(self, cluster_metadata: Any, directory: Path) -> None:
        self.clock = cluster_metadata.clock
        self._cluster_metadata = cluster_metadata
        self._directory = directory

    def run(self, scenario: Callable[[], Awaitable[None]], **settings: Any) -> None:
        asyncio.run(self._live(scenario, settings))

    async def _live(
        self, scenario: Callable[[], Awaitable[None]], settings: dict[str, Any]
    ) -> None:
        shares = ShareCoordinatorConfig(share_coordinator_state_topic_num_partitions=1, **settings)
        config = BrokerConfig(log_dirs=(self._directory,), share_coordinator=shares)
        self.controller = self._cluster_metadata.start(config)
        log_manager = LogManager(
            [self._directory],
            config=config,
            topic_config_for=self.controller.topic_config,
            clock=self.clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        log_manager.startup()
        loop = asyncio.get_running_loop()
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, failure: failures.append(failure))
        self.replica_manager = ReplicaManager(
            log_manager, Purgatory(loop, operations_max=10), alone(self.clock)
        )
        topics = tuple(self.controller.image.topics_by_name.values())
        self._follow(MetadataChange(self.controller.image, topics))
        self.controller.add_listener(self._follow)
        with ThreadPoolExecutor(1) as executor:
            self.coordinator = open_share_coordinator(
                config,
                self.controller,
                self.replica_manager,
                embedded_topic_creator(self.controller, executor),
                self.clock,
            )
            await self.coordinator.wait_until_loaded()
            await scenario()
            await self.coordinator.stop()
        log_manager.shutdown()
        assert failures == []

    def _follow(self, change: MetadataChange) -> None:
        for topic in change.deleted:
            delete_topic(self.replica_manager, topic.name)
        for topic in change.created:
            config = self.controller.topic_config(topic.name)
            self.replica_manager.take_roles(topic, topic.partitions, config, is_new=True)

    # ---- actions of the tests

    def create_topic(self, name: str = "t", partitions: int = 3) -> Any:
        """Create a topic, and return its id."""
        (created,) = self.controller.create_topics([NewTopic(name=name, num_partitions=partitions)])
        assert created.error is None
        return self.controller.image.topics_by_name[name].topic_id

    def state_partition(self) -> Partition:
        return self.replica_manager.find_partition(SHARE_STATE_TOPIC, None, 0)

    def records(self) -> list[ShareStateRecord]:
        """The records of the log, without those that were pruned."""
        log = self.state_partition().log
        read = log.read(log.log_start_offset, 1 << 20).records
        decoded = [
            decode_record(record.key, record.value)
            for position, header in iterate_batches(read)
            for record in read_records(read, position, header)
            if record.offset >= log.log_start_offset
        ]
        return [record for record in decoded if record is not None]

    async def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """The response of the API's handler."""
        services = SimpleNamespace(
            share_coordinator=self.coordinator, embedded_controller=self.controller
        )
        header = RequestHeader(api_key, version, 1, "test")
        context = RequestContext(cast("Any", services), header, "127.0.0.1", "PLAINTEXT")
        response = APIS[api_key].handle(context, entity_of(request_class(api_key, version), fields))
        return await response if inspect.isawaitable(response) else response


@pytest.fixture
def broker(cluster_metadata: Any, tmp_path: Path) -> Broker:
    directory = tmp_path / "data"
    directory.mkdir()
    return Broker(cluster_metadata, directory)
