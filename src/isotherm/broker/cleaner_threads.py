"""The threads of the log cleaner: log.cleaner.threads of them, replaced when the setting changes."""

from __future__ import annotations

import random
import threading

from isotherm.broker.background import PeriodicTask
from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.clock import Clock
from isotherm.config.cleaner import CleanerConfig
from isotherm.log.cleaner.cleaner_metrics import publish_cleaner_metrics
from isotherm.log.cleaner.log_cleaner import CleansLog, LogCleaner
from isotherm.log.log_manager import LogManager
from isotherm.metrics.registry import Metrics


class CleanerThreads:
    """Thread-safe. `stop` and `update_config` abort running rounds and wait for their end, which
    takes as long as one buffer."""

    def __init__(self, cleaner: LogCleaner, clock: Clock) -> None:
        self._cleaner = cleaner
        self._clock = clock
        self._tasks: list[PeriodicTask] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._start()

    def follow(self, change: MetadataChange) -> None:
        """A listener of the controller: apply changes of the broker's configuration."""
        if change.broker_config is not None:
            self.update_config(change.broker_config.cleaner)

    def update_config(self, config: CleanerConfig) -> None:
        """Continue with other limits. Also replaces threads that have failed."""
        with self._lock:
            if config != self._cleaner.config:
                self._stop()
                self._cleaner.reconfigure(config)
                self._start()

    def stop(self) -> None:
        """Idempotent."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._cleaner.manager.allow()
        for number, worker in enumerate(self._cleaner.workers):
            task = PeriodicTask(
                f"isotherm-log-cleaner-{number}",
                worker.run,
                self._clock,
                initial_delay_s=0,
                interval_s=self._cleaner.config.log_cleaner_backoff_ms / 1000,
            )
            task.start()
            self._tasks.append(task)

    def _stop(self) -> None:
        # All rounds are aborted before a thread is waited for, so that the waits overlap.
        self._cleaner.manager.stop()
        for task in self._tasks:
            task.stop()
        self._tasks = []


def start_log_cleaner(
    config: CleanerConfig,
    log_manager: LogManager,
    *,
    clock: Clock,
    rng: random.Random,
    metrics: Metrics,
) -> CleanerThreads:
    """Start compaction, until `stop`, and publish its metrics."""
    cleaner = LogCleaner(
        log_manager.cleaner_manager,
        config,
        clock=clock,
        make_cleaner=lambda changed: _new_cleaner(changed, clock, rng),
    )
    publish_cleaner_metrics(metrics, cleaner, log_manager.log_dirs(), clock)
    threads = CleanerThreads(cleaner, clock)
    threads.start()
    return threads


def _new_cleaner(config: CleanerConfig, clock: Clock, rng: random.Random) -> CleansLog:
    # Imports Numba. A broker without compacted topics should not wait for that.
    from isotherm.log.cleaner.cleaner import Cleaner

    return Cleaner(config, clock, rng)
