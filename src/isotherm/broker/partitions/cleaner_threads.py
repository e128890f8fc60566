"""The threads of the log cleaner. Their number is log.cleaner.threads; they are replaced when the
setting changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.clock import Clock
from isotherm.config.cleaner import CleanerConfig
from isotherm.log.cleaner.cleaned_log import CleanerStats
from isotherm.log.cleaner.log_cleaner import LogCleaner
from isotherm.log.cleaner.log_cleaner_manager import LogCleanerManager
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.metrics.registry import Metrics

if TYPE_CHECKING:
    from isotherm.log.cleaner.cleaner import Cleaner


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


def _new_cleaner(config: CleanerConfig, clock: Clock, rng: random.Random) -> Cleaner:
    # Imported on use, because it loads kernels, which a broker without compacted topics does not
    # need.
    from isotherm.log.cleaner.cleaner import Cleaner

    return Cleaner(config, clock, rng)


_CLEANER = "kafka_log_logcleaner_"
_MANAGER = "kafka_log_logcleanermanager_"


def publish_cleaner_metrics(
    metrics: Metrics, cleaner: LogCleaner, log_dirs: Iterable[LogDir], clock: Clock
) -> None:
    """Kafka's metrics of the log cleaner, computed when they are read.

    `kafka.log:type=LogCleaner,name=max-clean-time-secs` becomes
    `kafka_log_logcleaner_max_clean_time_secs`. DeadThreadCount counts the threads whose last run
    failed, although they try again.
    """
    manager = cleaner.manager
    gauges: dict[str, Callable[[], float]] = {
        _CLEANER + "max-buffer-utilization-percent": lambda: (
            100 * max((stats.buffer_utilization for stats in _last_stats(cleaner)), default=0)
        ),
        _CLEANER + "cleaner-recopy-percent": lambda: _recopy_percent(_last_stats(cleaner)),
        _CLEANER + "max-clean-time-secs": lambda: max(
            (stats.elapsed_s for stats in _last_stats(cleaner)), default=0
        ),
        _CLEANER + "max-compaction-delay-secs": lambda: manager.compaction_delay_ms_max / 1000,
        _CLEANER + "deadthreadcount": lambda: sum(worker.has_failed for worker in cleaner.workers),
        _MANAGER + "max-dirty-percent": lambda: 100 * manager.max_dirty_ratio,
        _MANAGER + "time-since-last-run-ms": lambda: manager.ms_since_last_run(clock.now_ms()),
    }
    for name, value in gauges.items():
        metrics.gauge(name.replace("-", "_"), f"Kafka's {name}.").set_function(value)
    counts = metrics.gauge(
        _MANAGER + "uncleanable_partitions_count",
        "Partitions that are not cleaned because cleaning them failed.",
        ("logDirectory",),
    )
    sizes = metrics.gauge(
        _MANAGER + "uncleanable_bytes",
        "Cleanable bytes of uncleanable partitions.",
        ("logDirectory",),
    )
    for log_dir in log_dirs:
        directory = str(log_dir.path)
        counts.labels(logDirectory=directory).set_function(
            partial(_uncleanable_count, manager, log_dir)
        )
        sizes.labels(logDirectory=directory).set_function(
            partial(manager.uncleanable_size, log_dir)
        )


def _uncleanable_count(manager: LogCleanerManager, log_dir: LogDir) -> int:
    return len(manager.uncleanable_logs(log_dir))


def _last_stats(cleaner: LogCleaner) -> list[CleanerStats]:
    return [worker.last_stats for worker in cleaner.workers if worker.last_stats is not None]


def _recopy_percent(rounds: list[CleanerStats]) -> float:
    read = sum(stats.bytes_read for stats in rounds)
    written = sum(stats.bytes_written for stats in rounds)
    return 100 * written / max(read, 1)
