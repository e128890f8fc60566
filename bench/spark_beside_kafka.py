"""How fast does Spark read a cold topic: through a broker, or straight from the bucket?

Run: python -m bench.spark_beside_kafka [--quick] [--rounds N] [--share S] [--case "1024 B none"]

An Apache Kafka broker with tiered storage (LocalTieredStorage, a local folder in the page cache)
holds a topic with its closed segments in the remote tier alone. Spark reads the same topic on the
same cores, in turn (A B C D A B C D ...) after a round that warms up:

    kafka       format("kafka"): through the broker, which reads the remote tier
    isotherm    format("isotherm"): the same bucket and metadata topic; only the tail by the broker
    read        isotherm.spark.read: the same rows through mapInArrow
    parquet     the same rows, written by Spark with the same codec

bench/spark_queries.py describes the queries and the figures. The broker's CPU-seconds are those of
its process. With --case the other cases keep their stored figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from bench import load
from bench.harness import RESULTS_DIRECTORY, Question, describe, keep
from bench.servers import KafkaServer, ServerUsage, running
from bench.spark_queries import QUERIES, Side, ask_in_turn
from bench.topics import create_filled
from oracle.jars import resolve_spark_source_jars
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

ROUNDS = 3
SEGMENT_BYTES = 16 * 1024 * 1024
# record size, compression, bytes
POINTS = (
    (1024, "none", 1_000_000_000),
    (1024, "lz4", 1_000_000_000),
    (1024, "zstd", 1_000_000_000),
    (100, "none", 400_000_000),
    (100, "lz4", 400_000_000),
)
TEXT = "How fast does Spark read a cold topic: through a broker, or straight from the bucket?"
RESULT = RESULTS_DIRECTORY / "spark_beside_kafka.json"


def measure(
    spark: SparkSession,
    kafka: KafkaServer,
    point: tuple[int, str, int],
    rounds: int,
    parquet: Path,
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
    broker = ServerUsage(kafka)
    return {
        "case": case_name(point),
        "parameters": {
            "record_size": record_size,
            "compression": compression,
            "records": records,
            "segment_bytes": SEGMENT_BYTES,
        },
        "bytes": records * record_size,
        "queries": ask_in_turn(
            sides_of(spark, kafka, topic, parquet, compression),
            list(QUERIES),
            records=records,
            size=records * record_size,
            rounds=rounds,
            broker_cpu_s=broker.cpu_s,
        ),
    }


def case_name(point: tuple[int, str, int]) -> str:
    return f"{point[0]} B {point[1]}"


def sides_of(
    spark: SparkSession, kafka: KafkaServer, topic: str, parquet: Path, compression: str
) -> dict[str, Side]:
    # Both split the topic alike; the Kafka source would read one partition with one task.
    common = {
        "kafka.bootstrap.servers": kafka.bootstrap_server,
        "subscribe": topic,
        "minPartitions": "4",
    }
    # LocalTieredStorage keeps its layout's own folder below the one it is given.
    ours = {**common, "path": kafka.tiered_root.parent.absolute().as_uri()}

    def chosen(columns: Sequence[str] | None) -> dict[str, str]:
        return ours if columns is None else {**ours, "columns": ",".join(columns)}

    def selected(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
        return frame if columns is None else frame.select(*columns)

    through_kafka = spark.read.format("kafka").options(**common)
    isotherm.spark.read(spark, ours).write.option("compression", compression).parquet(str(parquet))
    return {
        "kafka": lambda columns: selected(through_kafka.load(), columns),
        "isotherm": lambda columns: spark.read.format("isotherm").options(**chosen(columns)).load(),
        "read": lambda columns: isotherm.spark.read(spark, chosen(columns)),
        "parquet": lambda columns: selected(spark.read.parquet(str(parquet)), columns),
    }


def session_config() -> Mapping[str, str]:
    jars = ",".join(str(path) for path in resolve_spark_source_jars())
    return {"spark.driver.memory": "2g", "spark.jars": jars}


def main() -> None:
    parser = argparse.ArgumentParser(description=TEXT)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--share", type=float, default=1.0, help="of the data, default 1")
    parser.add_argument("--case", choices=[case_name(point) for point in POINTS])
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(Question("spark_beside_kafka", TEXT, lambda scale: ()), rounds)
    document["versions"]["pyspark"] = pyspark.__version__
    measured = {}
    spark = isotherm.spark.session("isotherm-bench", config=session_config())
    spark.sparkContext.setLogLevel("ERROR")
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory,
        running(["kafka"], Path(directory)) as servers,
    ):
        kafka = servers[0]
        assert isinstance(kafka, KafkaServer)
        for number, (size, codec, total) in enumerate(POINTS):
            point = (size, codec, int(total * (0.1 if options.quick else options.share)))
            if options.case in (None, case_name(point)):
                parquet = Path(directory) / f"parquet-{number}"
                measured[case_name(point)] = measure(spark, kafka, point, rounds, parquet)
    spark.stop()
    with_others = options.case and RESULT.exists()
    kept = json.loads(RESULT.read_text())["results"] if with_others else []
    document["results"] = [
        *(result for result in kept if result["case"] not in measured),
        *measured.values(),
    ]
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
