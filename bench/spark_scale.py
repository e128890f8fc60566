"""What does a longer history cost a Spark query?

Run: python -m bench.spark_scale [--quick] [--only planning|growth|pruning|memory]

    planning  From options to pickled tasks, in one process, without Spark: 100 partitions, segments
              as named. The metadata topic lies on an Isotherm broker in this process (50
              partitions, two events a segment) and is read through the client; the bucket is an
              object store in memory, so listing it costs the processor what it costs and no
              waiting: requests are counted, pages of a listing as 1,000 objects each.
    growth    The same query over a synthetic history of 1, 10 and 100 GB (segments of 1 GiB, made
              when they are fetched; columns=offset), read task by task in this process: tasks,
              ranged GETs and bytes are what the store was asked for.
    pruning   Three days out of a year, by offsets and by times: bytes that were fetched (manifests
              and indexes included, in bucket mode every manifest's) over the bytes that these days
              take in the objects. A year is 365 MB in weekly segments, of two partitions.
    memory    One segment of 1 GiB, all columns, read in a process of its own: the largest resident
              and virtual size it came to, in which Python, Arrow and Numba are contained.

Seconds are CPU seconds of the process where nothing else is said: other work on the machine moves
wall time most. Prints JSON, and keeps it in bench/results/ unless --quick; --only replaces its own
table there.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore
from pyspark import cloudpickle

from bench.harness import RESULTS_DIRECTORY, Question, describe
from bench.spark_scale_history import (
    SIZE_UNIT,
    fill_metadata_topic,
    fill_store,
    fill_year,
    metadata_topic,
    write_large_segment,
)
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.spark.plan.planning import ReadTask
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.source_task import TaskPartition, uncollected
from isotherm.spark.tier.segment_list_sources import (
    BucketSegmentSource,
    SegmentSource,
    TopicSegmentSource,
)
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import TopicIdPartition
from tests.support.synthetic_history import HistoryShape, SyntheticHistory

ROUNDS = 3
TEXT = "What does a longer history cost a Spark query?"
GIB = 2**30
Row = list[Any]


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[Row]


class FixedBrokers:
    """Brokers that answer at once: partitions as given, each from offset 0 to `end`."""

    def __init__(self, owners: list[TopicIdPartition], end: int) -> None:
        self._owners, self._end = owners, end

    def topic_names(self) -> list[str]:
        return sorted({owner.topic for owner in self._owners})

    def partitions(self, topics: object) -> list[TopicIdPartition]:
        return self._owners

    def bounds(self, partitions: Any) -> dict[Any, OffsetBounds]:
        return dict.fromkeys(partitions, OffsetBounds(0, self._end))

    def offsets_for_times(self, times: Mapping[Any, int]) -> dict[Any, int | None]:
        return dict.fromkeys(times)


class CountingClient(ObjectClient):
    gets = bytes = lists = 0
    size_unit = 1
    """The bytes of a log that one stored byte represents."""

    def get(self, key: str, size_max: int) -> bytes:
        content = super().get(key, size_max)
        self._count(len(content))
        return content

    def get_range(self, key: str, start: int, end: int) -> Any:
        answer = super().get_range(key, start, end)
        self._count(len(answer.data))
        return answer

    def list_objects(self, directory: str) -> Iterator[Any]:
        count = 0
        for stored in super().list_objects(directory):
            count += 1
            is_log = stored.key.endswith(".log")
            yield stored._replace(size=stored.size * self.size_unit) if is_log else stored
        self.lists += max(1, -(-count // 1000))

    def list_directories(self, directory: str) -> list[str]:
        self.lists += 1
        return super().list_directories(directory)

    def list_level(self, directory: str) -> tuple[list[str], list[Any]]:
        self.lists += 1
        return super().list_level(directory)

    def _count(self, size: int) -> None:
        self.gets += 1
        self.bytes += size


def measure_planning(rounds: int, *, quick: bool) -> Table:
    rows = []
    few, many = (1_000, 10_000) if quick else (10_000, 100_000)
    for count, size in ((few, 2**28), (many, 2**28), (many, GIB)):
        name = f"{count:,} of {size // 2**20} MiB"
        with metadata_topic() as (properties, topic_name):
            owners, end = fill_metadata_topic(properties, topic_name, count, size)
            brokers = FixedBrokers(owners, end)
            open_topic = functools.partial(_topic_source, properties, topic_name)
            rows.append([name, "topic", *_planned(open_topic, brokers, rounds), "-", "-"])
        store = MemoryStore()
        settings = ObjectStoreSettings(url="memory:///")
        fill_store(store, settings, count, size)
        for by_name in (True, False) if size < GIB else (True,):
            client = CountingClient(settings, store)
            client.size_unit = SIZE_UNIT
            open_bucket = functools.partial(
                BucketSegmentSource,
                client,
                settings.create_layout(),
                fail_on_data_loss=True,
                by_name=by_name,
            )
            kind = "bucket, by names" if by_name else "bucket, every manifest"
            figures = _planned(open_bucket, None, rounds)
            rows.append([name, kind, *figures, client.lists // rounds, client.gets // rounds])
            print(rows[-1], file=sys.stderr, flush=True)
    columns = ("segments", "metadata from", "tasks", "MB of tasks", "CPU-s", "s", "LISTs", "GETs")
    return Table("Planning", columns, rows)


def _topic_source(properties: dict[str, Any], topic: str) -> TopicSegmentSource:
    return TopicSegmentSource(KafkaMetadataTopic(properties, topic=topic))


def _planned(
    make_source: Callable[[], SegmentSource], brokers: FixedBrokers | None, rounds: int
) -> list[Any]:
    given = {"path": "memory://", "subscribe": "flights"}
    if brokers is not None:
        given["kafka.bootstrap.servers"] = "unused:1"
    options = parse_options(given)
    cpu, wall, size, tasks = [], [], 0, 0
    for _ in range(rounds):
        gc.collect()
        cpu_start, start = time.process_time(), time.perf_counter()
        with uncollected():
            log = TieredLog(options, None, make_source(), brokers)  # type: ignore[arg-type]
            planned = BatchQuery(options, log).plan()
            sent = [len(cloudpickle.dumps(TaskPartition(read, "aiven"))) for read in planned]
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - start)
        size, tasks = sum(sent), len(sent)
    return [
        tasks,
        round(size / 1e6, 1),
        round(statistics.median(cpu), 2),
        round(statistics.median(wall), 2),
    ]


class FixedSegments:
    def __init__(self, segments: list[RemoteLogSegmentMetadata]) -> None:
        self._segments = segments

    def visible_segments(self, selects_topic: Any, partitions: Any) -> Any:
        return self._segments


def measure_growth(*, quick: bool) -> Table:
    rows = []
    for gigabytes in (1, 2) if quick else (1, 10, 100):
        shape = HistoryShape(partitions=2, segments_per_partition=1, segment_size=GIB // 2)
        if gigabytes > 1:
            shape = HistoryShape(2, gigabytes // 2, GIB)
        history = SyntheticHistory(shape)
        options = parse_options({"path": "memory://", "subscribe": shape.topic})
        log = TieredLog(options, history, FixedSegments(history.segments()), None)
        cpu_start = time.process_time()
        tasks = BatchQuery(options, log).plan()
        read = sum(_rows_of(task, history, options) for task in tasks)
        rows.append(
            [
                round(history.total_size / 1e9, 2),
                len(tasks),
                history.gets,
                round(history.bytes / 1e9, 3),
                f"{history.bytes / history.total_size:.4f}",
                round(read / 1e6, 2),
                round(time.process_time() - cpu_start, 1),
            ]
        )
        print(rows[-1], file=sys.stderr, flush=True)
    columns = ("GB", "tasks", "GETs", "GB fetched", "fetched / held", "M rows", "CPU-s")
    return Table("Growth", columns, rows)


def _rows_of(task: ReadTask, storage: Any, options: SourceOptions) -> int:
    batches = read_task(
        task,
        storage,
        arrow_schema(schema_of(["offset"])),
        settings=ReadSettings(),
        read_tail=lambda read: iter(()),
        when_missing=WhenMissing(read_again=lambda read: None, fail_on_data_loss=True),
    )
    return sum(batch.num_rows for batch in batches)


def measure_pruning(*, quick: bool) -> Table:
    rows = []
    for kind in ("aiven", "local-tiered-storage", "aiven, compressed and encrypted"):
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
            year = fill_year(Path(folder), kind, day_size=100_000 if quick else 1_000_000)
            client = CountingClient(year.settings, year.store)
            storage = ObjectStoreRemoteStorageManager(year.settings, store=year.store)
            storage._client = client
            for limit, given in year.limits():
                for source in ("topic", "bucket"):
                    if source == "bucket" and kind == "local-tiered-storage":
                        continue
                    client.gets = client.bytes = 0
                    options = parse_options({"path": "memory://", "subscribe": "year", **given})
                    segments: Any = FixedSegments(year.segments)
                    if source == "bucket":
                        by_name = options.plans_by_name
                        layout = year.settings.create_layout()
                        segments = BucketSegmentSource(
                            client, layout, fail_on_data_loss=True, by_name=by_name
                        )
                    log = TieredLog(options, storage, segments, None)
                    tasks = BatchQuery(options, log).plan()
                    read = sum(_rows_of(task, storage, options) for task in tasks)
                    assert read == year.wanted_records, (read, year.wanted_records)
                    ratio = client.bytes / year.wanted_bytes
                    rows.append([kind, source, limit, client.gets, f"{client.bytes / 1e6:.2f}"])
                    rows[-1] += [f"{year.wanted_bytes / 1e6:.2f}", f"{ratio:.3f}"]
                    print(rows[-1], file=sys.stderr, flush=True)
    columns = ("objects", "metadata from", "limits", "GETs", "MB fetched", "MB needed", "ratio")
    return Table("Three days out of a year", columns, rows)


_READ_ONE = """
import json, sys
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.row_schema import full_schema
from isotherm.spark.source import IsothermReader

