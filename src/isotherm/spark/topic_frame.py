"""`isotherm.spark.topic(spark, name, options)`: a topic's table and what it lacks, as one DataFrame.

The rows come from the table's Parquet files as far as the table goes. The snapshot that names these
files has the offsets after them too: from there on the bucket is read, and then the brokers. So each
record is there once, also while another run appends to the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from isotherm.errors import ConfigError
from isotherm.spark.option_parsing import option_texts
from isotherm.spark.requirements import check_requirements

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from isotherm.spark.options import SourceOptions
    from isotherm.spark.source_task import TaskPartition
    from isotherm.spark.tables.value_types import ValueType

# Hadoop's name for what Iceberg calls s3.
_SPARK_SCHEMES = {"s3": "s3a"}


def topic(
    spark: SparkSession,
    name: str,
    options: Mapping[str, object],
    *,
    to: str = "iceberg",
    warehouse: str = "isotherm-warehouse",
    table: str | None = None,
    catalog: str | None = None,
    table_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """All records of a topic that `isotherm pipeline table` has made a table, up to now, with the
    table's columns.

    `options` are those of `spark.read.format("isotherm")`: with a bootstrap server the last records
    of the brokers are there too, without one the rows end where the bucket does. The others are
    those of the command. What the rows are is settled by this call: later records and commits are
    not in them. A record whose value cannot be decoded is in none, as in the table. Fields that no
    run has met yet become columns by the next one.

    Raises ConfigError without such a table, or if others have changed it so that its files are not
    its rows.
    """
    check_requirements()
    from isotherm.spark.driver.topic_plan import plan_topic
    from isotherm.spark.jobs.slice_fold import spark_schema
    from isotherm.spark.tables.open_table import (
        TablePlace,
        check_chosen,
        open_table,
        table_source_options,
    )
    from isotherm.spark.tables.table_rows import rows_schema
    from isotherm.spark.tables.topic_table import Identity, check_identity

    texts = option_texts(options)
    check_chosen(texts)
    source = table_source_options({**texts, "subscribe": name})
    opened = open_table(
        name, TablePlace(to, warehouse, table, catalog, table_options or {}), writes=False
    )
    found = opened.identity()
    if found is None:
        raise ConfigError(
            f"there is no such table table={opened.name} warehouse={warehouse}"
            f" hint='make it by isotherm pipeline table {name}'"
        )
    plan = plan_topic(source, opened.covered())
    check_identity(found, Identity(name, plan.topic_id, found.value_format), opened.name)
    value_type = opened.value_type()
    files = [_for_spark(each) for each in opened.data_files()]
    schema = spark_schema(rows_schema(value_type))
    later = _later_rows(spark, source, plan.tasks, found.value_format, value_type)
    return spark.read.schema(schema).parquet(*files).unionByName(later) if files else later


def _for_spark(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{_SPARK_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def _later_rows(
    spark: SparkSession,
    source: SourceOptions,
    tasks: Sequence[TaskPartition],
    value_format: str,
    value_type: ValueType,
) -> DataFrame:
    """The rows of the tasks, as a run without new columns would write them."""
    from isotherm.spark.jobs.slice_fold import each_of
    from isotherm.spark.tables.table_rows import rows_schema

    def run(number: int) -> Iterator[pa.RecordBatch]:
        from isotherm.spark.source_task import read_partition
        from isotherm.spark.tables.table_rows import SOURCE_SCHEMA, decoded_rows, settled_decoder

        decoder = settled_decoder(value_format, value_type)
        for batch in read_partition(source, SOURCE_SCHEMA, tasks[number]):
            yield decoded_rows(batch, decoder).rows

    return each_of(spark, len(tasks), run, rows_schema(value_type))
