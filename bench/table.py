"""What does it cost to make a topic a table, and how fast are queries over table and log?

Run: python -m bench.table [--quick] [--rounds N]

An Apache Kafka broker with tiered storage (as in bench/spark_beside_kafka.py) holds a topic of
JSON, and one of Avro with its schema in a registry. Closed segments are in the remote tier alone.

Making: the whole topic becomes a new table, in turn (A B A B ...) after a round that warms up, in
one Spark session that both sides share:

    isotherm    the job of `isotherm pipeline table`: an Iceberg table, its commit included
    kafka       format("kafka"), then from_json or from_avro with the schema given, written by Spark
                as Parquet with the same columns and codec

`isotherm` finds the fields of JSON by itself, and fetches the schema of Avro. CPU-seconds are those
of all processes: Spark's JVM, its Python workers, the driver's Python, and the broker.

Nothing new: seconds of the command as a process of its own, Spark's start included if it needs
Spark.

Queries (bench/spark_queries.py) over the same records with raw values: `topic` is the frame of
isotherm.spark.topic over a table that has all but the last LATER_RECORDS, `kafka` format("kafka"),
`parquet` what Spark has written of that. The call of isotherm.spark.topic, which settles what is
read, is measured by itself. The queries are asked over RECORDS, and over LARGER times as many.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyspark
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, expr, from_json

import isotherm.spark
from bench import spark_beside_kafka
from bench.harness import Metrics, Question, describe, keep, ratio_ranges, ratios, summarize
from bench.servers import START_TIMEOUT_S, KafkaServer, ServerUsage, running
from bench.spark_queries import QUERIES, Side, SparkUsage, ask_in_turn
from bench.topics import create
from isotherm.spark.driver.topic_plan import plan_topic
from isotherm.spark.jobs.table import add_to_table
from isotherm.spark.tables.open_table import TablePlace, open_table, table_source_options
from isotherm.spark.tables.schema_registry import registry_settings
from isotherm.spark.tables.topic_table import Identity
from isotherm.spark.tables.value_formats import AVRO, JSON, RAW, formats
from oracle.jars import resolve_spark_avro_jars, resolve_spark_source_jars
from oracle.schema_registry import register, schema_registry
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

ROUNDS = 3
RECORDS = 1_000_000
LATER_RECORDS = 5_000
LARGER = 5
"""The queries are asked again over as many times RECORDS: a query has costs that do not grow."""
SEGMENT_BYTES = 8 * 1024 * 1024
SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "flight", "type": "long"},
        {"name": "origin", "type": "string"},
        {"name": "dest", "type": "string"},
        {"name": "dep_delay", "type": "double"},
        {"name": "arr_delay", "type": "double"},
        {"name": "distance", "type": "long"},
        {"name": "cancelled", "type": "boolean"},
        {"name": "tail_number", "type": "string"},
        {"name": "scheduled", "type": "long"},
    ],
}
_SPARK_TYPES = {"string": "string", "long": "bigint", "double": "double", "boolean": "boolean"}
SPARK_SCHEMA = ", ".join(
    f"{field['name']} {_SPARK_TYPES[field['type']]}" for field in SCHEMA["fields"]
)
QUESTION = Question(
    "table",
    "What does it cost to make a topic a table, and how fast are queries over table and log?",
    lambda scale: (),
)
_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "headers", "key")


@dataclass
class Bench:
    """The inputs of every measurement. `sizes` are bytes of keys and values by topic."""

    spark: SparkSession
    kafka: KafkaServer
    registry: str
    folder: Path
    records: int
    segment_bytes: int
    sizes: dict[str, int] = field(default_factory=dict)

    def options(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka.bootstrap_server,
            "kafka.isolation.level": "read_committed",
            "subscribe": topic,
            "minPartitions": "4",
        }

    def own_options(self, topic: str) -> dict[str, str]:
        # LocalTieredStorage keeps its layout's own folder below the one it is given.
        root = self.kafka.tiered_root.parent.absolute().as_uri()
        return {**self.options(topic), "path": root}

    def through_kafka(self, topic: str) -> DataFrame:
        reader = self.spark.read.format("kafka").options(**self.options(topic))
        return reader.option("includeHeaders", "true").load()

    def lake(self, name: str) -> Path:
        return self.folder / name


def flight(number: int) -> dict[str, Any]:
    """A flight, with fields that repeat as in a timetable and some that do not."""
    mixed = number * 2654435761 % 2**32
    return {
        "carrier": ("AA", "UA", "DL", "WN", "B6")[mixed % 5],
        "flight": mixed % 9000,
        "origin": f"K{mixed % 400:03}",
        "dest": f"K{mixed // 400 % 400:03}",
        "dep_delay": mixed % 1200 / 8 - 10,
        "arr_delay": mixed // 7 % 1200 / 8 - 15,
        "distance": mixed // 11 % 2700,
        "cancelled": mixed % 97 == 0,
        "tail_number": f"N{mixed % 7000:05}",
        "scheduled": 1_700_000_000_000 + number * 250,
    }


def encoders(registry: str) -> dict[str, Callable[[dict[str, Any]], bytes]]:
    """The encoder of values of each topic. Registers the Avro schema."""
    head = b"\0" + register(registry, f"{AVRO}-value", SCHEMA).to_bytes(4, "big")
    parsed = fastavro.parse_schema(SCHEMA)

    def avro(value: dict[str, Any]) -> bytes:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, value)
        return head + target.getvalue()

    return {JSON: lambda value: json.dumps(value).encode(), AVRO: avro}


def fill(bench: Bench, topic: str, encode: Callable[[dict[str, Any]], bytes]) -> None:
    """Write the first records, and wait until their closed segments are only in the remote tier."""
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(bench.segment_bytes),
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    create(bench.kafka, topic=topic, config=config)
    produce(bench, topic, encode, range(bench.records))
    wait_until_tiered(bench, topic)


def wait_until_tiered(bench: Bench, topic: str) -> None:
    wait_until(lambda: fully_tiered(bench.kafka.log_dir, topic, 1), f"the tiering of topic={topic}")


def produce(
    bench: Bench, topic: str, encode: Callable[[dict[str, Any]], bytes], numbers: range
) -> None:
    producer = Producer(
        {"bootstrap.servers": bench.kafka.bootstrap_server, "linger.ms": 20, "acks": "all",
         "compression.type": "lz4", "queue.buffering.max.messages": len(numbers) + 1}
    )  # fmt: skip
    size = 0
    for number in numbers:
        key, value = b"%08d" % (number % 10_000), encode(flight(number))
        size += len(key) + len(value)
        producer.produce(topic, key=key, value=value)
        producer.poll(0)
    assert producer.flush(120) == 0
    bench.sizes[topic] = bench.sizes.get(topic, 0) + size


def make(bench: Bench, topic: str, value: str, lake: Path) -> Callable[[], int]:
    """Make a table in a new warehouse; return a function that counts its rows and is not timed."""
    source = table_source_options(bench.own_options(topic))
    registry = registry_settings(bench.registry if value == AVRO else None, None)
    target = open_table(topic, TablePlace(warehouse=str(lake)), writes=True)
    assert target.identity() is None
    plan = plan_topic(source, {})
    target.create(Identity(topic=topic, topic_id=plan.topic_id, value_format=value))
    done = add_to_table(
        bench.spark,
        source,
        plan,
        target,
        formats(RAW, value, registry),
        "0",
        lambda step: None,
        newest=False,
    )
    assert done.dead_letters == 0, done
    return lambda: done.rows


def make_by_spark(bench: Bench, topic: str, value: str, lake: Path) -> Callable[[], int]:
    """Make the same columns with Spark's own readers and Parquet writer."""
    frame = bench.through_kafka(topic)
    decoded = {
        RAW: lambda: col("value"),
        JSON: lambda: from_json(col("value").cast("string"), SPARK_SCHEMA),
        # The Avro value follows the magic byte and the schema's id.
        AVRO: lambda: from_avro(expr("substring(value, 6)"), json.dumps(SCHEMA)),
    }[value]()
    frame = frame.select(*_COLUMNS, decoded.alias("value"))
    frame.write.option("compression", "zstd").parquet(str(lake))
    return lambda: bench.spark.read.parquet(str(lake)).count()


