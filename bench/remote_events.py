"""How much memory and time does `isotherm remote events` take over a long metadata topic?

`python -m bench.remote_events --events 14000000`: a history of one metadata partition (see
bench.metadata_history) is served by a broker without a remote tier, which takes it for an ordinary
topic. The command prints every event as JSON, and, with `--topic`, those of a topic that is not there.
Peak memory is that of the command alone, looked at ten times a second; a tenth and the end of the topic
are compared, since memory that grows with the topic is what it is about.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.metadata_history import DIRECTORY, write_history
from bench.servers import IsothermServer
from isotherm.types import REMOTE_LOG_METADATA_TOPIC
from oracle.topics import create_topic

_COMMAND = [sys.executable, "-m", "isotherm.cli.main", "remote", "events", "--json"]
_POLL_S = 0.1


def serve_history(directory: Path, history: Path) -> IsothermServer:
    """A running broker with the history; it takes over the files."""
    server = IsothermServer(directory, {"remote.log.storage.system.enable": "false"})
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
    """Of a run of the command: lines, seconds of wall and CPU, and memory in MiB at a tenth of the
    time that it took and at its peak."""
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_200_000)
    parser.add_argument("--filter-only", action="store_true", help="do not print every event")
    parser.add_argument("--folder", help="where the history goes; by default a temporary folder")
    parser.add_argument("--history", help="a history of so many events that is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        history = Path(options.history or Path(name, "history"))
        if options.history is None:
            write_history(history, options.events)
        size = sum(file.stat().st_size for file in (history / DIRECTORY).iterdir())
        server = serve_history(Path(name), history)
        try:
            runs: dict[str, tuple[str, ...]] = {"one topic": ("--topic", "not-there")}
            if not options.filter_only:
                runs["all"] = ()
            for case, more in runs.items():
                found = measure(server.bootstrap_server, *more)
                rate = round(options.events / found["wall_s"])
                told = {"case": case, "events": options.events, "gib": round(size / 2**30, 2)}
                print(json.dumps({**told, "events_per_s": rate, **found}), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
