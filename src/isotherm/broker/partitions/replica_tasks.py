"""What a broker with replicas on other brokers does periodically."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.threads.background import PeriodicTask
from isotherm.clock import Clock
from isotherm.config.replication import ReplicationConfig
from isotherm.log.log_manager import LogManager


def high_watermark_checkpoint(
    log_manager: LogManager, config: ReplicationConfig, clock: Clock
) -> PeriodicTask:
    """The task, not started, that writes the high watermarks to disk.

    A follower starts with its stored high watermark. Records below it were committed, so readers
    see them before the leader has answered. A broker with the embedded controller starts with its
    log ends instead. The log manager writes the last high watermarks when it stops. Source: Kafka
    ReplicaManager.checkpointHighWatermarks, `replication-offset-checkpoint`.
    """
    return _task(
        "isotherm-high-watermark-checkpoint",
        log_manager.checkpoint_high_watermarks,
        clock,
        config.replica_high_watermark_checkpoint_interval_ms / 1000,
    )


def isr_shrinking(
    replica_manager: ReplicaManager, lag_time_max_ms: int, clock: Clock
) -> PeriodicTask:
    """The task, not started, that looks for late followers every half of replica.lag.time.max.ms,
    as Kafka does.
    """

    def shrink() -> None:
        for topic in replica_manager.topics():
            for partition in topic.partitions.values():
                partition.shrink_isr()

    return _task("isotherm-isr-expiration", shrink, clock, lag_time_max_ms / 2 / 1000)


def _task(name: str, tick: Callable[[], object], clock: Clock, interval_s: float) -> PeriodicTask:
    return PeriodicTask(name, tick, clock, initial_delay_s=interval_s, interval_s=interval_s)
