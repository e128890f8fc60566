"""Looks for late followers every half of replica.lag.time.max.ms, as Kafka does."""

from __future__ import annotations

from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.threads.background import PeriodicTask
from isotherm.clock import Clock


def isr_shrinking_task(
    replica_manager: ReplicaManager, lag_time_max_ms: int, clock: Clock
) -> PeriodicTask:
    """The task, not started.

    Only a member of a cluster needs it: without followers it finds nothing.
    """

    def shrink() -> None:
        for topic in replica_manager.topics():
            for partition in topic.partitions.values():
                partition.shrink_isr()

    interval_s = lag_time_max_ms / 2 / 1000
    return PeriodicTask(
        "isotherm-isr-expiration",
        shrink,
        clock,
        initial_delay_s=interval_s,
        interval_s=interval_s,
    )
