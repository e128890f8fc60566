"""Work that comes round by the clock: retention, flushing, checkpoints, deleting files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.log.log_manager import LogManager

logger = logging.getLogger(__name__)

# How late after file.delete.delay.ms a file may go; Kafka has no key for it either.
FILE_DELETION_INTERVAL_MS = 1000

# How late after flush.ms a log may be flushed where log.flush.scheduler.interval.ms is longer.
# Kafka, whose default interval is for ever, would not look at flush.ms at all.
FLUSH_INTERVAL_MS_MAX = 1000


class PeriodicTask:
    """Runs `tick` in a thread of its own, `interval_s` after the end of the run before.

    A tick that raises is logged, and the next one comes as if nothing had happened: each starts
    from the state of the logs, not from what the one before left over.
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
        self._name = name
        self._tick = tick
        self._clock = clock
        self._initial_delay_s = initial_delay_s
        # What a lock can wait for at most; flush intervals of 2^63 ms mean never.
        self._interval_s = min(interval_s, threading.TIMEOUT_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the tick being run, if any; no other follows."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        delay_s = self._initial_delay_s
        while not self._clock.wait(self._stopping, delay_s):
            try:
                self._tick()
            except Exception:
                logger.exception("background task failed task=%s", self._name)
            delay_s = self._interval_s


def start_log_tasks(
    config: BrokerConfig, log_manager: LogManager, clock: Clock
) -> list[PeriodicTask]:
    """Begin the background work of the logs; the caller stops each task."""
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
    """Kafka flushes a segment when it is rolled. Here that waits for the next checkpoint, which
    is what would tell a recovery of it."""
    log_manager.flush_closed_segments()
    log_manager.checkpoint()
