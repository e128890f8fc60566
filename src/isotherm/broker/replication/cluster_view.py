"""What a partition asks of the cluster around it: this broker's id, and the other brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from isotherm.broker.metadata.image import BrokerImage, TopicImage
from isotherm.broker.replication.in_sync_replicas import IsrAnswer, IsrChange
from isotherm.broker.replication.replica_state import ANY_BROKER_EPOCH
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
    raise AssertionError(f"no controller can be asked partition={partition} change={change}")


def _no_registration(place: TopicIdPartition, log_dir: LogDir) -> None:
    """The metadata of a broker that is alone names no directories."""


def _recorded(place: TopicIdPartition, log_dir: LogDir) -> bool:
    return True


@dataclass(slots=True)
class IsrCounts:
    """Changes of the ISR since the start, as the controller answered them."""

    shrinks: int = 0
    expands: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The defaults are those of a broker that is alone: no partition of it has a follower.

    `find_broker` and `find_topic` look into the newest image; `broker_epoch` is that of this
    broker's registration; `find_log_dir` finds an online directory of this broker, and
    `note_directory` says where the log of a replica lies, or is about to; `is_recorded` tells whether
    the metadata says so. `alter_isr` asks the controller for a
    change, and calls back with the answer, later and on another thread
    (`AlterPartitionManager.submit`). All are called on any thread; `alter_isr` never with a lock held.
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
