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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from isotherm.clock import SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.option_parsing import (
    parse_common_options,
    parse_options,
    parse_stream_options,
)
from isotherm.spark.options import SourceOptions
from isotherm.spark.requirements import check_streams
from isotherm.spark.rows import arrow_schema, check_schema, chosen_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.spark.plan.planning import BrokerRead, Read, ReadTask, SegmentRead
    from isotherm.spark.reading.task_codec import PlainRead
    from isotherm.spark.reading.task_reading import TierStorage

# Tiers that one Python worker keeps clients for.
_OPEN_TIERS_MAX = 8


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


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task; `layout` is what was detected on the driver, when it was not named."""

    task: ReadTask
    layout: str

    def __reduce__(self) -> tuple[object, ...]:
        from isotherm.spark.reading.task_codec import encode_task

        return _decode_partition, (encode_task(self.task), self.layout)


def _decode_partition(reads: list[PlainRead], layout: str) -> TaskPartition:
    from isotherm.spark.reading.task_codec import decode_task

    return TaskPartition(decode_task(reads), layout)


class IsothermReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks, as one list: Spark takes no other sequence."""
        from isotherm.spark.driver.batch_query import BatchQuery
        from isotherm.spark.driver.tiered_log import TieredLog
        from isotherm.spark.driver.tiers import open_brokers, open_segment_source, read_settings

        options = self._options
        settings = read_settings(options)
        layout = "" if settings is None else settings.layout
        with (
            uncollected(),
            open_segment_source(options, settings, by_name=options.plans_by_name) as segments,
        ):
            log = TieredLog(
                options, open_storage(options, settings), segments, open_brokers(options)
            )
            planned = BatchQuery(options, log).plan()
            tasks: list[InputPartition] = [TaskPartition(t, layout) for t in planned]
        freeze_imports()
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, partition)


def read_partition(
    options: SourceOptions, spark_schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in an executor."""
    # Spark makes up a partition of its own when there is none to read.
    if not isinstance(partition, TaskPartition):
        return iter(())
    return _read_task(options, spark_schema, partition)


def _read_task(
    options: SourceOptions, spark_schema: StructType, partition: TaskPartition
) -> Iterator[pa.RecordBatch]:
    from isotherm.spark.driver.tiered_log import cause_when_gone
    from isotherm.spark.driver.tiers import read_settings
    from isotherm.spark.reading.readers import ReadSettings
    from isotherm.spark.reading.task_reading import read_task

    schema = arrow_schema(spark_schema)
    settings = read_settings(options, partition.layout)
    yield from read_task(
        partition.task,
        open_storage(options, settings),
        schema,
        settings=ReadSettings(
            options.fetch_bytes,
            options.fetch_ahead,
            options.batch_bytes,
            options.gaps,
        ),
        read_tail=functools.partial(_read_tail, options, schema),
        read_again=functools.partial(_read_again, options, settings),
        read_elsewhere=functools.partial(_read_elsewhere, options, settings),
        fail_on_data_loss=options.fail_on_data_loss,
        cause_when_gone=cause_when_gone(options),
    )
    freeze_imports()


def _read_again(
    options: SourceOptions, settings: ObjectStoreSettings | None, read: SegmentRead
) -> Sequence[Read] | None:
    from isotherm.spark.driver.tiered_log import TieredLog
    from isotherm.spark.driver.tiers import open_segment_source

    with open_segment_source(options, settings) as segments:
        return TieredLog(options, open_storage(options, settings), segments, None).read_again(read)


def _read_elsewhere(
    options: SourceOptions, settings: ObjectStoreSettings | None, read: SegmentRead
) -> Sequence[Read] | None:
    from isotherm.spark.driver.tiered_log import TieredLog
    from isotherm.spark.driver.tiers import open_segment_source

    with open_segment_source(options, settings) as segments:
        return TieredLog(options, open_storage(options, settings), segments, None).read_elsewhere(
            read
        )


def _read_tail(
    options: SourceOptions, schema: pa.Schema, read: BrokerRead
) -> Iterator[pa.RecordBatch]:
    from isotherm.spark.reading.tail import consumer_properties, read_tail

    return read_tail(
        read,
        consumer_properties(options.kafka_properties, options.group_id_prefix, options.isolation),
        schema,
        clock=SystemClock(),
        batch_bytes=options.batch_bytes,
        poll_timeout_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def open_storage(options: SourceOptions, settings: ObjectStoreSettings | None) -> TierStorage:
    """This process's manager of a tier: opened once, and anew after a fork. ConfigError when the
    class of `options` cannot be used here."""
    if settings is not None:
        return _open_storage(os.getpid(), settings)
    assert options.storage_manager is not None
    config = tuple(sorted(options.storage_manager_settings.items()))
    return _open_users_storage(os.getpid(), options.storage_manager, config)


@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_storage(_process_id: int, settings: ObjectStoreSettings) -> TierStorage:
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    store = open_object_store(settings, create_folder=False)
    return ObjectStoreRemoteStorageManager(settings, store=store)


@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_users_storage(
    _process_id: int, class_name: str, config: tuple[tuple[str, str], ...]
) -> TierStorage:
    from isotherm.remote.storage.checked import load_storage_manager
    from isotherm.spark.reading.users_storage import UsersStorage

    return UsersStorage(load_storage_manager(class_name, dict(config)), SystemClock())


@contextmanager
def uncollected() -> Iterator[None]:
    """Plan without garbage collections: planning makes millions of objects that it keeps, and no
    cycles, so that looking through them again and again takes a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def freeze_imports() -> None:
    """Take the loaded modules out of garbage collection, once per worker process.

    Spark's daemon collects after every task and every planning, and walking them costs more than a
    small task. Called after the first: only then is all loaded that is needed, Numba above all.
    """
    gc.collect()
    gc.freeze()
