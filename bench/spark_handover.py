"""What does it cost to pass rows from Python to Spark, when making them costs nothing?

Run: python -m bench.spark_handover [--quick]

The lower bound of every source in Python: each of four tasks returns the same Arrow batch
repeatedly, with the columns of a read of a topic.

    source      as a Python data source
    mapped      as the output of mapInArrow, the way of isotherm.spark.read

bench/spark_queries.py describes the queries and the figures. Prints JSON, and keeps it in
bench/results/ unless --quick.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import isotherm.spark
from bench.harness import Question, describe, keep
from bench.spark_queries import COUNT, QUERIES, Side, ask_in_turn
from isotherm.spark.row_schema import arrow_schema, full_schema, schema_of

ROUNDS = 3
TASKS = 4
BATCH_BYTES = 2 * 1024 * 1024
KEY = b"key-000000"
# value size, rows
POINTS = ((100, 16_000_000), (1024, 4_000_000))
TEXT = "What does it cost to pass rows from Python to Spark, when making them costs nothing?"


def one_batch(schema: StructType, value_size: int) -> pa.RecordBatch:
    count = BATCH_BYTES // (value_size + len(KEY))
    arrow = arrow_schema(schema)
    made = {
        "key": [KEY] * count,
        "value": [bytes(value_size)] * count,
        "topic": ["history"] * count,
        "partition": np.zeros(count, np.int32),
        "offset": np.arange(count),
        "timestamp": np.arange(count),
        "timestampType": np.zeros(count, np.int32),
    }
    arrays = [pa.array(made[field.name]).cast(field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def batches_of_a_task(schema: StructType, value_size: int, rows: int) -> Iterator[pa.RecordBatch]:
    batch = one_batch(schema, value_size)
    left = rows // TASKS
    while left > 0:
        yield batch.slice(0, min(left, batch.num_rows))
        left -= batch.num_rows


class EmptyWork(DataSource):
    """A source of equal batches. Options: `value_size`, `rows`."""

    @classmethod
    def name(cls) -> str:
        return "isotherm-empty-work"

    def schema(self) -> StructType:
        return full_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema, int(self.options["value_size"]), int(self.options["rows"]))


class _Reader(DataSourceReader):
    def __init__(self, *made: object) -> None:
        self._made = made

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches_of_a_task(*self._made)  # type: ignore[arg-type]


def mapped(
    schema: StructType, value_size: int, rows: int, tasks: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in tasks:
        for _ in range(batch.num_rows):
            yield from batches_of_a_task(schema, value_size, rows)


def sides_of(spark: SparkSession, value_size: int, rows: int) -> dict[str, Side]:
    def schema(columns: Sequence[str] | None) -> StructType:
        return full_schema(include_headers=False) if columns is None else schema_of(columns)

    reader = spark.read.format(EmptyWork.name()).options(value_size=value_size, rows=rows)
    tasks = spark.range(0, TASKS, 1, TASKS)
    return {
        "source": lambda columns: reader.schema(schema(columns)).load(),
        "mapped": lambda columns: tasks.mapInArrow(
            functools.partial(mapped, schema(columns), value_size, rows), schema(columns)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=TEXT)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(Question("spark_handover", TEXT, lambda scale: ()), rounds)
    document["versions"]["pyspark"] = pyspark.__version__
    spark = isotherm.spark.session("isotherm-bench", config={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(EmptyWork)
    document["results"] = []
    for value_size, total in POINTS:
        rows = total // (10 if options.quick else 1)
        size = rows * (value_size + len(KEY))
        document["results"].append(
            {
                "case": f"{value_size} B",
                "parameters": {"value_size": value_size, "records": rows, "tasks": TASKS},
                "bytes": size,
                "queries": ask_in_turn(
                    sides_of(spark, value_size, rows),
                    [query for query in QUERIES if query != COUNT],
                    records=rows,
                    size=size,
                    rounds=rounds,
                ),
            }
        )
    spark.stop()
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
