"""Kafka's metrics of the log cleaner, computed when they are read.

`kafka.log:type=LogCleaner,name=max-clean-time-secs` becomes
`kafka_log_logcleaner_max_clean_time_secs`. DeadThreadCount counts the threads whose last run
failed, although they try again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from isotherm.clock import Clock
from isotherm.log.cleaner.cleaned_log import CleanerStats
from isotherm.log.cleaner.log_cleaner import LogCleaner
from isotherm.log.cleaner.log_cleaner_manager import LogCleanerManager
from isotherm.log.log_dir import LogDir
from isotherm.metrics.registry import Metrics

_CLEANER = "kafka_log_logcleaner_"
_MANAGER = "kafka_log_logcleanermanager_"


def publish_cleaner_metrics(
    metrics: Metrics, cleaner: LogCleaner, log_dirs: Iterable[LogDir], clock: Clock
) -> None:
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
        _CLEANER + "deadthreadcount": lambda: sum(each.has_failed for each in cleaner.workers),
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
