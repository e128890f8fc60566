"""Work of a job in numbered tasks, which the executors run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from isotherm.spark.small_input import is_small, local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def each_of(
    spark: SparkSession,
    count: int,
    work: Callable[[int], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """The batches of `work(0)` to `work(count - 1)`, each in a task of its own. In a small session
    (small_input.py) all run now, in the driver."""
    if is_small(spark):
        batches = (batch for number in range(count) for batch in work(number))
        return local_frame(spark, batches, schema)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy().tolist():
                yield from work(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, spark_schema(schema))


def spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
