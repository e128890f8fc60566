"""The threads of the log cleaner. Their number is log.cleaner.threads; they are replaced when the
setting changes."""

from __future__ import annotations

import random
import threading

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.clock import Clock
from isotherm.config.cleaner import CleanerConfig
from isotherm.log.cleaner.cleaner_metrics import publish_cleaner_metrics
from isotherm.log.cleaner.log_cleaner import CleansLog, LogCleaner
from isotherm.log.log_manager import LogManager


class CleanerThreads:
    """Starts and stops the threads. Thread-safe.

    `stop` and `update_config` abort running rounds and wait until they end, which takes as long as
    one buffer.
    """

    def __init__(self, cleaner: LogCleaner, clock: Clock) -> None:
        self._cleaner = cleaner
        self._clock = clock
        self._tasks: list[PeriodicTask] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._start()

    def follow(self, change: MetadataChange) -> None:
        """A metadata listener that applies changes of the broker's configuration."""
        if change.broker_config is not None:
            self.update_config(change.broker_config.cleaner)

    def update_config(self, config: CleanerConfig) -> None:
        """Replace the threads if `config` differs, including threads that have failed."""
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
        # All rounds are aborted before the first join, so that they end at the same time.
        self._cleaner.manager.stop()
        for task in self._tasks:
            task.stop()
        self._tasks = []


def start_log_cleaner(
    config: CleanerConfig,
    log_manager: LogManager,
    surroundings: Surroundings,
) -> CleanerThreads:
    """Start compaction and publish its metrics. The caller stops it."""
    clock = surroundings.clock
    cleaner = LogCleaner(
        log_manager.cleaner_manager,
        config,
        clock=clock,
        make_cleaner=lambda changed: _new_cleaner(changed, clock, surroundings.rng),
    )
    publish_cleaner_metrics(surroundings.metrics, cleaner, log_manager.log_dirs(), clock)
    threads = CleanerThreads(cleaner, clock)
    threads.start()
    return threads


def _new_cleaner(config: CleanerConfig, clock: Clock, rng: random.Random) -> CleansLog:
    # Imported on use, because it loads Numba, which a broker without compacted topics does not
    # need.
    from isotherm.log.cleaner.cleaner import Cleaner

    return Cleaner(config, clock, rng)
