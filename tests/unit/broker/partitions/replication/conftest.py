"""A partition that this broker leads, with followers whose fetches are made by hand."""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import fetch, produce
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replication.cluster_view import ClusterView, OnIsrAnswer
from isotherm.broker.partitions.replication.in_sync_replicas import IsrAnswer, IsrChange
from isotherm.config.topic import TopicConfig
from isotherm.protocol.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from isotherm.protocol.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from isotherm.record.batch import build_batch
from isotherm.types import TopicIdPartition
from tests.unit.broker.conftest import TOPIC_ID, Parts

ME, FIRST, SECOND = 1, 2, 3
# Longer than any test may take: a request that nothing completes fails its test.
WAIT_MS = 600_000


class ModelController:
    """Keeps the ISR changes that a leader requests, until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[IsrChange, OnIsrAnswer]] = []
        self.was_asked = threading.Event()

    def alter_isr(self, _: TopicIdPartition, change: IsrChange, answer: OnIsrAnswer) -> None:
        self.asked.append((change, answer))
        self.was_asked.set()

    def accept(self) -> IsrChange:
        change, answer = self.asked.pop(0)
        epoch = change.partition_epoch + 1
        answer(IsrAnswer(ErrorCode.none, change.isr, change.leader_epoch, epoch))
        return change

    def refuse(self, error: ErrorCode) -> None:
        self.asked.pop(0)[1](IsrAnswer(error))


class _View(ClusterView):
    def __init__(self, leader: Leader) -> None:
        super().__init__(ME, leader.parts.clock)
        self._leader = leader

    def broker_epoch(self) -> int:
        return 101

    def find_broker(self, broker_id: int) -> BrokerImage | None:
        return self._leader.brokers.get(broker_id)

    def find_topic(self, topic: str | uuid.UUID) -> TopicImage | None:
        return self._leader.topics.get(topic)

    def alter_isr(
        self, partition: TopicIdPartition, change: IsrChange, on_answer: OnIsrAnswer
    ) -> None:
        self._leader.controller.alter_isr(partition, change, on_answer)


class Leader:
    """Partition t-0 with replicas on brokers 1 (this one), 2 and 3; leader epoch 5."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.controller = ModelController()
        self.brokers = {
            each: BrokerImage(
                each,
                100 + each,
                uuid.UUID(int=each),
                f"rack-{each}",
                fenced=False,
                endpoints=(Endpoint("PLAINTEXT", f"host-{each}", 9092),),
            )
            for each in (ME, FIRST, SECOND)
        }
        self.topics: dict[str | uuid.UUID, TopicImage] = {}
        parts.cluster = _View(self)

    @property
    def partition(self) -> Partition:
        return self.parts.partition()

    def image(self, *isr: int, **more: Any) -> PartitionImage:
        values: dict[str, Any] = {
            "partition": 0,
            "replicas": (ME, FIRST, SECOND),
            "isr": isr,
            "leader": ME,
            "leader_epoch": 5,
            "partition_epoch": 10,
        }
        return PartitionImage(**{**values, **more})

    def run(self, scenario: Callable[[], Awaitable[None]], *isr: int, min_isr: int = 1) -> None:
        async def main() -> None:
            self.parts.services.metadata = cast(
                "Any", SimpleNamespace(image=MetadataImage(brokers=self.brokers))
            )
            config = TopicConfig(min_insync_replicas=min_isr)
            self.parts.replica_manager.update_config("t", config)
            self.partition.make_leader(self.image(*(isr or (ME, FIRST, SECOND))))
            await scenario()

        self.parts.run(main)

    # ---- requests

    def produce(self, *values: bytes, acks: int = -1, timeout_ms: int = WAIT_MS) -> Any:
        """Produce to partition 0. Returns its answer, or a future of it."""
        response = self.handle_produce(*values, acks=acks, timeout_ms=timeout_ms)
        if inspect.isawaitable(response):
            return asyncio.ensure_future(self._produced(response))
        return self._one_produced(response)

    def handle_produce(self, *values: bytes, acks: int = -1, timeout_ms: int = WAIT_MS) -> Any:
        """The return value of the Produce handler."""
        now_ms = self.parts.clock.now_ms()
        records = build_batch([(now_ms, None, value, ()) for value in values])
        request = ProduceRequest(
            None,
            acks,
            timeout_ms,
            [ProduceTopic("t", None, [ProducePartition.of(0, memoryview(records))])],
        )
        return produce.handle(self.parts.context(0, 12), request)

    async def _produced(self, response: Awaitable[Any]) -> ProducePartitionResponse:
        return self._one_produced(await response)

    @staticmethod
    def _one_produced(response: Any) -> ProducePartitionResponse:
        assert isinstance(response, ProduceResponse)
        return response.topics[0].partitions[0]

    def request(
        self, offset: int, *, replica: int = -1, epoch: int | None = None, **more: Any
    ) -> FetchRequest:
        fields = ("current_leader_epoch", "last_fetched_epoch", "log_start_offset")
        asked = FetchPartition(
            0, offset, 1 << 20, **{key: more.pop(key) for key in fields if key in more}
        )
        values: dict[str, Any] = {
            "replica_id": replica,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 30,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [FetchTopic(None, TOPIC_ID, [asked])],
            "forgotten_topics": [],
            "rack_id": "",
            "replica_epoch": 100 + replica if epoch is None else epoch,
        }
        return FetchRequest(**{**values, **more})

    def fetch_now(self, offset: int, *, version: int = 18, **more: Any) -> FetchPartitionResponse:
        """Fetch from partition 0 without a wait. Returns its answer."""
        response = fetch.handle(self.parts.context(1, version), self.request(offset, **more))
        assert isinstance(response, FetchResponse)
        return response.topics[0].partitions[0]

    def fetch_waiting(
        self, offset: int, *, version: int = 18, **more: Any
    ) -> asyncio.Future[FetchPartitionResponse]:
        response = fetch.handle(
            self.parts.context(1, version), self.request(offset, max_wait_ms=WAIT_MS, **more)
        )
        assert inspect.isawaitable(response)

        async def one() -> FetchPartitionResponse:
            return (await response).topics[0].partitions[0]

        return asyncio.ensure_future(one())


async def settle() -> None:
    """Give the event loop turns until only tasks that wait for an event are left."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    parts = Parts(tmp_path)
    yield Leader(parts)
    parts.close()
