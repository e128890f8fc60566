"""How fast does a Spark task read the tail from a broker?

Run: python -m bench.spark_tail [--quick]

A broker in a process of its own has one partition, not tiered, in the page cache. No Spark runs:
this process reads the partition as a task does, to batches of rows with headers. Sides, on the same
records, in turn (A B A B ...) after a round that warms up:

    fetched     batches as bytes, decoded as those of the bucket
    consumed    librdkafka's consumer, and a column for each field of its messages

CPU-seconds are those of this process, all threads. MB are 10^6 bytes of values. Prints JSON, and
keeps it in bench/results/ unless --quick.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bench import load
from bench.harness import Question, describe, keep
from isotherm.clock import SystemClock
from isotherm.spark.plan.planning import BrokerRead
from isotherm.spark.reading.consumed_tail import consume_tail
from isotherm.spark.reading.tail import consumer_properties, read_tail
from isotherm.spark.row_schema import arrow_schema, full_schema
from isotherm.testing.broker_process import BrokerProcess
from isotherm.types import TopicPartition

ROUNDS = 5
BATCH_BYTES = 2 * 1024 * 1024
POLL_TIMEOUT_MS = 60_000
SCHEMA = arrow_schema(full_schema(include_headers=True))
TEXT = "How fast does a Spark task read the tail from a broker?"


class Point(NamedTuple):
    name: str
    record_size: int
    compression: str
    records: int


POINTS = (
    Point("100 B none", 100, "none", 4_000_000),
    Point("1 KiB none", 1024, "none", 400_000),
    Point("100 B lz4", 100, "lz4", 4_000_000),
    Point("100 B zstd", 100, "zstd", 4_000_000),
)


def fetched(read: BrokerRead, properties: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    return read_tail(
        read,
        properties,
        SCHEMA,
        clock=SystemClock(),
        batch_bytes=BATCH_BYTES,
        poll_timeout_ms=POLL_TIMEOUT_MS,
        fail_on_data_loss=True,
    )


def consumed(read: BrokerRead, properties: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    return consume_tail(
        read,
        properties,
        SCHEMA,
        clock=SystemClock(),
        batch_bytes=BATCH_BYTES,
        poll_timeout_ms=POLL_TIMEOUT_MS,
    )


SIDES: dict[str, Callable[[BrokerRead, dict[str, Any]], Iterator[pa.RecordBatch]]] = {
    "fetched": fetched,
    "consumed": consumed,
}


def measure(server: str, point: Point, rounds: int) -> dict[str, Any]:
    topic = point.name.replace(" ", "-")
    load.produce(
        server,
        topic,
        records=point.records,
        record_size=point.record_size,
        compression=point.compression,
    )
    read = BrokerRead(TopicPartition(topic, 0), 0, point.records)
    properties = consumer_properties({"bootstrap.servers": server}, "bench", "read_uncommitted")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    for number in range(rounds + 1):
        for name, rows_of in SIDES.items():
            clock, cpu = time.perf_counter(), time.process_time()
            rows = sum(batch.num_rows for batch in rows_of(read, properties))
            assert rows == point.records, (name, rows)
            if number:
                taken[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    size = point.records * point.record_size
    return {
        "case": point.name,
        "parameters": point._asdict(),
        "sides": {name: _figures(seconds, point.records, size) for name, seconds in taken.items()},
    }


def _figures(taken: list[tuple[float, float]], records: int, size: int) -> dict[str, float]:
    clock = statistics.median(wall_s for wall_s, _ in taken)
    cpu = statistics.median(cpu_s for _, cpu_s in taken)
    return {
        "seconds": round(clock, 4),
        "spread": round((max(t for t, _ in taken) - min(t for t, _ in taken)) / clock, 4),
        "rows_per_s": records / clock,
        "mb_per_s": size / 1e6 / clock,
        "rows_per_cpu_s": records / cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=TEXT)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, two rounds")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else ROUNDS)
    document = describe(Question("spark_tail", TEXT, lambda scale: ()), rounds)
    document["reading"] = []
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        broker = BrokerProcess(Path(folder), {"listeners": "PLAINTEXT://127.0.0.1:0"})
        try:
            for point in POINTS:
                records = point.records // (10 if options.quick else 1)
                scaled = point._replace(records=records)
                document["reading"].append(measure(broker.bootstrap_servers, scaled, rounds))
        finally:
            broker.stop()
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
