"""How do replay and projection of the metadata topic grow with it, and from which size does Spark
win?

Run: python -m bench.metadata_pipeline [--quick] [--millions 1.2 5 10] [--rounds 1]
     python -m bench.metadata_pipeline --millions 1.2 10 100     17 GB of files, some minutes more

Topics of 8 metadata partitions (bench/metadata_history.py) as files in the page cache, with 10,000
live segments each time. Sides, in turn:

    one process      fold_metadata_partition of each, by columns: what a broker's start does
    spark replay     the job, on local[2]; the session runs already
    spark project    the projection from nothing, into a folder
    spark again      the projection once more after 1% more events have come

Seconds of the clock, and CPU-seconds of all processes, the JVM's and the workers' included, which a
busy machine disturbs less. Memory is the highest resident size of a Python process of the side
(tasks run in workers; the JVM is not counted). Prints a table and JSON, kept unless --quick.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from bench.harness import Question, describe, keep
from bench.metadata_history import DIRECTORY, LIVE_SEGMENTS, write_history
from isotherm.kernels.loading import load_all
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.project import project
from isotherm.spark.jobs.replay import replay
from isotherm.spark.metadata.remote_metadata_log import DumpMetadataLog
from isotherm.spark.session import session

QUESTION = Question(
    "metadata_pipeline",
    "How do replay and projection of the metadata topic grow with it, and when does Spark win?",
    lambda scale: (),
)
METADATA_PARTITIONS = 8
CORES = 2
MORE = 0.01
_SAMPLE_S = 0.05


class PeakMemory:
    """The highest resident size of any Python process of this program within the block."""

    def __enter__(self) -> Self:
        self.megabytes = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            for process in running_processes():
                with contextlib.suppress(psutil.Error):
                    if "python" in process.name():
                        size = process.memory_info().rss / 1e6
                        self.megabytes = max(self.megabytes, size)


def running_processes() -> list[psutil.Process]:
    """This process and all its descendants."""
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def write_topic(directory: Path, events: int, live: int) -> int:
    """Write `events` evenly over the metadata partitions; return the bytes written.

    The partitions have the same contents, except for the ids of their topics.
    """
    size = 0
    for number in range(METADATA_PARTITIONS):
        scratch = directory / "scratch"
        part = events // METADATA_PARTITIONS
        size += write_history(scratch, part, live // METADATA_PARTITIONS, seed=number)
        (scratch / DIRECTORY).rename(directory / f"__remote_log_metadata-{number}")
        scratch.rmdir()
    return size


def cpu_seconds() -> dict[psutil.Process, float]:
    """The CPU-seconds of each running process, user and system."""
    seconds_of = {}
    for process in running_processes():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds_of[process] = times.user + times.system
    return seconds_of


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    with PeakMemory() as memory:
        started, cpu = time.perf_counter(), cpu_seconds()
        result = work()
        figures = {
            "seconds": time.perf_counter() - started,
            # A worker of an earlier job that ends meanwhile does not reduce the sum.
            "cpu_seconds": sum(
                now - cpu.get(process, 0.0) for process, now in cpu_seconds().items()
            ),
        }
    return {**figures, "memory_mb": memory.megabytes}, result


def measure(spark: Any, events: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        first, all_of_it = Path(folder, "first"), Path(folder, "all")
        size = write_topic(first, events, LIVE_SEGMENTS)
        grow(first, all_of_it, events)
        log, grown = (
            DumpMetadataLog((ObjectStoreSettings(url=topic_folder.as_uri()),))
            for topic_folder in (first, all_of_it)
        )
        target = Path(folder, "projection")
        settings = ObjectStoreSettings(url=target.as_uri())

        def one_process() -> int:
            topic = LogDirMetadataTopic([first])
            return sum(
                len(folded.cache)
                for number in range(METADATA_PARTITIONS)
                for folded in fold_metadata_partition(topic, number, lambda _: True).partitions
            )

        def spark_replay() -> int:
            with replay(spark, log) as replayed:
                count: int = replayed.segments.count()
            return count

        def spark_project() -> int:
            shutil.rmtree(target, ignore_errors=True)
            return project(spark, log, settings).segments

        sides: dict[str, Callable[[], int]] = {
            "one process": one_process,
            "spark replay": spark_replay,
            "spark project": spark_project,
            "spark again": lambda: project(spark, grown, settings).records,
        }
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                figures, result = timed(side)
                if name != "spark again" and result != live_segments():
                    raise ValueError(f"{name} finds other segments: {result}")
                runs[name].append(figures)
    return {
        "events": events,
        "bytes": size,
        "sides": {
            name: {
                figure: statistics.median(run[figure] for run in measured)
                for figure in ("seconds", "cpu_seconds", "memory_mb")
            }
            for name, measured in runs.items()
        },
    }


def live_segments() -> int:
    return LIVE_SEGMENTS // METADATA_PARTITIONS * METADATA_PARTITIONS


def grow(first: Path, grown: Path, events: int) -> None:
    """Link the files of `first`, and add a file with new segments to each partition."""
    more = int(events * MORE) // METADATA_PARTITIONS
    for number in range(METADATA_PARTITIONS):
        name = f"__remote_log_metadata-{number}"
        (grown / name).mkdir(parents=True)
        for path in (first / name).iterdir():
            os.link(path, grown / name / path.name)
        end = LogDirMetadataTopic([first]).offsets(number)[1]
        scratch = grown / "scratch"
        write_history(scratch, more, more, seed=1000 + number, first_offset=end)
        for path in (scratch / DIRECTORY).iterdir():
            path.rename(grown / name / path.name)
        (scratch / DIRECTORY).rmdir()
        scratch.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="80,000 events, not stored")
    parser.add_argument("--millions", type=float, nargs="+", default=[1.2, 5, 10])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    load_all()
    document = describe(QUESTION, options.rounds)
    started = time.perf_counter()
    spark = session("isotherm-bench", master=f"local[{CORES}]")
    spark.range(CORES, numPartitions=CORES).mapInArrow(warm_up, "id long").collect()
    document["spark_start_s"] = time.perf_counter() - started
    document["metadata_partitions"] = METADATA_PARTITIONS
    document["pipeline"] = []
    try:
        for millions in [0.08] if options.quick else options.millions:
            point = measure(spark, int(millions * 1e6), options.rounds)
            document["pipeline"].append(point)
            print_point(point)
    finally:
        spark.stop()
    document["spark_wins_from"] = wins_from(document["pipeline"])
    keep(document, is_whole=not options.quick)


def wins_from(points: list[dict[str, Any]]) -> int | None:
    """The number of events from which a replay on Spark takes less time than one process; None if
    there is none.

    It is interpolated linearly between the two measured sizes around it.
    """

    def lead(point: dict[str, Any]) -> float:
        sides = point["sides"]
        return float(sides["one process"]["seconds"] - sides["spark replay"]["seconds"])

    if not points or lead(points[-1]) <= 0:
        return None
    behind = [index for index, point in enumerate(points) if lead(point) <= 0]
    if not behind:
        return int(points[0]["events"])
    before, after = points[behind[-1]], points[behind[-1] + 1]
    share = -lead(before) / (lead(after) - lead(before))
    return int(before["events"] + share * (after["events"] - before["events"]))


def warm_up(batches: Any) -> Any:
    load_all()
    yield from batches


def print_point(point: dict[str, Any]) -> None:
    print(f"{point['events'] / 1e6:.2f} million events, {point['bytes'] / 1e6:.0f} MB")
    for name, side in point["sides"].items():
        print(
            f"  {name:<14} {side['seconds']:8.2f} s {side['cpu_seconds']:8.2f} CPU-s"
            f" {side['memory_mb']:7.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
