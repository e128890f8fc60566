"""How long does a broker take to load the metadata of its remote segments, and does history slow
it?

Run: python -m bench.metadata_bootstrap [--quick] [--years 1 5 10]

Metadata topics of 1, 5 and 10 years at 1 TB a day, 1.2 million records a year, with 10,000 live
segments (bench/metadata_history.py), in files in the page cache. Sides, in turn (A B C D A ...)
after a round that warms up:

    kafka, level 0        Kafka's serde and RemotePartitionMetadataStore fold every record, CRCs
                          checked, no network (bench/KafkaMetadataFold.java); a JVM that is warm
    isotherm, level 0     the fold by columns of every record
    isotherm, level 1     the fold of the topic after migration, once the cleaner has dropped the
                          records without keys; one batch per record, as appends write them
    isotherm, by record   every record of level 0 as an object, as brokers did before the fold by
                          columns; for one year only, once

Seconds of the clock and CPU-seconds of the one thread that works. All sides end with the same live
segments, which is checked. Prints a table and JSON, and keeps the JSON unless --quick.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Question, describe, keep
from bench.metadata_history import DIRECTORY, EVENTS_PER_YEAR, LIVE_SEGMENTS, write_history
from isotherm.clock import SystemClock
from isotherm.kernels.loading import load_all
from isotherm.record.batch import NewRecord, assign_offsets, build_batch
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.metadata.upkeep.migration import PartitionMigration
from oracle.kafka import java_command

ROUNDS = 3
QUESTION = Question(
    "metadata_bootstrap",
    "How long does a broker take to load the metadata of its remote segments, and does history slow"
    " it?",
    lambda scale: (),
)
_JAVA_OPTIONS = ["-Xmx1g", "-XX:+UseG1GC"]

Figures = dict[str, float]


class MigratedTopic:
    """Keeps appended records apart from the records that it reads.

    So `appended` is the topic that compaction leaves after a migration.
    """

    def __init__(self, directory: Path) -> None:
        self._read = LogDirMetadataTopic([directory])
        self.appended: list[NewMetadataRecord] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read, name)

    def append_all(self, _partition: int, records: list[NewMetadataRecord]) -> int:
        self.appended += records
        return 0


def write_compacted(level_0: Path, directory: Path) -> int:
    """Write the partition as migration and cleaning leave it; return the bytes written."""
    topic = MigratedTopic(level_0)
    PartitionMigration(topic, 0, clock=SystemClock()).run(rounds_max=1)
    target = directory / DIRECTORY
    target.mkdir(parents=True)
    size = 0
    with (target / f"{0:020d}.log").open("wb") as file:
        for offset, record in enumerate(topic.appended):
            batch = build_batch([NewRecord(record.timestamp_ms, record.key, record.value)])
            assign_offsets(batch, 0, offset, 0)
            size += file.write(batch)
    return size


@contextmanager
def kafka() -> Iterator[Callable[[Path], Figures]]:
    """A warm JVM that folds the partition under a directory."""
    source = Path(__file__).with_name("KafkaMetadataFold.java")
    process = subprocess.Popen(
        java_command(str(source), options=_JAVA_OPTIONS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def fold(directory: Path) -> Figures:
        process.stdin.write(f"{directory / DIRECTORY}\n")
        process.stdin.flush()
        records, live, seconds, cpu = process.stdout.readline().split()
        return figures(int(records), int(live), float(seconds), float(cpu))

    try:
        yield fold
    finally:
        process.stdin.close()
        process.wait()


def isotherm(directory: Path, **options: int) -> Figures:
    topic = LogDirMetadataTopic([directory])
    started, cpu = time.perf_counter(), time.process_time()
    folded = fold_metadata_partition(topic, 0, lambda _: True, **options)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    live = sum(len(partition.cache) for partition in folded.partitions)
    return figures(folded.next_offset, live, seconds, cpu)


def figures(records: int, live: int, seconds: float, cpu: float) -> Figures:
    return {"records": records, "live": live, "seconds": seconds, "cpu_seconds": cpu}


def measure(
    years: float, rounds: int, fold_by_kafka: Callable[[Path], Figures], *, by_record: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        level_0, level_1 = Path(folder, "0"), Path(folder, "1")
        size_0 = write_history(level_0, int(EVENTS_PER_YEAR * years))
        size_1 = write_compacted(level_0, level_1)
        sides: dict[str, Callable[[], Figures]] = {
            "kafka, level 0": lambda: fold_by_kafka(level_0),
            "isotherm, level 0": lambda: isotherm(level_0),
            "isotherm, level 1": lambda: isotherm(level_1, columnar_records_min=0),
        }
        measured: dict[str, list[Figures]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, side in sides.items():
                result = side()
                if result["live"] != LIVE_SEGMENTS:
                    raise ValueError(f"{name} finds other segments: {result}")
                if number:
                    measured[name].append(result)
        if years <= 1 and by_record:
            measured["isotherm, by record"] = [isotherm(level_0, columnar_records_min=1 << 60)]
    results = {name: summary(runs) for name, runs in measured.items()}
    return {
        "years": years,
        "size_level_0": size_0,
        "size_level_1": size_1,
        "sides": results,
    }


def summary(runs: list[Figures]) -> dict[str, float]:
    return {
        "records": runs[0]["records"],
        **{
            name: statistics.median(run[name] for run in runs)
            for name in ("seconds", "cpu_seconds")
        },
        "spread": spread([run["cpu_seconds"] for run in runs]),
    }


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="a tenth of a year, not stored")
    parser.add_argument("--years", type=float, nargs="+", default=[1, 5, 10])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--no-record", action="store_true", help="leave the fold record by record out"
    )
    options = parser.parse_args()
    load_all()
    document = describe(QUESTION, options.rounds)
    with kafka() as fold_by_kafka:
        document["bootstrap"] = []
        for years in [0.1] if options.quick else options.years:
            point = measure(years, options.rounds, fold_by_kafka, by_record=not options.no_record)
            document["bootstrap"].append(point)
            print_point(point)
    keep(document, is_whole=not (options.quick or options.no_record))


def print_point(point: dict[str, Any]) -> None:
    level_1 = point["sides"]["isotherm, level 1"]
    saved = 1 - point["size_level_1"] / point["size_level_0"]
    print(
        f"{point['years']} years: {point['size_level_0'] / 1e6:.0f} MB at level 0,"
        f" {point['size_level_1'] / 1e6:.1f} MB at level 1 ({saved:.1%} less)"
    )
    for name, side in point["sides"].items():
        ratio = side["cpu_seconds"] / level_1["cpu_seconds"]
        print(
            f"  {name:<22} {side['records']:>11,} records {side['seconds']:8.3f} s"
            f" {side['cpu_seconds']:8.3f} CPU-s  {ratio:8.1f} x level 1"
            f"   spread {side['spread']:.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
