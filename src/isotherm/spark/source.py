"""`spark.read.format("isotherm")`: the data source as Spark sees it.

Spark pickles the reader and each partition to executors of another process, so they hold plain
values only; clients are opened where they are used and kept for the worker's life. Modules that
load Arrow, Numba or librdkafka are imported in the methods that need them: Spark imports this one
in every session that uses any Python data source.

`pushFilters` is left alone on purpose: Spark 4.3 stores pushed filters on the shared relation and
returns wrong rows when a DataFrame is used twice. Prune with offsets, times and columns.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from isotherm.clock import SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import SourceOptions, parse_options
from isotherm.spark.rows import arrow_schema, check_schema, full_schema, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
    from isotherm.spark.planning import BrokerRead, ReadTask

# Tiers that one Python worker keeps clients for.
_OPEN_TIERS_MAX = 8


class IsothermDataSource(DataSource):
    """Reads Kafka topics from tiered storage, and their tail from the brokers."""

    @classmethod
    def name(cls) -> str:
        return "isotherm"

    def schema(self) -> StructType:
        options = parse_options(self.options)
        if options.columns:
            return schema_of(options.columns)
        return full_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        check_schema(schema)
        return IsothermReader(options, schema)


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task; `layout` is what was detected on the driver, when it was not named."""

    task: ReadTask
    layout: str


class IsothermReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks, as one list: Spark takes no other sequence."""
        from isotherm.spark.batch_query import BatchQuery
        from isotherm.spark.tiers import open_brokers, open_segment_source, tier_settings

        options = self._options
        settings = tier_settings(options)
        with open_segment_source(options, settings) as segments:
            query = BatchQuery(options, open_storage(settings), segments, open_brokers(options))
            return [TaskPartition(task, settings.layout) for task in query.plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes up a partition of its own when there is none to read.
        if not isinstance(partition, TaskPartition):
            return iter(())
        return self._read(partition)

    def _read(self, partition: TaskPartition) -> Iterator[pa.RecordBatch]:
        from isotherm.spark.readers import ReadSettings, read_task
        from isotherm.spark.tiers import tier_settings

        _freeze_imports()
        options = self._options
        schema = arrow_schema(self._schema)
        return read_task(
            partition.task,
            open_storage(tier_settings(options, partition.layout)),
            schema,
            settings=ReadSettings(options.fetch_bytes, options.fetch_ahead, options.batch_bytes),
            read_tail=functools.partial(_read_tail, options, schema),
            fail_on_data_loss=options.fail_on_data_loss,
        )


def _read_tail(
    options: SourceOptions, schema: pa.Schema, read: BrokerRead
) -> Iterator[pa.RecordBatch]:
    from isotherm.spark.tail import consumer_properties, read_tail

    return read_tail(
        read,
        consumer_properties(options.kafka_properties, options.group_id_prefix, options.isolation),
        schema,
        clock=SystemClock(),
        batch_bytes=options.batch_bytes,
        poll_timeout_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def open_storage(settings: ObjectStoreSettings) -> ObjectStoreRemoteStorageManager:
    """This process's manager of a tier: opened once, and anew after a fork."""
    return _open_storage(os.getpid(), settings)


@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_storage(
    _process_id: int, settings: ObjectStoreSettings
) -> ObjectStoreRemoteStorageManager:
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    store = open_object_store(settings, create_folder=False)
    return ObjectStoreRemoteStorageManager(settings, store=store)


@functools.cache
def _freeze_imports() -> None:
    """Take the loaded modules out of garbage collection, once per worker process.

    Spark's daemon collects after every task, and walking them costs more than a small task.
    """
    gc.collect()
    gc.freeze()
