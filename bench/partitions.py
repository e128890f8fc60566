"""What do many idle partitions cost?

Cases have none, a thousand and ten thousand partitions, with a record in each; the last one's are
tiered. Each side's broker
is stopped and started, then killed and started, on its own files. A start lasts from the creation
of the process to the answer of a Metadata request. Memory, open files and CPU-seconds are measured
afterwards, while no client is connected.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.harness import Question, describe, keep, ratio_ranges, ratios, summarize
from bench.load import Metrics
from bench.servers import SERVERS, Server, ServerUsage
from bench.start_stop import cpu_s, fill_partitions, start, stop

SETTLE_S = 3.0
IDLE_S = 5.0


class Point(NamedTuple):
    partitions: int
    is_tiered: bool = False
    is_quick: bool = False
    """Whether --quick measures it too.

    Then a first start does not count: it warms the machine's caches.
    """

    @property
    def case(self) -> str:
        return f"{self.partitions:,} {'tiered ' if self.is_tiered else ''}partitions"


POINTS = (
    Point(0, is_quick=True),
    Point(1_000),
    Point(10_000),
    Point(10_000, is_tiered=True),
)

QUESTION = Question("partitions", "What do many idle partitions cost?", lambda scale: ())


def measure(server: Server) -> Metrics:
    """Stop and start the broker, measure it while it is idle, then kill and start it."""
    began = time.perf_counter()
    stop(server)
    stop_s = time.perf_counter() - began
    metrics = {"stop_s": stop_s, "start_s": start(server), "start_cpu_s": cpu_s(server)}
    metrics |= _idle(server)
    psutil.Process(server.pid).kill()
    server.stop()
    metrics["unclean_start_s"] = start(server)
    metrics["unclean_start_cpu_s"] = cpu_s(server)
    return metrics


def _idle(server: Server) -> Metrics:
    time.sleep(SETTLE_S)  # work that is put off until after the start
    usage, process = ServerUsage(server), psutil.Process(server.pid)
    time.sleep(IDLE_S)
    return {
        "idle_cpu_percent": usage.cpu_s() / IDLE_S * 100,
        "resident_mb": usage.resident_mb(),
        "open_files": float(process.num_fds()),
        "threads": float(process.num_threads()),
    }


def run_point(point: Point, names: Sequence[str], directory: Path) -> dict[str, Any]:
    case = point.case
    config = {"remote.storage.enable": "true"} if point.is_tiered else {}
    measured: dict[str, list[Metrics]] = {name: [] for name in names}
    servers = []
    with contextlib.ExitStack() as stack:
        for name in names:
            (directory / name).mkdir(parents=True)
            server: Server = SERVERS[name](directory / name)
            stack.callback(server.stop)
            server.start()
            if point.partitions:
                fill_partitions(server, count=point.partitions, config=config)
            servers.append(server)
        for server in servers if point.is_quick else ():
            stop(server)
            start(server)
        for server in servers:
            measured[server.name].append(metrics := measure(server))
            figures = " ".join(f"{key}={value:.2f}" for key, value in metrics.items())
            print(f"{case:<18} {server.name:<9} {figures}", file=sys.stderr, flush=True)
    sides = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": case,
        "parameters": {"partitions": point.partitions},
        "sides": sides,
        "ratios": ratios(sides),
        "ratio_ranges": ratio_ranges(sides),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="no partitions, one round")
    parser.add_argument("--only", choices=sorted(SERVERS), help="measure one side alone")
    parser.add_argument("--case", help="measure the cases whose name contains this")
    options = parser.parse_args()
    names = [options.only] if options.only else list(SERVERS)
    document = describe(QUESTION, 1)
    document["results"] = []
    for point in POINTS:
        is_wanted = options.case is None or options.case in point.case
        if is_wanted and (point.is_quick or not options.quick):
            with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
                document["results"].append(run_point(point, names, Path(directory)))
            # After each: the largest may be more than a machine can open.
            keep(document, is_whole=not (options.quick or options.only or options.case))


if __name__ == "__main__":
    main()
