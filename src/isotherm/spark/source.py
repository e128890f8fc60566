"""`spark.read.format("isotherm")`: the data source that Spark calls.

Spark pickles the reader and each partition for the executors, so their attributes are plain values.
Clients are opened in the process that uses them, and kept until it ends. Modules that load Arrow,
Numba or librdkafka are imported in the methods that need them, because Spark imports this module in
every session that uses any Python data source.

`pushFilters` is not implemented on purpose: Spark 4.3 stores pushed filters on the shared relation
and returns wrong rows if a DataFrame is used twice. Queries prune by offsets, times and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from isotherm.spark.option_parsing import (
    parse_common_options,
    parse_options,
    parse_stream_options,
)
from isotherm.spark.options import SourceOptions
from isotherm.spark.requirements import check_streams
from isotherm.spark.row_schema import check_schema, chosen_schema
from isotherm.spark.source_task import TaskPartition, freeze_imports, read_partition, uncollected

if TYPE_CHECKING:
    import pyarrow as pa


class IsothermDataSource(DataSource):
    """Reads Kafka topics from tiered storage, and their tail from the brokers."""

    @classmethod
    def name(cls) -> str:
        return "isotherm"

    def schema(self) -> StructType:
        options = parse_common_options(self.options)
        chosen = chosen_schema(options.columns, include_headers=options.include_headers)
        freeze_imports()
        return chosen

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        check_schema(schema)
        return IsothermReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_streams()
        from isotherm.spark.streaming.stream_source import IsothermStreamReader

        options = parse_stream_options(self.options)
        check_schema(schema)
        return IsothermStreamReader(options, schema)


def planned_tasks(options: SourceOptions) -> list[TaskPartition]:
    """The tasks of a query. Raises as `BatchQuery.plan`."""
    from isotherm.spark.driver.batch_query import BatchQuery
    from isotherm.spark.tier.open_log import open_brokers, open_tiered_log
    from isotherm.spark.tier.tier_settings import read_settings

    settings = read_settings(options)
    layout = "" if settings is None else settings.layout
    brokers = open_brokers(options)
    with (
        uncollected(),
        open_tiered_log(options, settings, brokers, by_name=options.plans_by_name) as log,
    ):
        return [TaskPartition(task, layout) for task in BatchQuery(options, log).plan()]


class IsothermReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks, as a list: Spark accepts no other sequence."""
        tasks: list[InputPartition] = [*planned_tasks(self._options)]
        freeze_imports()
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, partition)
