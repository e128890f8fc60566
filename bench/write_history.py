"""What does a row cost that Spark writes into a bucket, beside one that it sends to a broker?

Run: python -m bench.write_history [--rows 1000000] [--rounds 1] [--quick]

The same Parquet rows, of 100 bytes and of 1 KiB, go into new topics of one broker: once by
`isotherm.spark.write_history`, until consumers can read them, and once by
`write.format("kafka")`, which is Spark's own sink. CPU-seconds are those of the whole: Spark's JVM,
its workers and the broker, which is in this process. Rows of a round are written in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from bench.compact import measured
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.jars import resolve_spark_source_jars

PARTITIONS = 4
SIZES = {100: 1.0, 1024: 0.2}
"""Bytes of a value, and the share of the rows that its case has."""
CODECS = ("none", "zstd")
START_MS = 1_700_000_000_000
SETTINGS = {"rlmm.config.remote.log.rewrite.check.interval.ms": "100"}


def make_rows(path: Path, count: int, size: int) -> None:
    """Values of digits, half of which repeat."""
    rng = np.random.default_rng(0)
    step = 100_000
    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "timestamp": pa.timestamp("ms")})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, step):
            rows = min(step, count - start)
            digits = rng.integers(48, 58, (rows, size), dtype=np.uint8)
            digits[:, size // 2 :] = 48
            values = [row.tobytes() for row in digits]
            keys = [b"key-%d" % number for number in rng.integers(0, count // 10, rows)]
            times = np.arange(start, start + rows) + START_MS
            columns = [pa.array(keys), pa.array(values), pa.array(times).cast(schema.field(2).type)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def write(frame: DataFrame, broker: EmbeddedBroker, topic: str, codec: str, *, loads: bool) -> None:
    if loads:
        options = {
            "path": str(broker.directory / "bucket"),
            "kafka.bootstrap.servers": broker.bootstrap_servers,
        }
        isotherm.spark.write_history(frame, topic, options, compression=codec)
        return
    sink = frame.drop("timestamp").write.format("kafka").option("topic", topic)
    sink = sink.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    sink.option("kafka.compression.type", codec).save()


def run(
    spark: SparkSession, broker: EmbeddedBroker, path: Path, codec: str, *, loads: bool
) -> dict[str, float]:
    rows = pq.ParquetFile(path).metadata.num_rows
    topic = f"t{time.monotonic_ns()}"
    config = {"remote.storage.enable": "true", "retention.ms": "-1"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, config=config)])[topic].result()
    with measured() as usage:
        started = time.perf_counter()
        write(spark.read.parquet(str(path)), broker, topic, codec, loads=loads)
        seconds = time.perf_counter() - started
    admin.delete_topics([topic])[topic].result()
    return {
        "rows_per_cpu_s": rows / usage.cpu_s,
        "rows_per_s": rows / seconds,
        "worker_mb": usage.worker_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 100 bytes; 1 KiB: a fifth")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="an eighth of the rows, one round")
    arguments = parser.parse_args()
    rows = arguments.rows // (8 if arguments.quick else 1)
    rounds = 1 if arguments.quick else arguments.rounds
    jars = ",".join(str(path) for path in resolve_spark_source_jars())
    spark = isotherm.spark.session("isotherm-bench", master="local[2]", config={"spark.jars": jars})
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder,
        EmbeddedBroker(Path(folder) / "broker", SETTINGS) as broker,
    ):
        for size, share in SIZES.items():
            path = Path(folder) / f"{size}.parquet"
            count = int(rows * share)
            make_rows(path, count, size)
            # Warm: the first run compiles on both sides.
            small = Path(folder) / "small.parquet"
            make_rows(small, min(count, 20_000), size)
            for loads in (True, False):
                run(spark, broker, small, "none", loads=loads)
            for codec in CODECS:
                runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
                for _ in range(rounds):
                    for loads, figures in runs.items():
                        figures.append(run(spark, broker, path, codec, loads=loads))
                show(size, codec, count, runs)
    spark.stop()


def show(size: int, codec: str, count: int, runs: dict[bool, list[dict[str, float]]]) -> None:
    def middle(loads: bool, name: str) -> float:
        return statistics.median(measured[name] for measured in runs[loads])

    load, sink = middle(True, "rows_per_cpu_s"), middle(False, "rows_per_cpu_s")
    print(
        f"{size:5} B {codec:5} {count:9} rows   load {load:10.0f} rows/CPU-s"
        f" {middle(True, 'rows_per_s'):9.0f} rows/s   sink {sink:9.0f} rows/CPU-s"
        f" {middle(False, 'rows_per_s'):9.0f} rows/s   ratio {load / sink:5.2f}"
        f"   worker {middle(True, 'worker_mb'):5.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
