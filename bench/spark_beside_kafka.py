"""How fast does Spark read a cold topic: through a broker, or straight from the bucket?

Run: python -m bench.spark_beside_kafka [--quick]

An Apache Kafka broker with tiered storage (LocalTieredStorage, a local folder in the page cache)
holds a topic whose closed segments are in the remote tier alone. Spark reads the same topic on the
same cores, all columns, in turn (A B A B ...) after a round that warms up:

    kafka       format("kafka"): through the broker, which reads the remote tier
    isotherm    format("isotherm"): the same bucket and metadata topic; only the tail by the broker

Both are drop-ins for each other: the query is the same, and the rows counted must be the same. The
broker's CPU-seconds are its own process's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from bench import load
from bench.harness import RESULTS_DIRECTORY, Metrics, Question, describe, ratios, summarize
from bench.servers import KafkaServer, ServerUsage, running
from bench.spark_cold_read import read_all_columns
from bench.topics import create_filled
from oracle.jars import resolve_spark_source_jars
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

ROUNDS = 3
SEGMENT_BYTES = 16 * 1024 * 1024
# record size, compression, bytes
POINTS = ((1024, "none", 1_000_000_000), (100, "none", 200_000_000), (1024, "lz4", 1_000_000_000))
TEXT = "How fast does Spark read a cold topic: through a broker, or straight from the bucket?"


def measure(
    spark: SparkSession,
    kafka: KafkaServer,
    point: tuple[int, str, int],
    rounds: int,
) -> dict[str, Any]:
    record_size, compression, size = point
    topic = f"cold-{record_size}-{compression}"
    records = size // record_size // load.BATCH_RECORDS * load.BATCH_RECORDS
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(SEGMENT_BYTES),
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    create_filled(
        kafka,
        topic=topic,
        records=records,
        record_size=record_size,
        compression=compression,
        config=config,
    )
    wait_until(lambda: fully_tiered(kafka.log_dir, topic, 1), f"the tiering of topic={topic}")
    sides = {
        "kafka": lambda: through_the_broker(spark, kafka, topic),
        "isotherm": lambda: from_the_bucket(spark, kafka, topic),
    }
    measured: dict[str, list[Metrics]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, source in sides.items():
            metrics = _read(source, kafka, records, record_size)
            if round_number:
                measured[name].append(metrics)
                print(
                    f"{topic:<16} {name:<9} {metrics['records_per_s']:12,.0f} rows/s",
                    file=sys.stderr,
                    flush=True,
                )
    summaries = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": f"{record_size} B {compression}",
        "parameters": {
            "record_size": record_size,
            "compression": compression,
            "records": records,
            "segment_bytes": SEGMENT_BYTES,
        },
        "bytes": records * record_size,
        "sides": summaries,
        "ratios": ratios(summaries),
    }


def through_the_broker(spark: SparkSession, kafka: KafkaServer, topic: str) -> DataFrame:
    return _source(spark, kafka, topic, "kafka").load()


def from_the_bucket(spark: SparkSession, kafka: KafkaServer, topic: str) -> DataFrame:
    # LocalTieredStorage keeps its layout's own folder below the one it is given.
    bucket = kafka.tiered_root.parent.absolute().as_uri()
    return _source(spark, kafka, topic, "isotherm").option("path", bucket).load()


def _source(spark: SparkSession, kafka: KafkaServer, topic: str, name: str) -> Any:
    reader = spark.read.format(name).option("kafka.bootstrap.servers", kafka.bootstrap_server)
    # Both split the topic alike; the Kafka source would read one partition with one task.
    return reader.option("subscribe", topic).option("minPartitions", "4")


def _read(
    source: Callable[[], DataFrame], kafka: KafkaServer, records: int, record_size: int
) -> Metrics:
    usage = ServerUsage(kafka)
    started = time.perf_counter()
    rows = read_all_columns(source())
    seconds = time.perf_counter() - started
    assert rows == records, (rows, records)
    gigabytes = records * record_size / 1e9
    return {
        "seconds": seconds,
        "records_per_s": records / seconds,
        "mb_per_s": gigabytes * 1000 / seconds,
        "server_cpu_s_per_gb": usage.cpu_s() / gigabytes,
        "server_resident_mb": usage.resident_mb(),
    }


def session_config() -> Mapping[str, str]:
    jars = ",".join(str(path) for path in resolve_spark_source_jars())
    return {"spark.driver.memory": "2g", "spark.jars": jars}


def main() -> None:
    parser = argparse.ArgumentParser(description=TEXT)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(Question("spark_beside_kafka", TEXT, lambda scale: ()), rounds)
    document["versions"]["pyspark"] = pyspark.__version__
    spark = isotherm.spark.session("isotherm-bench", config=session_config())
    spark.sparkContext.setLogLevel("ERROR")
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory,
        running(["kafka"], Path(directory)) as servers,
    ):
        kafka = servers[0]
        assert isinstance(kafka, KafkaServer)
        document["results"] = [
            measure(spark, kafka, (size, codec, total // (10 if options.quick else 1)), rounds)
            for size, codec, total in POINTS
        ]
    spark.stop()
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    if not options.quick:
        RESULTS_DIRECTORY.mkdir(exist_ok=True)
        (RESULTS_DIRECTORY / "spark_beside_kafka.json").write_text(text)


if __name__ == "__main__":
    main()
