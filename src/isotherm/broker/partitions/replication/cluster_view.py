"""A partition's view of the cluster: this broker's id, the other brokers, and the controller."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from isotherm.broker.metadata.image import BrokerImage, TopicImage
from isotherm.broker.partitions.replication.in_sync_replicas import IsrAnswer, IsrChange
from isotherm.broker.partitions.replication.replica_state import ANY_BROKER_EPOCH
from isotherm.clock import Clock
from isotherm.log.log_dir import LogDir
from isotherm.types import BrokerId, TopicIdPartition

OnIsrAnswer: TypeAlias = Callable[[IsrAnswer], None]


@dataclass(slots=True)
class IsrCounts:
    """The answers to ISR changes since the start, by outcome. Those of the controller come on one
    thread, a change that is not sent is answered on its own."""

    shrinks: int = 0
    expands: int = 0
    failures: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, change: IsrChange, *, is_committed: bool) -> None:
        with self._lock:
            if not is_committed:
                self.failures += 1
            elif change.joins is None:
                self.shrinks += 1
            else:
                self.expands += 1


class ClusterView:
    """Answers from the newest metadata image, and reaches the controller. Thread-safe.

    The answers suit a broker with the embedded controller, where no partition has a follower. A
    member of a cluster overrides them. `passes_tail_on`: see Partition.
    """

    passes_tail_on = False

    def __init__(self, broker_id: BrokerId, clock: Clock, *, lag_time_max_ms: int = 30_000) -> None:
        self.broker_id = broker_id
        self.clock = clock
        self.lag_time_max_ms = lag_time_max_ms
        self.isr_counts = IsrCounts()

    def broker_epoch(self) -> int:
        """The epoch of this broker's registration."""
        return ANY_BROKER_EPOCH

    def find_broker(self, broker_id: BrokerId) -> BrokerImage | None:
        del broker_id
        return None

    def find_topic(self, topic: str | uuid.UUID) -> TopicImage | None:
        del topic
        return None

    def goes_on_at(self, place: TopicIdPartition) -> BrokerId | None:
        """In a read replica, the broker with the records behind the log of a partition, or
        NO_LEADER while there is none. None otherwise: the log has all records."""
        del place
        return None

    def owner_in_rack(self, place: TopicIdPartition, rack: str) -> BrokerId | None:
        """Of several read replicas, the one that a partition belongs to in a consumer's rack. None
        if none is there, and for a broker."""
        del place, rack
        return None

    def find_log_dir(self, directory_id: uuid.UUID) -> LogDir | None:
        """An online log directory of this broker."""
        del directory_id
        return None

    def alter_isr(
        self, partition: TopicIdPartition, change: IsrChange, on_answer: OnIsrAnswer
    ) -> None:
        """Propose a change to the controller, as `AlterPartitionManager.submit` does. The answer
        may come on another thread. No lock may be held during the call."""
        del on_answer
        raise AssertionError(f"no controller is available partition={partition} change={change}")

    def note_directory(self, place: TopicIdPartition, log_dir: LogDir) -> None:
        """Report the directory where the log of a replica lies or will lie. The metadata of a
        broker with the embedded controller names no directories."""

    def is_recorded(self, place: TopicIdPartition, log_dir: LogDir) -> bool:
        """Whether the metadata has that directory."""
        del place, log_dir
        return True
