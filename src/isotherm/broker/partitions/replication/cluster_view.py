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


def _no_broker(_: BrokerId) -> BrokerImage | None:
    return None


def _no_topic(_: str | uuid.UUID) -> TopicImage | None:
    return None


def _no_log_dir(_: uuid.UUID) -> LogDir | None:
    return None


def _no_epoch() -> int:
    return ANY_BROKER_EPOCH


def _no_controller(partition: TopicIdPartition, change: IsrChange, _: OnIsrAnswer) -> None:
    raise AssertionError(f"no controller is available partition={partition} change={change}")


def _no_registration(place: TopicIdPartition, log_dir: LogDir) -> None:
    """Do nothing: the metadata of a broker with the embedded controller names no directories."""


def _recorded(place: TopicIdPartition, log_dir: LogDir) -> bool:
    return True


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Functions that answer from the newest metadata image or reach the controller.

    The defaults suit a broker with the embedded controller, where no partition has a follower.

    - `find_broker`, `find_topic`: look-ups in the newest image.
    - `broker_epoch`: the epoch of this broker's registration.
    - `find_log_dir`: an online log directory of this broker, by id.
    - `note_directory`: reports the directory where the log of a replica lies or will lie.
    - `is_recorded`: whether the metadata has that directory.
    - `alter_isr`: proposes a change to the controller (`AlterPartitionManager.submit`). The answer
      may come on another thread. No lock may be held during the call.

    All may be called on any thread.
    """

    broker_id: BrokerId
    clock: Clock
    lag_time_max_ms: int = 30_000
    broker_epoch: Callable[[], int] = _no_epoch
    find_broker: Callable[[BrokerId], BrokerImage | None] = _no_broker
    find_topic: Callable[[str | uuid.UUID], TopicImage | None] = _no_topic
    find_log_dir: Callable[[uuid.UUID], LogDir | None] = _no_log_dir
    alter_isr: Callable[[TopicIdPartition, IsrChange, OnIsrAnswer], None] = _no_controller
    note_directory: Callable[[TopicIdPartition, LogDir], None] = _no_registration
    is_recorded: Callable[[TopicIdPartition, LogDir], bool] = _recorded
    isr_counts: IsrCounts = field(default_factory=IsrCounts)
