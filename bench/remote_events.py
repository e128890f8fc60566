"""How much memory and time does `isotherm remote events` take over a long metadata topic?

Run: python -m bench.remote_events [--events N]

A broker without a remote tier serves histories of one metadata partition (see
bench.metadata_history) as an ordinary topic: of 31 MB, of a year of 1 TB a day, and of 1 GB. The
command prints every event as JSON, and, with `--topic`, those of a topic that does not exist.
Memory is that of the command alone, sampled ten times a second. It is compared after a tenth of the
time and at its peak: it must not grow with the topic.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from bench.harness import Question, describe, keep
from bench.metadata_history import DIRECTORY, EVENTS_PER_YEAR, write_history
from bench.servers import IsothermServer
from isotherm.types import REMOTE_LOG_METADATA_TOPIC
from oracle.topics import create_topic

EVENTS = (200_000, EVENTS_PER_YEAR, 7_000_000)
ALL, ONE = "every event", "`--topic` that has none"
CASES: dict[str, tuple[str, ...]] = {ONE: ("--topic", "not-there"), ALL: ()}
QUESTION = Question(
    "remote_events",
    "How fast does `isotherm remote events --json` read a metadata topic, and in what memory?",
    lambda scale: (),
)

_COMMAND = [sys.executable, "-m", "isotherm.cli.main", "remote", "events", "--json"]
_POLL_S = 0.1
START_TIMEOUT_S = 3600
"""The files come without indexes: the broker reads all of them at its start."""


def serve_history(directory: Path, history: Path) -> IsothermServer:
    """Run a broker on the files of the history, which it takes over."""
    server = IsothermServer(directory, {"remote.log.storage.system.enable": "false"})
    server.start_timeout_s = START_TIMEOUT_S
    server.start()
    create_topic(
        server.bootstrap_server,
        REMOTE_LOG_METADATA_TOPIC,
        1,
        {"retention.ms": "-1", "segment.bytes": str(1 << 30)},
    )
    server.stop()
    log = server.log_dir / DIRECTORY
    for old in (*log.glob("*.log"), *log.glob("*index"), *log.glob("*.snapshot")):
        old.unlink()
    for file in sorted((history / DIRECTORY).iterdir()):
        shutil.move(file, log / file.name)
    server.start()
    return server


def measure(bootstrap_server: str, *more: str) -> dict[str, float]:
    """Run the command once.

    Returns its lines, its seconds of wall and CPU, and its memory in MiB: at its peak, and after a
    tenth of the time that it took.
    """
    command = [*_COMMAND, "-b", bootstrap_server, *more]
    started = time.monotonic()
    counter = subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    run = subprocess.Popen(command, stdout=counter.stdin)
    assert counter.stdin is not None
    counter.stdin.close()
    process = psutil.Process(run.pid)
    memory: list[float] = []
    cpu_s = 0.0
    while run.poll() is None:
        try:
            memory.append(process.memory_info().rss / 2**20)
            times = process.cpu_times()
            cpu_s = times.user + times.system
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            break
        time.sleep(_POLL_S)
    if run.wait() != 0:
        raise RuntimeError(f"the command failed command={command} exit_code={run.returncode}")
    assert counter.stdout is not None
    lines = int(counter.stdout.read())
    counter.wait()
    return {
        "lines": lines,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(cpu_s, 1),
        "early_mib": round(max(memory[: max(len(memory) // 10, 1)])),
        "peak_mib": round(max(memory)),
    }


def measure_history(events: int, folder: str | None, cases: Iterable[str]) -> list[dict[str, Any]]:
    """Measure all cases over a new history of `events` events."""
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-", dir=folder) as name:
        history = Path(name, "history")
        size = write_history(history, events)
        server = serve_history(Path(name), history)
        try:
            points = []
            for case in cases:
                measured = measure(server.bootstrap_server, *CASES[case])
                if measured["lines"] != (events if case == ALL else 0):
                    raise RuntimeError(f"events are missing case={case} lines={measured['lines']}")
                rate = round(events / measured["wall_s"])
                point = {"case": case, "events": events, "topic_mb": round(size / 1e6)}
                points.append({**point, "events_per_s": rate, **measured})
                print(json.dumps(points[-1]), flush=True)
            return points
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--events", type=int, action="append", help="not stored")
    parser.add_argument("--filter-only", action="store_true", help="do not print every event")
    parser.add_argument("--folder", help="where the history goes; by default a temporary folder")
    options = parser.parse_args()
    document = describe(QUESTION, 1)
    cases = [ONE] if options.filter_only else list(CASES)
    document["listing"] = [
        point
        for events in options.events or EVENTS
        for point in measure_history(events, options.folder, cases)
    ]
    keep(document, is_whole=not (options.events or options.filter_only))


if __name__ == "__main__":
    main()
