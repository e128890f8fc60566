"""High watermarks are checkpointed at each interval."""

from __future__ import annotations

from isotherm.broker.partitions.replica_tasks import (
    high_watermark_checkpoint,
)
from isotherm.config.replication import ReplicationConfig
from isotherm.testing.sim_clock import SimClock


class CountingLogManager:
    def __init__(self) -> None:
        self.count = 0

    def checkpoint_high_watermarks(self) -> None:
        self.count += 1


def test_high_watermarks_are_written_at_each_interval() -> None:
    clock, manager = SimClock(), CountingLogManager()
    config = ReplicationConfig(replica_high_watermark_checkpoint_interval_ms=700)
    task = high_watermark_checkpoint(manager, config, clock)  # type: ignore[arg-type]
    task.start()
    try:
        for count in range(3):
            clock.await_waiters(1)
            assert manager.count == count
            clock.advance(700)
        clock.await_waiters(1)
        assert manager.count == 3
    finally:
        task.stop()