MAKERS = {"isotherm": make, "kafka": make_by_spark}


def measure_making(bench: Bench, topic: str, value: str, rounds: int) -> dict[str, Any]:
    broker = ServerUsage(bench.kafka)
    measured: dict[str, list[Metrics]] = {name: [] for name in MAKERS}
    for round_number in range(rounds + 1):
        for name, maker in MAKERS.items():
            lake = bench.lake(f"{name}-{value}-{round_number}")
            spark, of_broker, started = SparkUsage(), broker.cpu_s(), time.perf_counter()
            count = maker(bench, topic, value, lake)
            seconds = time.perf_counter() - started
            used = {**spark.cpu_s(), "broker": broker.cpu_s() - of_broker}
            rows = count()
            assert rows == bench.records, (name, rows)
            written = sum(path.stat().st_size for path in lake.rglob("*.parquet"))
            shutil.rmtree(lake)
            if round_number:
                size, cpu_s = bench.sizes[topic], sum(used.values())
                measured[name].append(
                    {
                        "seconds": seconds,
                        "mb_per_s": size / 1e6 / seconds,
                        "rows_per_s": rows / seconds,
                        "rows_per_cpu_s": rows / cpu_s,
                        "cpu_s_per_gb": cpu_s / (size / 1e9),
                        **{f"{part}_cpu_s": used[part] for part in used},
                        "written_mb": written / 1e6,
                    }
                )
                _tell(f"make, {value}", name, measured[name][-1])
    sides = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": f"make, {value}",
        "parameters": {"records": bench.records, "segment_bytes": bench.segment_bytes},
        "bytes": bench.sizes[topic],
        "sides": sides,
        "ratios": ratios(sides),
        "ratio_ranges": ratio_ranges(sides),
    }


