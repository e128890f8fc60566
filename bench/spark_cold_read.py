"""How fast does Spark read tiered history straight from the bucket?

Run: python -m bench.spark_cold_read [--quick]

A bucket in the Aiven layout (a local folder, in the page cache) is filled with segments of one
topic of two partitions. No broker runs. Sides, on the same records, in turn (A B C A B C ...) after
a round that warms up:

    source, all columns     format("isotherm"), counted and summed over key and value
    source, 3 columns       format("isotherm"), columns=partition,offset,timestamp
    read, all columns       the same through isotherm.spark.read
    read, 3 columns
    parquet, all columns    the same rows, written by Spark as uncompressed Parquet
    parquet, 3 columns
    tasks, one thread       the tasks of the source read in this process: no Spark, CPU-seconds of
                            the thread that decodes and of those that fetch

The last side also counts the tasks' requests to the store: ranged GETs and their bytes, beside the
bytes of the segments. MB are 10^6 bytes of keys and values. Prints JSON, and keeps it in
bench/results/ unless --quick.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from bench.harness import Question, describe, keep
from isotherm.record.batch import CompressionType, NewRecord, assign_offsets, build_batch
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, full_schema
from isotherm.spark.source import IsothermReader
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

ROUNDS = 5
PARTITIONS = 2
SEGMENT_SIZE = 128 * 1024 * 1024
BATCH_SIZE = 64 * 1024
TEMPLATES = 64  # different batches; segments repeat them under new offsets
TOPIC = "history"
KEY = b"key-000000"
ONE_THREAD = "tasks, one thread"
TEXT = "How fast does Spark read tiered history straight from the bucket?"


@dataclass(frozen=True, slots=True)
class Point:
    value_size: int
    codec: CompressionType
    size: int

    @property
    def name(self) -> str:
        return f"{self.value_size} B {self.codec.name.lower()}"


POINTS = (
    Point(100, CompressionType.NONE, 1_000_000_000),
    Point(1024, CompressionType.NONE, 1_000_000_000),
    Point(100, CompressionType.LZ4, 1_000_000_000),
)


class CountingStorage:
    """A storage manager that counts its requests to the store."""

    def __init__(self, inner: ObjectStoreRemoteStorageManager) -> None:
        self._inner = inner
        self.gets = 0
        self.bytes = 0

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> memoryview:
        return self._counted(self._inner.fetch_log_segment(metadata, start, end_inclusive))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return self._counted(self._inner.fetch_index(metadata, index_type))

    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata | None:
        # A manifest is read again only if an object is missing; that is not counted.
        return self._inner.fetch_segment_metadata(metadata)

    def _counted(self, data: Any) -> Any:
        self.gets += 1
        self.bytes += len(data)
        return data


def fill_bucket(folder: Path, point: Point) -> int:
    """Write the segments of one point; return the number of records."""
    bucket = folder / "bucket"
    settings = ObjectStoreSettings(url=bucket.as_uri())
    maker = RecordSegmentMaker(folder / "made", ObjectStoreRemoteStorageManager(settings))
    templates = _templates(point)
    per_batch = BATCH_SIZE // (point.value_size + len(KEY))
    batches = max(1, point.size // PARTITIONS // (per_batch * (point.value_size + len(KEY))))
    for partition in range(PARTITIONS):
        owner = TopicIdPartition(uuid.UUID(int=point.value_size), TOPIC, partition)
        segment: list[bytearray] = []
        for number in range(batches):
            batch = bytearray(templates[number % len(templates)])
            assign_offsets(batch, 0, number * per_batch, 0)
            segment.append(batch)
            if len(batch) * len(segment) >= SEGMENT_SIZE:
                maker.tier(owner, segment)
                segment = []
        if segment:
            maker.tier(owner, segment)
    return batches * per_batch * PARTITIONS


def _templates(point: Point) -> list[bytearray]:
    """Batches with values that are half random and half repeated, so that codecs can compress
    them.
    """
    rng = random.Random(1)
    half = point.value_size // 2
    per_batch = BATCH_SIZE // (point.value_size + len(KEY))
    return [
        build_batch(
            [
                NewRecord(
                    1_700_000_000_000 + index,
                    KEY,
                    rng.randbytes(half) + bytes(point.value_size - half),
                )
                for index in range(per_batch)
            ],
            compression=point.codec,
        )
        for _ in range(TEMPLATES)
    ]


def source(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    reader = spark.read.format("isotherm").option("subscribe", TOPIC).options(**options)
    return reader.load((folder / "bucket").as_uri())


def mapped(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    url = (folder / "bucket").as_uri()
    return isotherm.spark.read(spark, {"path": url, "subscribe": TOPIC, **options})


def read_all_columns(frame: DataFrame) -> int:
    row = frame.selectExpr(
        "count(*)",
        "sum(length(key) + length(value))",
        "max(offset)",
        "max(timestamp)",
        "max(topic)",
    ).first()
    assert row is not None
    return int(row[0])


def read_three_columns(frame: DataFrame) -> int:
    row = frame.selectExpr("count(partition)", "max(offset)", "max(timestamp)").first()
    assert row is not None
    return int(row[0])


def read_tasks(folder: Path) -> tuple[int, CountingStorage]:
    """Run all tasks in this thread; return the number of rows and the requests to the store."""
    url = (folder / "bucket").as_uri()
    schema = full_schema(include_headers=False)
    reader = IsothermReader(parse_options({"path": url, "subscribe": TOPIC}), schema)
    storage = CountingStorage(ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=url)))
    rows = 0
    for partition in reader.partitions():
        for batch in read_task(
            partition.task,
            storage,  # type: ignore[arg-type]
            arrow_schema(schema),
            settings=ReadSettings(),
            read_tail=lambda read: iter(()),
            when_missing=WhenMissing(read_again=lambda read: None, fail_on_data_loss=True),
        ):
            rows += batch.num_rows
    return rows, storage


def measure(spark: SparkSession, folder: Path, point: Point, rounds: int) -> dict[str, Any]:
    records = fill_bucket(folder, point)
    stored = sum(path.stat().st_size for path in (folder / "bucket").rglob("*.log"))
    parquet = str(folder / "parquet")
    source(spark, folder).write.option("compression", "none").parquet(parquet)
    three = {"columns": "partition,offset,timestamp"}
    storages: list[CountingStorage] = []

    def tasks() -> int:
        rows, storage = read_tasks(folder)
        storages[:] = [storage]
        return rows

    sides: dict[str, Callable[[], int]] = {
        "source, all columns": lambda: read_all_columns(source(spark, folder)),
        "read, all columns": lambda: read_all_columns(mapped(spark, folder)),
        "parquet, all columns": lambda: read_all_columns(spark.read.parquet(parquet)),
        "source, 3 columns": lambda: read_three_columns(source(spark, folder, **three)),
        "read, 3 columns": lambda: read_three_columns(mapped(spark, folder, **three)),
        "parquet, 3 columns": lambda: read_three_columns(spark.read.parquet(parquet)),
        ONE_THREAD: tasks,
    }
    size = records * (point.value_size + len(KEY))
    seconds = run_in_turn(sides, records, rounds)
    return {
        "case": point.name,
        "parameters": {
            "value_size": point.value_size,
            "compression": point.codec.name.lower(),
            "records": records,
            "partitions": PARTITIONS,
            "tasks": source(spark, folder).rdd.getNumPartitions(),
        },
        "bytes": size,
        "stored_bytes": stored,
        "fetched_bytes": storages[0].bytes,
        "gets": storages[0].gets,
        "sides": {
            name: dict(_figures(name, values, records, size)) for name, values in seconds.items()
        },
    }


def run_in_turn(
    sides: Mapping[str, Callable[[], int]], records: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """(wall seconds, CPU-seconds of this process) of each side and round."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, read in sides.items():
            clock, cpu = time.perf_counter(), time.process_time()
            rows = read()
            taken = time.perf_counter() - clock, time.process_time() - cpu
            assert rows == records, (name, rows, records)
            if round_number:
                measured[name].append(taken)
                print(f"{name:<24} {records / taken[0]:14,.0f} rows/s", file=sys.stderr, flush=True)
    return measured


def _figures(
    name: str, values: list[tuple[float, float]], records: int, size: int
) -> Iterator[tuple[str, Any]]:
    clock = statistics.median(taken for taken, _ in values)
    cpu = statistics.median(taken for _, taken in values)
    yield "seconds", round(clock, 4)
    yield "spread", round((max(t for t, _ in values) - min(t for t, _ in values)) / clock, 4)
    yield "rows_per_s", records / clock
    yield "mb_per_s", size / 1e6 / clock
    if name == ONE_THREAD:
        yield "rows_per_cpu_s", records / cpu
        yield "mb_per_cpu_s", size / 1e6 / cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=TEXT)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(Question("spark_cold_read", TEXT, lambda scale: ()), rounds)
    document["versions"]["pyspark"] = pyspark.__version__
    spark = isotherm.spark.session("isotherm-bench", config={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    document["reading"] = []
    for point in POINTS:
        scaled = Point(point.value_size, point.codec, point.size // (10 if options.quick else 1))
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
            document["reading"].append(measure(spark, Path(folder), scaled, rounds))
    spark.stop()
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
