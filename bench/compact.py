"""What does it cost to compact a tiered topic on Spark, and does it grow with the bytes?

Histories of rising size in a local folder as the bucket, every key four times at random places, are
compacted as a copy into another folder (`isotherm.spark.jobs.compact`), on two local cores. Each
size has as many keys as a quarter of its records. MB/s are bytes of the source's segments per
second; each segment is read twice, and the written one once more. CPU is that of all processes:
driver, JVM, workers. Memory is the peak of one Python worker, and of the driver.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.cleaner import BATCH_BYTES, COPIES_OF_A_KEY, DISTINCT_VALUES, make_value
from bench.harness import Question, describe, keep
from isotherm.record.batch import build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact import compact, read_plan, settings_of
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.session import session
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTION = Question(
    "compact",
    "What does it cost to compact a tiered topic on Spark, and does it grow with the bytes?",
    lambda scale: (),
)
SIZES = (100_000_000, 200_000_000, 400_000_000)
SEGMENT_BYTES = 16_000_000
RECORD_SIZE = 1024
ROUNDS = 2
SAMPLE_S = 0.05


class Usage:
    """CPU seconds and largest resident size of this process and its children while it runs.
    `sampling_s` are those of the samples, which are not counted: on a busy machine a run lasts
    long, and they would be a good part of it."""

    def __init__(self) -> None:
        self.sampling_s = 0.0
        self.driver_mb = 0.0
        self.worker_mb = 0.0
        self._cpu: dict[int, float] = {}
        self._own = psutil.Process()
        self.sample()
        self._before = dict(self._cpu)

    @property
    def cpu_s(self) -> float:
        spent = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._cpu.items())
        return spent - self.sampling_s

    def sample(self) -> None:
        for process in (self._own, *self._own.children(recursive=True)):
            try:
                times, size = process.cpu_times(), process.memory_info().rss / 1e6
                is_python = "python" in process.name()
            except psutil.Error:
                continue
            self._cpu[process.pid] = times.user + times.system
            if process.pid == self._own.pid:
                self.driver_mb = max(self.driver_mb, size)
            elif is_python:
                self.worker_mb = max(self.worker_mb, size)


@contextmanager
def measured() -> Iterator[Usage]:
    usage, done = Usage(), threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            usage.sample()
            usage.sampling_s = time.thread_time()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield usage
    finally:
        done.set()
        thread.join()
        usage.sample()


def make_bucket(folder: Path, size: int) -> int:
    """Make a bucket with a topic of one partition; return the number of records."""
    rng = random.Random(0)
    per_batch = BATCH_BYTES // (RECORD_SIZE + 16)
    records = size // RECORD_SIZE // per_batch * per_batch
    values = [make_value(rng, RECORD_SIZE) for _ in range(DISTINCT_VALUES)]
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=folder.as_uri()))
    maker = RecordSegmentMaker(folder.with_suffix(".made"), storage)
    owner = TopicIdPartition(uuid.UUID(int=1), "history", 0)
    batches: list[bytearray] = []
    for start in range(0, records, per_batch):
        batch = [
            (
                start,
                b"key-%012d" % rng.randrange(records // COPIES_OF_A_KEY),
                rng.choice(values),
                (),
            )
            for _ in range(per_batch)
        ]
        batches.append(build_batch(batch, base_offset=start))
        if len(batches) * BATCH_BYTES >= SEGMENT_BYTES:
            maker.tier(owner, batches)
            batches = []
    if batches:
        maker.tier(owner, batches)
    shutil.rmtree(folder.with_suffix(".made"))
    return records


def run_once(spark: SparkSession, source: Path, target: Path) -> dict[str, float]:
    options = parse_options({"path": source.as_uri(), "subscribe": "history"})
    settings = settings_of(
        options, now_ms=1, delete_retention_ms=86_400_000, to_url=target.as_uri()
    )
    with measured() as usage:
        started = time.perf_counter()
        plan = read_plan(options, settings)
        (report,) = compact(spark, plan, settings)
        seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return {
        "seconds": seconds,
        "mb_per_s": report.bytes / seconds / 1e6,
        "cpu_s": usage.cpu_s,
        "worker_mb": usage.worker_mb,
        "driver_mb": usage.driver_mb,
        "records_kept": report.records_after,
        "bytes_kept": report.bytes_after,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    quick = arguments.quick
    rounds = arguments.rounds or (1 if quick else ROUNDS)
    document = describe(QUESTION, rounds)
    document["compaction"] = []
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
        spark = session("isotherm-bench", master="local[2]")
        folders = {}
        for size in SIZES:
            folder = Path(directory) / str(size)
            folder.mkdir()
            folders[size] = folder, make_bucket(folder, size // 8 if quick else size)
        runs: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
        for round_number in range(rounds + 1):
            for size, (folder, _) in folders.items():
                figures = run_once(spark, folder, Path(directory) / "target")
                print(size, {k: round(v, 1) for k, v in figures.items()}, file=sys.stderr)
                if round_number:
                    runs[size].append(figures)
        spark.stop()
    for size in SIZES:
        document["compaction"].append(
            {
                "bytes": size // 8 if quick else size,
                "records": folders[size][1],
                **{
                    name: statistics.median(run[name] for run in runs[size])
                    for name in runs[size][0]
                },
                "spread": (
                    max(run["seconds"] for run in runs[size])
                    - min(run["seconds"] for run in runs[size])
                )
                / statistics.median(run["seconds"] for run in runs[size]),
            }
        )
    keep(document, is_whole=not quick)


if __name__ == "__main__":
    main()