def measure_nothing_new(bench: Bench, topic: str, lake: Path, rounds: int) -> dict[str, Any]:
    """Time runs of the table job, of raw values, while the topic has nothing new."""
    root = bench.kafka.tiered_root.parent.absolute().as_uri()
    command = [sys.executable, "-m", "isotherm.cli.main", "pipeline", "table", topic,
               "--path", root, "-b", bench.kafka.bootstrap_server, "--warehouse", str(lake),
               "--json"]  # fmt: skip
    runs: list[Metrics] = []
    for _ in range(rounds):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append({"seconds": time.perf_counter() - started})
        assert json.loads(done.stdout.splitlines()[-1])["offsets"] == 0, done.stdout
    sides = {"isotherm": summarize(runs)}
    return {"case": "nothing new", "parameters": {}, "sides": sides, "ratios": {}}


def measure_call(bench: Bench, topic: str, lake: Path, rounds: int) -> dict[str, Any]:
    runs: list[Metrics] = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        spanned(bench, topic, lake)
        runs.append({"seconds": time.perf_counter() - started})
    sides = {"isotherm": summarize(runs[1:])}
    return {"case": "call of isotherm.spark.topic", "parameters": {}, "sides": sides, "ratios": {}}


def spanned(bench: Bench, topic: str, lake: Path) -> DataFrame:
    own = bench.own_options(topic)
    del own["subscribe"]
    return isotherm.spark.topic(bench.spark, topic, own, warehouse=str(lake))


