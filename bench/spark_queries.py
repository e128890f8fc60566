"""The queries of the Spark benches, and their cost in wall and CPU-seconds.

    all columns                     every column of every row to Spark's `noop` writer
    key, value, offset              the same with three columns
    partition, offset, timestamp    the same with three numbers
    count                           `count()` of the rows

A side is a function from columns (None: all) to a DataFrame that reads only these, if it can.
CPU-seconds are those of the driver's JVM, which is also the executor in a local session, of the
Python workers, and of the driver's Python. On a shared machine they say more than the clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import psutil
from pyspark.sql import DataFrame

from bench.harness import Metrics, summarize

Side: TypeAlias = Callable[[Sequence[str] | None], DataFrame]

COUNT = "count"
QUERIES: dict[str, Sequence[str] | None] = {
    "all columns": None,
    "key, value, offset": ("key", "value", "offset"),
    "partition, offset, timestamp": ("partition", "offset", "timestamp"),
    COUNT: ("offset",),
}


class SparkUsage:
    """CPU-seconds of Spark's processes since this object was made: children of this one, and this
    one itself, which is the driver's Python."""

    def __init__(self) -> None:
        self._at_start = _cpu_s()

    def cpu_s(self) -> dict[str, float]:
        """CPU-seconds by process: "jvm" and "python"."""
        # If a daemon ends before it has waited for a worker, that worker's CPU time is lost. A side
        # that used no Python would have used less than none, and the side would look cheaper than
        # it was.
        used = {name: now - self._at_start[name] for name, now in _cpu_s().items()}
        return {name: max(0.0, seconds) for name, seconds in used.items()}


def _cpu_s() -> dict[str, float]:
    used = {"jvm": 0.0, "python": time.process_time()}
    for process in psutil.Process().children(recursive=True):
        try:
            times, name, command = process.cpu_times(), process.name(), process.cmdline()
        except psutil.NoSuchProcess:
            continue
        # The forking daemon has the times of the workers that have ended.
        seconds = times.user + times.system + times.children_user + times.children_system
        if any("spark.deploy.SparkSubmit" in argument for argument in command):
            used["jvm"] += times.user + times.system
            # A daemon that has ended, and its workers.
            used["python"] += times.children_user + times.children_system
        elif name.startswith("python"):
            used["python"] += seconds
    return used


def ask(side: Side, query: str, records: int) -> None:
    """Run a query to its end, and check the result of `count`."""
    frame = side(QUERIES[query])
    if query == COUNT:
        rows = frame.count()
        assert rows == records, (rows, records)
    else:
        frame.write.format("noop").mode("overwrite").save()


def ask_in_turn(
    sides: Mapping[str, Side],
    queries: Sequence[str],
    *,
    records: int,
    size: int,
    rounds: int,
    broker_cpu_s: Callable[[], float] = lambda: 0.0,
) -> dict[str, dict[str, Any]]:
    """Summaries by query and side: A B C A B C ... after a round that warms up.

    `size` is the bytes of keys and values; `broker_cpu_s` the CPU-seconds of a broker so far.
    """
    measured: dict[str, dict[str, list[Metrics]]] = {q: {s: [] for s in sides} for q in queries}
    for round_number in range(rounds + 1):
        for query in queries:
            for name, side in sides.items():
                usage, broker, started = SparkUsage(), broker_cpu_s(), time.perf_counter()
                ask(side, query, records)
                seconds = time.perf_counter() - started
                used = {**usage.cpu_s(), "broker": broker_cpu_s() - broker}
                if round_number:
                    measured[query][name].append(_metrics(seconds, used, records, size))
                    _tell(query, name, measured[query][name][-1])
    return {
        query: {name: summarize(runs) for name, runs in by_side.items()}
        for query, by_side in measured.items()
    }


def _metrics(seconds: float, used: Mapping[str, float], records: int, size: int) -> Metrics:
    return {
        "seconds": seconds,
        "rows_per_s": records / seconds,
        "mb_per_s": size / 1e6 / seconds,
        "rows_per_cpu_s": records / sum(used.values()),
        **{f"{name}_cpu_s_per_gb": cpu_s / (size / 1e9) for name, cpu_s in used.items()},
    }


def _tell(query: str, side: str, metrics: Metrics) -> None:
    print(
        f"{query:<30} {side:<10} {metrics['rows_per_s']:12,.0f} rows/s"
        f" {metrics['rows_per_cpu_s']:12,.0f} rows/CPU-s",
        file=sys.stderr,
        flush=True,
    )
