"""`isotherm.spark.read(spark, options)`: the rows of `format("isotherm")` at less cost per row.

Spark 4.3 counts the rows of a Python data source one by one and sums up its metrics after every
hundred; that is a third of what the JVM spends on a row. The output of `mapInArrow` goes the same
way without it. So the tasks themselves are the rows of a small data source, one in each of its
partitions, and mapping a task gives its rows. Planning, reading and errors are those of the source.

What needs PySpark is imported where it is used: without it, a session says what to install.
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
    """What `spark.read.format("isotherm").options(**options).load()` gives: the same rows in the
    same tasks, planned when a query runs.

    Choose columns by the option `columns`. Raises ConfigError for options that contradict or do
    not exist; what the tier or the brokers answer is raised by Spark when the query runs.
    """
    check_requirements()
    from isotherm.spark.rows import chosen_schema
    from isotherm.spark.tasks_source import IsothermTasks, rows_of_tasks

    texts = option_texts(options)
    parsed = parse_options(texts)
    schema = chosen_schema(parsed.columns, include_headers=parsed.include_headers)
    spark.dataSource.register(IsothermTasks)
    tasks = spark.read.format(IsothermTasks.name()).options(**texts).load()
    return tasks.mapInArrow(functools.partial(rows_of_tasks, parsed, schema), schema)
