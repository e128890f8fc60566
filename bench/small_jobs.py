"""How long do the jobs of `isotherm pipeline` take on a small cluster?

Run: python -m bench.small_jobs [--quick] [--rounds 3] [JOB ...]

A broker gets a tiered topic of some twenty segments, about the size of the demo's metadata. Each
job runs as a process of its own, Spark's start included. Prints the seconds of the clock, and the
CPU-seconds of the process with Spark's JVM and workers, which a busy machine disturbs less. All
jobs are kept as a result, unless --quick.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.harness import Question, describe, keep
from isotherm.testing.embedded_broker import EmbeddedBroker

QUESTION = Question(
    "small_jobs",
    "How long do the jobs of the pipeline take on a small cluster?",
    lambda scale: (),
)
SEGMENTS = 20
SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 1000
_SAMPLE_S = 0.1
_FOUND = 3  # the exit code of a job with findings
_SETTINGS = {"remote.log.manager.task.interval.ms": "500"}
_BUCKET, _BROKER = ("--path", "{bucket}"), ("-b", "{broker}")
JOBS: Mapping[str, tuple[str, ...]] = {
    "replay": _BROKER,
    "audit": _BROKER,
    "sweep": (*_BUCKET, *_BROKER),
    "scrub": (*_BUCKET, *_BROKER),
    "scrub of the manifests": _BUCKET,
    "rebuild, its plan": _BUCKET,
    "compact, its plan": (*_BUCKET, *_BROKER, "-o", "subscribe=flights", "--to", "{folder}/copy"),
    "table": ("flights", *_BUCKET, *_BROKER, "--to", "parquet", "--warehouse", "{folder}/{run}"),
}
"""What each row runs: the first word of its name is the job."""


def fill(broker: EmbeddedBroker, segments: int, segment_bytes: int) -> None:
    """Produce until the bucket has that many segments; the broker's disk keeps one of them."""
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(segment_bytes),
        "retention.ms": "-1",
        "local.retention.bytes": str(segment_bytes),
    }
    admin = AdminClient(properties)
    admin.create_topics([NewTopic("flights", 1, config=config)])["flights"].result()
    producer = Producer({**properties, "batch.size": 65536})
    for number in range((segments + 1) * segment_bytes // VALUE_BYTES):
        while True:
            try:
                producer.produce("flights", os.urandom(VALUE_BYTES), b"%d" % number)
                break
            except BufferError:
                producer.poll(1)
        producer.poll(0)
    producer.flush()
    while len(list((broker.directory / "bucket").rglob("*.rsm-manifest"))) < segments:
        time.sleep(_SAMPLE_S)


def run(name: str, places: Mapping[str, str], python: str = sys.executable) -> tuple[float, float]:
    """The seconds and CPU-seconds of one run."""
    job = name.replace(",", " ").split()[0]
    command = ["pipeline", job, *(argument.format(**places) for argument in JOBS[name])]
    started = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", "isotherm.cli.main", *command], stdout=subprocess.DEVNULL
    )
    cpu: dict[psutil.Process, float] = {}
    while process.poll() is None:
        try:
            root = psutil.Process(process.pid)
            for of_job in (root, *root.children(recursive=True)):
                times = of_job.cpu_times()
                cpu[of_job] = times.user + times.system
        except psutil.Error:
            pass  # a process has ended meanwhile
        time.sleep(_SAMPLE_S)
    if process.returncode not in (0, _FOUND):
        sys.exit(f"{name} ended with {process.returncode}")
    return time.perf_counter() - started, sum(cpu.values())


def figures_of(name: str, runs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Print a job's row; returns it."""
    seconds, cpu = (sorted(figures) for figures in zip(*runs, strict=True))
    row = {
        "job": name,
        "s": statistics.median(seconds),
        "s_min": seconds[0],
        "s_max": seconds[-1],
        "cpu_s": statistics.median(cpu),
    }
    print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, which is not kept")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    document = describe(QUESTION, rounds)
    rows = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder), _SETTINGS) as broker:
        fill(broker, SEGMENTS, SEGMENT_BYTES)
        places = {
            "bucket": str(broker.directory / "bucket"),
            "broker": broker.bootstrap_servers,
            "folder": folder,
        }
        for name in options.jobs or JOBS:
            runs = [run(name, {**places, "run": f"table-{number}"}) for number in range(rounds)]
            rows.append(figures_of(name, runs))
    is_whole = not options.quick and not options.jobs
    keep({**document, "small_jobs": rows}, is_whole=is_whole)


if __name__ == "__main__":
    main()
