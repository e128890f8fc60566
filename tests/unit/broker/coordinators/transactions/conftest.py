"""A transaction coordinator over real logs and a real controller, without a network."""

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
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.coordinators.coordinator_elections import (
    embedded_topic_creator,
    follow_leadership,
    transaction_state_topic,
)
from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard
from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.broker.coordinators.transactions.transaction_log import (
    TRANSACTION_STATE_TOPIC,
    TransactionLog,
)
from isotherm.broker.coordinators.transactions.transaction_markers import (
    LocalMarkers,
    TransactionMarkers,
)
from isotherm.broker.coordinators.transactions.transaction_state import (
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.server.requests.context import BrokerServices, RequestContext
from isotherm.config.broker import BrokerConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import IsothermError
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.metrics.broker_traffic import BrokerTraffic
from isotherm.protocol.api_keys import request_class, response_class
from isotherm.protocol.codec import decoder
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader, version_codec
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.record.control import ControlRecord, read_control_record
from isotherm.types import TopicPartition
from tests.support.conditions import until
from tests.support.led_topic import alone, delete_topic


class FakeGroups:
    """The part of the group coordinator that transactions call."""

    def __init__(self) -> None:
        self.completed: list[tuple[int, int, bool]] = []
        self.commits: list[tuple[str, dict[str, Any]]] = []

    async def ensure_topic(self) -> None:
        pass

    def offsets_partition(self, group_id: str) -> int:
        return len(group_id) % 2

    def check_active(self, partition: int) -> None:
        pass

    def uncommitted(self, group_id: str) -> None:
        pass

    def complete_transaction(
        self, partition: int, producer_id: int, *, committed: bool, appended: Any
    ) -> None:
        assert appended is None
        self.completed.append((partition, producer_id, committed))

    def commit_transactional_offsets(
        self, group_id: str, producer: Any, committer: Any, offsets: dict[Any, Any]
    ) -> dict[Any, ErrorCode]:
        self.commits.append((group_id, producer, committer, offsets))
        return dict.fromkeys(offsets, ErrorCode.none)


class Broker:
    """A broker over one folder. Each `run` starts it, plays a scenario, and stops it."""

    def __init__(self, cluster_metadata: Any, directory: Path) -> None:
        self.clock = cluster_metadata.clock
        self._cluster_metadata = cluster_metadata
        self._directory = directory

    def run(
        self, scenario: Callable[[], Awaitable[None]], *, load: bool = True, **settings: Any
    ) -> None:
        asyncio.run(self._live(scenario, load, settings))

    async def _live(
        self, scenario: Callable[[], Awaitable[None]], load: bool, settings: dict[str, Any]
    ) -> None:
        transactions = TransactionConfig(transaction_state_log_num_partitions=2, **settings)
        config = BrokerConfig(log_dirs=(self._directory,), transactions=transactions)
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
        # The loop only logs what a timer or a later callback raises; the test must fail on it.
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, failure: failures.append(failure))
        self.replica_manager = ReplicaManager(
            log_manager, Purgatory(loop, operations_max=10), alone(self.clock)
        )
        self._follow(MetadataChange(self.controller.image, self._topics()))
        self.controller.add_listener(self._follow)
        self.groups = FakeGroups()
        self.markers = TransactionMarkers(self.replica_manager, self.clock, self.groups)
        with ThreadPoolExecutor(1) as executor:
            topic = CoordinatorTopic(
                self.controller,
                self.replica_manager,
                embedded_topic_creator(self.controller, executor),
                transaction_state_topic(config),
            )
            self.log = TransactionLog(transactions, topic, self.clock)
            self.coordinator = TransactionCoordinator(
                transactions,
                self.log,
                LocalMarkers(self.controller, self.markers),
                clock=self.clock,
                new_producer_id=lambda: loop.run_in_executor(
                    executor, self.controller.generate_producer_id
                ),
            )
            self.services = self._services(config, executor)
            if load:
                await self.load()
            await scenario()
            await self.coordinator.stop()
        log_manager.shutdown()
        assert failures == []

    async def load(self) -> None:
        follow_leadership(self.controller, TRANSACTION_STATE_TOPIC, self.coordinator)
        await self.coordinator.wait_until_loaded()

    def _services(self, config: BrokerConfig, executor: ThreadPoolExecutor) -> BrokerServices:
        return BrokerServices(
            config=config,
            clock=self.clock,
            cluster_id="c",
            endpoints=(Endpoint("PLAINTEXT", "localhost", 9092),),
            metadata=self.controller,
            embedded_controller=self.controller,
            replica_manager=self.replica_manager,
            fetch_sessions=cast("Any", None),
            answers=cast("Any", None),
            group_coordinator=cast("Any", self.groups),
            transaction_coordinator=self.coordinator,
            share_coordinator=cast("Any", None),
            persister=cast("Any", None),
            share_group_states=cast("Any", None),
            share_partitions=cast("Any", None),
            transaction_markers=self.markers,
            remote_log_manager=None,
            control_executor=executor,
            batch_executor=executor,
            flush_executor=executor,
            kernels=cast("Any", SimpleNamespace(is_ready=True)),
            traffic=BrokerTraffic(),
        )

    def _topics(self) -> tuple[Any, ...]:
        return tuple(self.controller.image.topics_by_name.values())

    def _follow(self, change: MetadataChange) -> None:
        for topic in change.deleted:
            delete_topic(self.replica_manager, topic.name)
        for topic in change.created:
            config = self.controller.topic_config(topic.name)
            self.replica_manager.take_roles(topic, topic.partitions, config, is_new=True)

    # ---- actions of the tests

    def create_topic(self, name: str = "t", partitions: int = 1) -> None:
        (created,) = self.controller.create_topics([NewTopic(name=name, num_partitions=partitions)])
        assert created.error is None

    def partition(self, index: int = 0, topic: str = "t") -> Partition:
        return self.replica_manager.find_partition(topic, None, index)

    def append(self, producer: ProducerIdAndEpoch, index: int = 0, sequence: int = 0) -> None:
        """Append a transactional record as a client's request does."""
        now_ms = self.clock.now_ms()
        batch = build_batch(
            [(now_ms, None, b"value", ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.partition(index).append(batch, required_acks=1, now_ms=now_ms)

    async def begin(
        self, transactional_id: str = "tx", timeout_ms: int = 60_000
    ) -> ProducerIdAndEpoch:
        return await self.coordinator.init_producer_id(transactional_id, timeout_ms, None)

    async def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 0
    ) -> ProducerIdAndEpoch:
        return await self.coordinator.end_transaction(
            "tx", producer, commit=commit, client_version=version
        )

    def index_of(self, transactional_id: str = "tx") -> int:
        """The partition of `__transaction_state` whose log has the id."""
        (index,) = (number for number in range(2) if transactional_id in self.log.read(number))
        return index

    def add(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *indexes: int, topic: str = "t"
    ) -> None:
        partitions = [TopicPartition(topic, index) for index in indexes]
        self.coordinator.add_partitions(transactional_id, producer, partitions, client_version=0)

    def epoch_of(self, index: int) -> int:
        """The coordinator epoch of a partition of `__transaction_state`."""
        return self.partition(index, TRANSACTION_STATE_TOPIC).leader_epoch

    def store(self, index: int, metadata: TransactionMetadata) -> None:
        """Append a record that the coordinator in memory does not know."""
        self.log.append(CoordinatorShard(index, self.epoch_of(index)), metadata)

    def markers_in(self, index: int = 0, topic: str = "t") -> list[tuple[int, int, ControlRecord]]:
        """Producer id, epoch and marker of every control batch of a partition."""
        log = self.partition(index, topic).log
        found = []
        records = log.read(log.log_start_offset, 1 << 20).records
        for position, header in iterate_batches(records):
            if header.is_control:
                marker = read_control_record(records, position, header)
                assert marker is not None
                found.append((header.producer_id, header.producer_epoch, marker))
        return found

    def state(self, transactional_id: str) -> TransactionState:
        return self.coordinator.describe(transactional_id).state

    async def until(self, holds: Callable[[], bool]) -> None:
        """Yield to the loop until `holds`. The scenario's deadline ends a test in which it never
        does."""
        await until(holds)

    async def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """Handle a request as the dispatcher does. Returns the response as a client decodes it."""
        context = self.context(api_key, version)
        request = entity_of(request_class(api_key, version), fields)
        api = APIS[api_key]
        try:
            response = api.handle(context, request)
            if inspect.isawaitable(response):
                response = await response
        except IsothermError as error:
            response = api.refuse(context, request, error_code(error))
        return as_client_sees_it(api_key, version, response)

    async def refused(self, api_key: int, version: int, code: ErrorCode, **fields: Any) -> Any:
        """The response after the handler has failed."""
        request = entity_of(request_class(api_key, version), fields)
        response = APIS[api_key].refuse(self.context(api_key, version), request, code)
        return as_client_sees_it(api_key, version, response)

    def context(self, api_key: int, version: int) -> RequestContext:
        header = RequestHeader(api_key, version, 1, "test")
        return RequestContext(self.services, header, "127.0.0.1", "PLAINTEXT")


def as_client_sees_it(api_key: int, version: int, response: Any) -> Any:
    frame = b"".join(version_codec(api_key, version).write_response(1, response))
    response_type = response_class(api_key, version)
    entity, end = decoder(response_type)(frame, 9 if response_type.__flexible__ else 8)
    assert end == len(frame)
    return entity


@pytest.fixture
def broker(cluster_metadata: Any, tmp_path: Path) -> Broker:
    directory = tmp_path / "data"
    directory.mkdir()
    return Broker(cluster_metadata, directory)
