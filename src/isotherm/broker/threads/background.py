"""Periodic background tasks: retention, flushing, checkpoints, file deletion."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from isotherm.broker.threads.step_thread import StepThread
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.log.log_manager import LogManager
from isotherm.remote.outages import Outage

logger = logging.getLogger(__name__)

# The longest delay of a file deletion after file.delete.delay.ms. Kafka has no setting for it
# either.
FILE_DELETION_INTERVAL_MS = 1000

# The longest delay of a flush after flush.ms, even if log.flush.scheduler.interval.ms is longer.
# Kafka has no such bound: with the default interval, which is infinite, it ignores flush.ms.
FLUSH_INTERVAL_MS_MAX = 1000


class PeriodicTask:
    """Runs `tick` in its own thread, each time `interval_s` after the end of the last run.

    An exception of a tick is logged, and the next tick runs as usual: every tick starts from the
    present state of the logs, not from the results of an earlier one. Failures have the lines of an
    `Outage`: a store may be away for hours.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], object],
        clock: Clock,
        *,
        initial_delay_s: float,
        interval_s: float,
    ) -> None:
        self._tick = tick
        self._interval_s = interval_s
        self._outage = Outage(
            logger,
            clock,
            failing=f"background task failed task={name}",
            working=f"background task works again task={name}",
        )
        self._thread = StepThread(name, self._step, clock, first_delay_s=initial_delay_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Prevent further ticks, and wait for the running one."""
        self._thread.stop()

    def _step(self) -> float:
        try:
            self._tick()
        # The boundary of the task: a failed tick must not end the thread.
        except Exception as error:  # noqa: BLE001
            self._outage.failed(error)
        else:
            self._outage.worked()
        return self._interval_s


def start_log_tasks(
    config: BrokerConfig, log_manager: LogManager, clock: Clock
) -> list[PeriodicTask]:
    """Start the background tasks of the logs. The caller stops each of them."""
    ticks: dict[str, tuple[Callable[[], object], int]] = {
        "log-retention": (
            log_manager.delete_expired_segments,
            config.log_retention_check_interval_ms,
        ),
        "log-flusher": (
            log_manager.flush_dirty_logs,
            min(config.log_flush_scheduler_interval_ms, FLUSH_INTERVAL_MS_MAX),
        ),
        "log-checkpoint": (
            partial(_flush_and_checkpoint, log_manager),
            min(
                config.log_flush_offset_checkpoint_interval_ms,
                config.log_flush_start_offset_checkpoint_interval_ms,
            ),
        ),
        "log-file-deletion": (log_manager.delete_marked_files, FILE_DELETION_INTERVAL_MS),
    }
    tasks = []
    for name, (tick, interval_ms) in ticks.items():
        task = PeriodicTask(
            f"isotherm-{name}",
            tick,
            clock,
            initial_delay_s=config.log_initial_task_delay_ms / 1000,
            interval_s=interval_ms / 1000,
        )
        task.start()
        tasks.append(task)
    return tasks


def _flush_and_checkpoint(log_manager: LogManager) -> None:
    """Flush closed segments, then write the checkpoints.

    Kafka flushes a segment when it is rolled. Here the flush waits for the next checkpoint, because
    a recovery learns of it only from the checkpoint.
    """
    log_manager.flush_closed_segments()
    log_manager.checkpoint_changes()
