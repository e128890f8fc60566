"""`isotherm.spark.read(spark, options)`: the rows of `format("isotherm")` at less cost per row.

Spark 4.3 counts the rows of a Python data source one by one and sums up its metrics after every
hundred; that is a third of what the JVM spends on a row. The output of `mapInArrow` goes the same
way without it. So the tasks themselves are the rows of a small data source, one in each of its
partitions, and mapping a task gives its rows. Planning, reading and errors are those of the source.

Spark imports this package in every session; what loads Arrow is imported where it is used.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from isotherm.spark.option_parsing import option_texts, parse_options
from isotherm.spark.options import SourceOptions
from isotherm.spark.rows import chosen_schema
from isotherm.spark.source import IsothermReader, read_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TASK_COLUMN = "task"


def read(spark: SparkSession, options: Mapping[str, object]) -> DataFrame:
    """What `spark.read.format("isotherm").options(**options).load()` gives: the same rows in the
    same tasks, planned when a query runs.

    Choose columns by the option `columns`. Raises ConfigError for options that contradict or do
    not exist; what the tier or the brokers answer is raised by Spark when the query runs.
    """
    texts = option_texts(options)
    parsed = parse_options(texts)
    schema = chosen_schema(parsed.columns, include_headers=parsed.include_headers)
    spark.dataSource.register(IsothermTasks)
    tasks = spark.read.format(IsothermTasks.name()).options(**texts).load()
    return tasks.mapInArrow(functools.partial(_rows_of_tasks, parsed, schema), schema)


class IsothermTasks(DataSource):
    """The tasks of a read, each as the one row of its partition: a pickled TaskPartition."""

    @classmethod
    def name(cls) -> str:
        return "isotherm-tasks"

    def schema(self) -> StructType:
        return StructType([StructField(_TASK_COLUMN, BinaryType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TasksReader(parse_options(self.options), schema)


class _TasksReader(IsothermReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:  # type: ignore[override]
        yield (pickle.dumps(partition),)


def _rows_of_tasks(
    options: SourceOptions, schema: StructType, tasks: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in tasks:
        for task in batch.column(0):
            # Pickled by another process of this same query.
            partition = pickle.loads(task.as_buffer())  # noqa: S301
            yield from read_partition(options, schema, partition)