def query_sides(bench: Bench, topic: str, lake: Path, parquet: Path) -> dict[str, Side]:
    frame = bench.through_kafka(topic)
    frame.write.option("compression", "zstd").parquet(str(parquet))
    spanning = spanned(bench, topic, lake)

    def selected(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
        return frame if columns is None else frame.select(*columns)

    return {
        "kafka": lambda columns: selected(bench.through_kafka(topic), columns),
        "topic": lambda columns: selected(spanning, columns),
        "parquet": lambda columns: selected(bench.spark.read.parquet(str(parquet)), columns),
    }


def measure(bench: Bench, rounds: int) -> Iterator[dict[str, Any]]:
    encode = encoders(bench.registry)
    for topic, encoder in encode.items():
        fill(bench, topic, encoder)
    for value, topic in ((RAW, JSON), (JSON, JSON), (AVRO, AVRO)):
        yield measure_making(bench, topic, value, rounds)
    lake, encoder = bench.lake("queried"), encode[JSON]
    make(bench, JSON, RAW, lake)
    yield measure_nothing_new(bench, JSON, lake, rounds)
    end = produce_later(bench, bench.records, encoder)
    yield measure_call(bench, JSON, lake, rounds)
    yield measure_queries(bench, end, lake, rounds)
    produce(bench, JSON, encoder, range(end, LARGER * bench.records))
    wait_until_tiered(bench, JSON)
    larger = bench.lake("larger")
    make(bench, JSON, RAW, larger)
    end = produce_later(bench, LARGER * bench.records, encoder)
    yield measure_queries(bench, end, larger, rounds)


def produce_later(bench: Bench, start: int, encode: Callable[[dict[str, Any]], bytes]) -> int:
    """Write the records that the table does not hold; returns the number of all records."""
    produce(bench, JSON, encode, range(start, start + LATER_RECORDS))
    return start + LATER_RECORDS


def measure_queries(bench: Bench, records: int, lake: Path, rounds: int) -> dict[str, Any]:
    return {
        "case": f"raw, {records / 1e6:.1f} M rows",
        "parameters": {"records": records, "later_records": LATER_RECORDS},
        "bytes": bench.sizes[JSON],
        "queries": ask_in_turn(
            query_sides(bench, JSON, lake, bench.lake(f"parquet-{records}")),
            list(QUERIES),
            records=records,
            size=bench.sizes[JSON],
            rounds=rounds,
            broker_cpu_s=ServerUsage(bench.kafka).cpu_s,
        ),
    }


@contextmanager
def running_bench(share: float) -> Iterator[Bench]:
    jars = ",".join(map(str, [*resolve_spark_source_jars(), *resolve_spark_avro_jars()]))
    config: Mapping[str, str] = {**spark_beside_kafka.session_config(), "spark.jars": jars}
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as name,
        running(["kafka"], Path(name)) as servers,
    ):
        kafka, folder = servers[0], Path(name)
        assert isinstance(kafka, KafkaServer)
        (folder / "registry").mkdir()
        with schema_registry(folder / "registry", kafka.bootstrap_server, START_TIMEOUT_S) as url:
            spark = isotherm.spark.session("isotherm-bench", config=config)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                yield Bench(
                    spark, kafka, url, folder, int(RECORDS * share), int(SEGMENT_BYTES * share)
                )
            finally:
                spark.stop()


def _tell(case: str, side: str, metrics: Metrics) -> None:
    print(
        f"{case:<12} {side:<10} {metrics['seconds']:6.1f} s {metrics['mb_per_s']:7.1f} MB/s"
        f" {metrics['rows_per_cpu_s']:10,.0f} rows/CPU-s"
        + "".join(f" {n}={v:.1f}" for n, v in metrics.items() if n.endswith("cpu_s")),
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(QUESTION, rounds)
    document["versions"]["pyspark"] = pyspark.__version__
    with running_bench(0.125 if options.quick else 1.0) as bench:
        document["results"] = list(measure(bench, rounds))
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