options = parse_options(json.loads(sys.argv[1]))
reader = IsothermReader(options, full_schema(include_headers=False))
rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([rows, *(int(status[name].split()[0]) // 1024 for name in ("VmHWM", "VmPeak"))]))
"""


def measure_memory(*, quick: bool) -> Table:
    rows = []
    size = 2**27 if quick else GIB
    for kind in ("aiven", "aiven, compressed and encrypted"):
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
            options, records = write_large_segment(Path(folder), kind, size)
            options["targetBytesPerTask"] = str(4 * GIB)
            command = [sys.executable, "-c", _READ_ONE, json.dumps(options)]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            read, resident, virtual = json.loads(ran.stdout)
            assert read == records, (read, records)
            rows.append([kind, size // 2**20, resident, virtual])
            print(rows[-1], file=sys.stderr, flush=True)
    return Table("One segment in one task", ("objects", "MiB", "resident MiB", "virtual MiB"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=TEXT)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"of planning, default {ROUNDS}")
    parser.add_argument("--only", choices=("planning", "growth", "pruning", "memory"))
    given = parser.parse_args()
    rounds = given.rounds or (1 if given.quick else ROUNDS)
    document = describe(Question("spark_scale", TEXT, lambda scale: ()), rounds)
    parts: dict[str, Callable[[], Table]] = {
        "planning": lambda: measure_planning(rounds, quick=given.quick),
        "growth": lambda: measure_growth(quick=given.quick),
        "pruning": lambda: measure_pruning(quick=given.quick),
        "memory": lambda: measure_memory(quick=given.quick),
    }
    chosen = [given.only] if given.only else list(parts)
    tables = [parts[name]() for name in chosen]
    document["tables"] = [
        {"title": table.title, "columns": table.columns, "rows": table.rows} for table in tables
    ]
    print(json.dumps(document, indent=1))
    if not given.quick:
        _keep(document)


def _keep(document: dict[str, Any]) -> None:
    """Store the tables. They replace stored tables with the same titles; the others stay."""
    stored = RESULTS_DIRECTORY / "spark_scale.json"
    measured = {table["title"]: table for table in document["tables"]}
    before = json.loads(stored.read_text())["tables"] if stored.exists() else []
    tables = {table["title"]: table for table in before} | measured
    document["tables"] = [tables[title] for title in sorted(tables)]
    RESULTS_DIRECTORY.mkdir(exist_ok=True)
    stored.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
