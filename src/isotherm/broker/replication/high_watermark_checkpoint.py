"""Writes high watermarks to disk, for the logs of a broker that may follow others.

A follower begins with its stored high watermark: what lies below it was committed, and is shown to
readers before the leader is heard. A broker alone takes its log ends instead.
Source: Kafka ReplicaManager.checkpointHighWatermarks, `replication-offset-checkpoint`.
"""

from __future__ import annotations

from isotherm.broker.background import PeriodicTask
from isotherm.clock import Clock
from isotherm.config.replication import ReplicationConfig
from isotherm.log.log_manager import LogManager


def high_watermark_checkpoint(
    log_manager: LogManager, config: ReplicationConfig, clock: Clock
) -> PeriodicTask:
    """The task, not started. A stop of the log manager writes the last ones."""
    interval_s = config.replica_high_watermark_checkpoint_interval_ms / 1000
    return PeriodicTask(
        "isotherm-high-watermark-checkpoint",
        log_manager.checkpoint_high_watermarks,
        clock,
        initial_delay_s=interval_s,
        interval_s=interval_s,
    )
