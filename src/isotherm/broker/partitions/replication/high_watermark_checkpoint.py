"""Writes high watermarks to disk periodically, for a broker that may follow other brokers.

A follower starts with its stored high watermark. Records below it were committed, so readers see
them before the leader has answered. A broker with the embedded controller starts with its log ends
instead.
Source: Kafka ReplicaManager.checkpointHighWatermarks, `replication-offset-checkpoint`.
"""

from __future__ import annotations

from isotherm.broker.threads.background import PeriodicTask
from isotherm.clock import Clock
from isotherm.config.replication import ReplicationConfig
from isotherm.log.log_manager import LogManager


def high_watermark_checkpoint(
    log_manager: LogManager, config: ReplicationConfig, clock: Clock
) -> PeriodicTask:
    """The task, not started. The log manager writes the last high watermarks when it stops."""
    interval_s = config.replica_high_watermark_checkpoint_interval_ms / 1000
    return PeriodicTask(
        "isotherm-high-watermark-checkpoint",
        log_manager.checkpoint_high_watermarks,
        clock,
        initial_delay_s=interval_s,
        interval_s=interval_s,
    )
