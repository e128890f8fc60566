"""A model of replicated partitions: their logs, high watermarks and leaders. A test moves the
leader and the high watermark itself, and so decides which records a move loses."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

from isotherm.broker.shared_futures import shared
from isotherm.errors import NotLeaderOrFollowerError
from isotherm.record.batch import iterate_batches
from isotherm.types import TopicPartition


class ModelPartition:
    """A partition with one log for all replicas.

    An appended batch is uncommitted until `replicate`; `move` may lose it.
    """

    def __init__(self, name: TopicPartition, leader: int) -> None:
        self.name = name
        self.leader = leader
        self.leader_epoch = 1
        self.high_watermark = 0
        self._batches: list[tuple[int, int, bytes]] = []  # base offset, next offset, bytes
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def end_offset(self) -> int:
        return self._batches[-1][1] if self._batches else 0

    def append(self, records: bytes | bytearray) -> tuple[int, int]:
        base = self.end_offset
        batch = bytearray(records)
        struct.pack_into(">q", batch, 0, base)
        struct.pack_into(">i", batch, 12, self.leader_epoch)
        ((_, header),) = iterate_batches(memoryview(batch))
        self._batches.append((base, header.next_offset, bytes(batch)))
        return base, header.next_offset

    def read(self, offset: int) -> memoryview:
        return memoryview(b"".join(each for _, end, each in self._batches if end > offset))

    def when_committed(self, end_offset: int) -> asyncio.Future[None] | None:
        if self.high_watermark >= end_offset:
            return None
        future: asyncio.Future[None] = shared(asyncio.get_running_loop().create_future())
        self._waiting.append((end_offset, future))
        return future

    def replicate(self) -> None:
        """Commit everything that was appended."""
        self.high_watermark = self.end_offset
        for _, future in self._waiting:
            future.set_result(None)
        self._waiting.clear()

    def move(self, leader: int, *, kept: int) -> None:
        """Elect another leader, or the same again. `kept` of the uncommitted batches survive."""
        committed = [batch for batch in self._batches if batch[1] <= self.high_watermark]
        if leader != self.leader:
            self._batches = self._batches[: len(committed) + kept]
            for _, future in self._waiting:
                future.set_exception(NotLeaderOrFollowerError("the leader has moved"))
            self._waiting.clear()
        self.leader = leader
        self.leader_epoch += 1


class ModelReplica:
    """A broker's view of a partition: its `Partition` and its log."""

    def __init__(self, partition: ModelPartition, broker_id: int) -> None:
        self._partition = partition
        self._broker_id = broker_id
        self.topic_partition = partition.name
        self.log = self
        self.log_start_offset = 0
        self.term = 0
        self.producers = SimpleNamespace(producer=lambda _: None)

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def log_end_offset(self) -> int:
        return self._partition.end_offset

    def append(self, records: bytes | bytearray, **_: Any) -> Any:
        if self._partition.leader != self._broker_id:
            raise NotLeaderOrFollowerError("another broker leads the partition")
        first, end = self._partition.append(records)
        return SimpleNamespace(first_offset=first, last_offset=end - 1)

    def when_committed(self, end_offset: int, term: int) -> asyncio.Future[None] | None:
        return self._partition.when_committed(end_offset)

    def read(self, offset: int, size: int, **_: Any) -> Any:
        return SimpleNamespace(records=self._partition.read(offset))


class ModelReplicaManager:
    def __init__(self, partitions: dict[TopicPartition, ModelPartition], broker_id: int) -> None:
        self._partitions = partitions
        self._broker_id = broker_id

    def find_partition(self, topic: str | None, topic_id: Any, index: int) -> ModelReplica:
        return ModelReplica(self._partitions[TopicPartition(str(topic), index)], self._broker_id)


def model_metadata(**partition_counts: int) -> Any:
    """Metadata with only the partition counts of topics."""
    topics = {
        name: SimpleNamespace(partitions=(None,) * count)
        for name, count in partition_counts.items()
    }
    return SimpleNamespace(image=SimpleNamespace(topics_by_name=topics))


class LateEvents:
    """The pending leadership changes of each broker, delivered one by one, in order."""

    def __init__(self, coordinators: list[Any]) -> None:
        self._coordinators = coordinators
        self._queues: list[list[tuple[bool, int, int]]] = [[] for _ in coordinators]

    def moved(self, partition: ModelPartition) -> None:
        index, epoch = partition.name.partition, partition.leader_epoch
        for broker_id, queue in enumerate(self._queues):
            queue.append((broker_id == partition.leader, index, epoch))

    def deliver(self, broker_id: int) -> None:
        if self._queues[broker_id]:
            is_elected, index, epoch = self._queues[broker_id].pop(0)
            coordinator = self._coordinators[broker_id]
            tell = coordinator.on_election if is_elected else coordinator.on_resignation
            tell(index, epoch)

    def is_late(self, broker_id: int) -> bool:
        """Whether a broker has pending changes."""
        return bool(self._queues[broker_id])

    def deliver_all(self) -> None:
        for broker_id, queue in enumerate(self._queues):
            while queue:
                self.deliver(broker_id)
