"""Settings and steps of jobs whose whole input is small.

A job over a few kilobytes of metadata would start more tasks than it has rows: one for each of 50
metadata partitions, and as many again for each query. In a small session

- numbered tasks (numbered_tasks.py) and functions over batches run in the driver, so that no Python
  worker starts,
- a frame has one partition, and its queries have one task without a shuffle,
- what is used twice is kept in the driver,
- Spark interprets its plans: to compile a plan takes longer than to run it over such rows.

The functions and queries are those of a large input. The command decides by the size of the input,
before it starts Spark. The setting `spark.isotherm.smallInput=false` has it plan as for a large
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from isotherm.spark.table_frame import table_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_INPUT_BYTES_MAX = 4 * 1024 * 1024
"""The most bytes of metadata that a job reads in the driver: some 25,000 events, which one process
reads in less time than Spark needs to start a Python worker."""
SMALL_LOG_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of segments and of brokers' records that a job reads in the driver. A task has
four times as many by default (`targetBytesPerTask`)."""
SMALL_INPUT_ROWS_MAX = 10_000
"""The most rows, such as listed objects, that a job has in the driver."""

IS_SMALL = "spark.isotherm.smallInput"
_SETTINGS = {
    IS_SMALL: "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Each broadcast or shuffle would be a Spark job of its own.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

SHORT_JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Java options for a JVM that lives for seconds. In so short a life the optimizing compiler and
parallel garbage collection cost more than they save. Nor does it verify the bytecode of the 14,000
classes that it loads, which are Spark's own and run in any case."""

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def small_session(spark: SparkSession, given: Mapping[str, str] | None = None) -> SparkSession:
    """A session of the same application for a job whose input is small. `given` has the user's
    settings, which stay as they are."""
    own = given or {}
    small = spark.newSession()
    # The settings of a running session are not those of its application.
    time_zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    small.conf.set("spark.sql.session.timeZone", time_zone)
    for name, value in {**_SETTINGS, **own}.items():
        if name in own and not small.conf.isModifiable(name):
            continue
        small.conf.set(name, value)
    return small


def is_small(spark: SparkSession) -> bool:
    return spark.conf.get(IS_SMALL, "false") == "true"


def local_frame(
    spark: SparkSession, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> DataFrame:
    """The batches as a frame of one partition, which the driver holds."""
    made = list(batches)
    table = pa.Table.from_batches(made).cast(schema) if made else schema.empty_table()
    return table_frame(spark, table).coalesce(1)


def map_batches(
    frame: DataFrame, function: BatchFunction, schema: pa.Schema, *, tasks: int | None = None
) -> DataFrame:
    """`frame.mapInArrow`, after a repartition if `tasks` are given. In a small session the function
    runs now, in the driver."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if is_small(frame.sparkSession):
        batches = function(iter(frame.toArrow().to_batches()))
        return local_frame(frame.sparkSession, batches, schema)
    spread = frame if tasks is None else frame.repartition(tasks)
    return spread.mapInArrow(function, from_arrow_schema(schema))


def map_groups(
    frame: DataFrame,
    keys: tuple[str, ...],
    function: Callable[[pa.Table], pa.Table],
    schema: pa.Schema,
) -> DataFrame:
    """`frame.groupBy(*keys).applyInArrow`. In a small session the function runs now, in the
    driver, for one group after the other."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if not is_small(frame.sparkSession):
        return frame.groupBy(*keys).applyInArrow(function, from_arrow_schema(schema))
    rows: dict[tuple[object, ...], list[int]] = {}
    table = frame.toArrow()
    for index, key in enumerate(zip(*(table[name].to_pylist() for name in keys), strict=True)):
        rows.setdefault(key, []).append(index)
    made = [function(table.take(indexes)).cast(schema) for indexes in rows.values()]
    batches = [batch for table in made for batch in table.to_batches()]
    return local_frame(frame.sparkSession, batches, schema)


def kept(frame: DataFrame) -> DataFrame:
    """`frame.persist()`, for a frame that is used more than once. In a small session it is computed
    now, and the driver has its rows."""
    if not is_small(frame.sparkSession):
        return frame.persist()
    from pyspark.sql.pandas.types import to_arrow_schema

    table = frame.toArrow()
    schema = to_arrow_schema(frame.schema)
    return local_frame(frame.sparkSession, table.cast(schema).to_batches(), schema)
