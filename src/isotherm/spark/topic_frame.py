"""`isotherm.spark.topic(spark, name, options)`: a topic's table and its later records as one
DataFrame.

The first rows come from the table's Parquet files. The snapshot that names these files also has the
offsets after them. From there on the bucket is read, and then the brokers. So each record is there
exactly once, even while another run appends to the table.
"""

from __future__ import annotations

import re
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
    from isotherm.spark.tables.value_formats import ValueFormat
    from isotherm.spark.tables.value_types import DecodedTypes, KeyValue

# Hadoop's name for what Iceberg calls s3.
_SPARK_SCHEMES = {"s3": "s3a"}
# Spark reads a path as a glob pattern, so these characters are escaped.
_PATTERN = re.compile(r"[\\{}\[\]*?]")


def topic(
    spark: SparkSession,
    name: str,
    options: Mapping[str, object],
    *,
    to: str = "iceberg",
    warehouse: str | None = None,
    table: str | None = None,
    catalog: str | None = None,
    table_options: Mapping[str, str] | None = None,
    registry: str | None = None,
    registry_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """All current records of a topic for which `isotherm pipeline table` made a table, with the
    table's columns.

    `options` are those of `spark.read.format("isotherm")`. With a bootstrap server the rows include
    the newest records of the brokers; without one they end where the bucket ends. The other
    parameters are those of the command.

    This call fixes the rows: later records and commits are not in them. As in the table, records
    whose key or value cannot be decoded are left out. A field without a column gets one only in the
    next run of the command.

    Raises ConfigError if there is no such table, or if another program has changed it so that its
    files are not its rows.
    """
    check_requirements()
    from isotherm.spark.driver.topic_plan import plan_topic
    from isotherm.spark.numbered_tasks import spark_schema
    from isotherm.spark.tables.open_table import (
        TablePlace,
        check_chosen,
        open_table,
        table_source_options,
    )
    from isotherm.spark.tables.schema_registry import registry_settings
    from isotherm.spark.tables.table_rows import rows_schema
    from isotherm.spark.tables.topic_table import APPEND, check_topic
    from isotherm.spark.tables.value_formats import formats

    texts = option_texts(options)
    check_chosen(texts)
    source = table_source_options({**texts, "subscribe": name})
    opened = open_table(
        name, TablePlace(to, warehouse, table, catalog, table_options or {}), writes=False
    )
    identity = opened.identity()
    if identity is None:
        raise ConfigError(
            f"there is no such table table={opened.name} warehouse={warehouse or catalog or ''}"
            f" hint='make it by isotherm pipeline table {name}'"
        )
    if identity.mode != APPEND:
        raise ConfigError(
            f"the table has the newest values only table={opened.name} mode={identity.mode}"
            " hint='read the table itself, or make another one with --mode append'"
        )
    # `covered` and `data_files` are of one snapshot: a run that commits meanwhile changes neither.
    plan = plan_topic(
        source,
        opened.covered(),
        lambda topic_id: check_topic(identity, name, topic_id, opened.name),
    )
    types = opened.types()
    files = [_for_spark(file) for file in opened.data_files()]
    schema = spark_schema(rows_schema(types))
    registered = registry_settings(registry, registry_options)
    decoded = formats(identity.key_format, identity.value_format, registered)
    later = _later_rows(spark, source, plan.tasks, decoded, types)
    return spark.read.schema(schema).parquet(*files).unionByName(later) if files else later


def _for_spark(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    escaped = _PATTERN.sub(r"\\\g<0>", rest)
    return f"{_SPARK_SCHEMES.get(scheme, scheme)}{separator}{escaped}"


def _later_rows(
    spark: SparkSession,
    source: SourceOptions,
    tasks: Sequence[TaskPartition],
    decoded: KeyValue[ValueFormat],
    types: DecodedTypes,
) -> DataFrame:
    """The rows of the tasks in the form in which a run that adds no columns would write them."""
    from isotherm.spark.numbered_tasks import each_of
    from isotherm.spark.tables.table_rows import rows_schema

    def run(number: int) -> Iterator[pa.RecordBatch]:
        from isotherm.spark.source_task import read_partition
        from isotherm.spark.tables.table_rows import SOURCE_SCHEMA, decoded_rows
        from isotherm.spark.tables.value_formats import settled_decoders

        decoders = settled_decoders(decoded, types)
        for batch in read_partition(source, SOURCE_SCHEMA, tasks[number]):
            yield decoded_rows(batch, decoders).rows

    return each_of(spark, len(tasks), run, rows_schema(types))
