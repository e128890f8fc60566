"""`isotherm.spark.read(spark, options)`: the rows of `format("isotherm")`, at less cost per row.

Spark 4.3 counts the rows of a Python data source one by one and updates its metrics after every
hundred rows, which takes a third of the JVM's time per row. The output of `mapInArrow` has no such
counter. So a second data source has the tasks as its rows, one in each partition, and `mapInArrow`
turns a task into the topic's rows. Planning, reading and errors are those of the first source.

PySpark is imported inside functions, so that without it `session()` can name the package to
install.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from isotherm.spark.option_parsing import option_texts, parse_options
from isotherm.spark.requirements import check_requirements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from isotherm.spark.small_input import BatchFunction


def read(spark: SparkSession, options: Mapping[str, object]) -> DataFrame:
    """The rows of `spark.read.format("isotherm").options(**options).load()`, in the same tasks.
    Planning happens when a query runs.

    The option `columns` chooses columns. Raises ConfigError for unknown or contradictory options.
    Errors of the tier or the brokers are raised when the query runs.
    """
    check_requirements()
    mapped = mapped_rows(spark, options)
    return mapped.tasks.mapInArrow(mapped.rows_of, mapped.schema)


class MappedRows(NamedTuple):
    """The tasks of a read as a frame, and the function of `mapInArrow` that turns them into rows of
    the schema."""

    tasks: DataFrame
    rows_of: BatchFunction
    schema: StructType


def mapped_rows(spark: SparkSession, options: Mapping[str, object]) -> MappedRows:
    """The parts of `read`."""
    from isotherm.spark.row_schema import chosen_schema
    from isotherm.spark.tasks_source import IsothermTasks, rows_of_tasks

    texts = option_texts(options)
    parsed = parse_options(texts)
    schema = chosen_schema(parsed.columns, include_headers=parsed.include_headers)
    spark.dataSource.register(IsothermTasks)
    tasks = spark.read.format(IsothermTasks.name()).options(**texts).load()
    return MappedRows(tasks, functools.partial(rows_of_tasks, parsed, schema), schema)


def planned_rows(spark: SparkSession, options: Mapping[str, object]) -> MappedRows:
    """Same as `mapped_rows`, planned now and in this process, for a job: Spark starts no Python
    workers that plan. A job's own function may take the rows in the same worker: they do not pass
    through the JVM then. Their column `timestamp` has milliseconds, as some are too many for
    Spark's type."""
    from pyspark.sql.types import LongType, StructField, StructType

    from isotherm.spark.row_schema import chosen_schema
    from isotherm.spark.source import planned_tasks
    from isotherm.spark.tasks_source import rows_of_numbers

    parsed = parse_options(option_texts(options))
    chosen = chosen_schema(parsed.columns, include_headers=parsed.include_headers)
    schema = StructType(
        [
            StructField(field.name, LongType() if field.name == "timestamp" else field.dataType)
            for field in chosen.fields
        ]
    )
    tasks = [pickle.dumps(task) for task in planned_tasks(parsed)]
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    return MappedRows(numbers, functools.partial(rows_of_numbers, parsed, schema, tasks), schema)
