"""How long do the jobs of `isotherm pipeline` take on a small cluster?

Run: python bench/small_jobs.py [--rounds 3] [JOB ...]

A broker gets a tiered topic of some twenty segments, about the size of the demo's metadata. Each
job runs as a process of its own, Spark's start included. Prints the seconds of the clock, and the
CPU-seconds of the process with Spark's JVM and workers, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker

SEGMENTS = 20
_SAMPLE_S = 0.1
_FOUND = 3  # the exit code of a job with findings
_SETTINGS = {"remote.log.manager.task.interval.ms": "500"}
JOBS = ("replay", "audit", "sweep", "scrub")


def fill(broker: EmbeddedBroker) -> None:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    admin = AdminClient(properties)
    admin.create_topics([NewTopic("flights", 1, config=config)])["flights"].result()
    producer = Producer({**properties, "batch.size": 65536})
    for number in range((SEGMENTS + 1) * 1024):
        producer.produce("flights", os.urandom(1000), b"%d" % number)
        producer.poll(0)
    producer.flush()
    while len(list((broker.directory / "bucket").rglob("*.rsm-manifest"))) < SEGMENTS:
        time.sleep(_SAMPLE_S)


def run(job: str, broker: EmbeddedBroker) -> tuple[float, float]:
    """The seconds and CPU-seconds of one run."""
    place = ["--path", str(broker.directory / "bucket")] if job in ("sweep", "scrub") else []
    command = ["pipeline", job, *place, "-b", broker.bootstrap_servers]
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "isotherm.cli.main", *command], stdout=subprocess.DEVNULL
    )
    cpu: dict[psutil.Process, float] = {}
    while process.poll() is None:
        try:
            root = psutil.Process(process.pid)
            for each in (root, *root.children(recursive=True)):
                times = each.cpu_times()
                cpu[each] = times.user + times.system
        except psutil.Error:
            pass  # a process has ended meanwhile
        time.sleep(_SAMPLE_S)
    if process.returncode not in (0, _FOUND):
        sys.exit(f"{job} ended with {process.returncode}")
    return time.perf_counter() - started, sum(cpu.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder), _SETTINGS) as broker:
        fill(broker)
        print("| job | s | CPU-s |\n|---|---:|---:|")
        for job in options.jobs or JOBS:
            runs = [run(job, broker) for _ in range(options.rounds)]
            seconds, cpu = (sorted(figures) for figures in zip(*runs, strict=True))
            print(
                f"| {job} | {statistics.median(seconds):.1f} ({seconds[0]:.1f} to"
                f" {seconds[-1]:.1f}) | {statistics.median(cpu):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
