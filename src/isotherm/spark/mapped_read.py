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
from collections.abc import Mapping
from typing import TYPE_CHECKING

from isotherm.spark.option_parsing import option_texts, parse_options
from isotherm.spark.requirements import check_requirements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, options: Mapping[str, object]) -> DataFrame:
    """The rows of `spark.read.format("isotherm").options(**options).load()`, in the same tasks.
    Planning happens when a query runs.

    The option `columns` chooses columns. Raises ConfigError for unknown or contradictory options.
    Errors of the tier or the brokers are raised when the query runs.
    """
    check_requirements()
    from isotherm.spark.row_schema import chosen_schema
    from isotherm.spark.tasks_source import IsothermTasks, rows_of_tasks

    texts = option_texts(options)
    parsed = parse_options(texts)
    schema = chosen_schema(parsed.columns, include_headers=parsed.include_headers)
    spark.dataSource.register(IsothermTasks)
    tasks = spark.read.format(IsothermTasks.name()).options(**texts).load()
    return tasks.mapInArrow(functools.partial(rows_of_tasks, parsed, schema), schema)
