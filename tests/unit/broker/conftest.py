"""Real partitions in a temporary folder, without a network, a controller or a remote tier."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.broker.loop_turns import _NextTurn
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.fetch_sessions import FetchSessionCache
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.server.net.answer_memory import AnswerMemory
from isotherm.broker.server.requests.context import BrokerServices, RequestContext
from isotherm.broker.threads.kernel_warm_up import KernelWarmUp
from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.log_manager import LogManager
from isotherm.metrics.broker_traffic import BrokerTraffic
from isotherm.metrics.registry import Metrics
from isotherm.protocol.framing import RequestHeader
from isotherm.record.batch import build_batch
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.remote_tier_metrics import Expirations
from isotherm.testing.sim_clock import SimClock
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.led_topic import alone, lead_topic

TOPIC_ID = uuid.UUID(int=7)


class FakeReaderPool:
    """Holds every read and look-up until the test answers it."""

    def __init__(self, clock: SimClock) -> None:
        self.metrics = Metrics()
        self.fetch_quota = RemoteQuota(1000, QuotaWindows(1000, 11), clock)
        self.expirations = Expirations(self.metrics)
        self.reads: list[tuple[int, int, Future[Any]]] = []
        self.lookups: list[tuple[int, Future[Any]]] = []
        self.refuse: Exception | None = None
        self.in_memory: dict[int, Any] = {}
        self.wait: ReadWait | None = None

    def read_now(self, asked: ReadRequest) -> Any:
        return self.in_memory.get(asked.offset, asked)

    def read(self, asked: ReadRequest) -> Future[Any]:
        self.wait = asked.wait
        if self.refuse is not None:
            raise self.refuse
        future: Future[Any] = Future()
        self.reads.append((asked.offset, asked.max_bytes, future))
        return future

    def offset_for_timestamp(
        self, log: Any, partition: Any, timestamp_ms: int, starting_offset: int
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self.lookups.append((timestamp_ms, future))
        return future


class Parts:
    """The parts of one broker below the network."""

    def __init__(self, directory: Path) -> None:
        self.config = BrokerConfig(
            log_dirs=(directory,),
            remote=RemoteLogManagerConfig(
                remote_log_storage_system_enable=True, remote_fetch_max_wait_ms=20
            ),
        )
        self.clock = SimClock()
        self.fs = FaultyFileSystem()
        self.remote = FakeReaderPool(self.clock)
        self.log_manager = LogManager(
            [directory],
            config=self.config,
            topic_config_for=lambda topic: TopicConfig(),
            clock=self.clock,
            fs=self.fs,
            rng=random.Random(0),
        )
        self.log_manager.startup()
        self.cluster = alone(self.clock)
        self.control = ThreadPoolExecutor(1)
        self.kernels = KernelWarmUp()

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run `scenario` with partitions 0 and 1 of topic `t`, which this broker leads at epoch
        3."""

        async def main() -> None:
            purgatory: Purgatory[Any] = Purgatory(asyncio.get_running_loop(), operations_max=10)
            self.replica_manager = ReplicaManager(self.log_manager, purgatory, self.cluster)
            lead_topic(self.replica_manager, "t", TOPIC_ID, {0: 3, 1: 3}, TopicConfig())
            self.services = BrokerServices(
                config=self.config,
                clock=self.clock,
                cluster_id="c",
                endpoints=(Endpoint("PLAINTEXT", "localhost", 9092),),
                metadata=cast("Any", None),
                embedded_controller=cast("Any", object()),
                replica_manager=self.replica_manager,
                fetch_sessions=FetchSessionCache(
                    random.Random(0), slots_max=10, eviction_ms=120_000, partitions_max=1000
                ),
                answers=AnswerMemory(-1, (), self.clock.monotonic_s, lambda _: None),
                group_coordinator=cast("Any", None),
                transaction_coordinator=cast("Any", None),
                share_coordinator=cast("Any", None),
                persister=cast("Any", None),
                share_group_states=cast("Any", None),
                share_partitions=cast("Any", None),
                transaction_markers=cast("Any", None),
                remote_log_manager=cast("Any", SimpleNamespace(readers=self.remote)),
                control_executor=self.control,
                batch_executor=self.control,
                flush_executor=self.control,
                kernels=self.kernels,
                traffic=BrokerTraffic(),
            )
            await self.kernels.wait()
            await scenario()

        asyncio.run(main())

    def close(self) -> None:
        self.control.shutdown()
        self.log_manager.shutdown()

    def partition(self, index: int = 0) -> Partition:
        return self.replica_manager.find_partition("t", None, index)

    def append(self, *values: bytes, index: int = 0, timestamp_ms: int | None = None) -> None:
        now_ms = self.clock.now_ms()
        timestamp_ms = now_ms if timestamp_ms is None else timestamp_ms
        batch = build_batch([(timestamp_ms, None, value, ()) for value in values])
        self.partition(index).append(batch, required_acks=1, now_ms=now_ms)

    def context(self, api_key: int, api_version: int) -> RequestContext:
        header = RequestHeader(api_key, api_version, 1, "test")
        return RequestContext(self.services, header, "127.0.0.1", "PLAINTEXT")

    def tier_everything(self, index: int = 0) -> None:
        """Leave only an empty active segment on disk, as after copying and local retention."""
        log = self.partition(index).log
        log.update_config(
            TopicConfig(remote_storage_enable=True, local_retention_bytes=0, retention_bytes=-1)
        )
        log.roll()
        log.update_highest_offset_in_remote_storage(log.log_end_offset - 1)
        log.delete_old_segments(self.clock.now_ms())
        assert log.local_log_start_offset == log.log_end_offset


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.close()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each turn that is left to others."""
    taken: list[None] = []
    wait = _NextTurn.__await__

    def counted(awaitable: _NextTurn) -> Any:
        taken.append(None)
        return wait(awaitable)

    monkeypatch.setattr(_NextTurn, "__await__", counted)
    return taken
