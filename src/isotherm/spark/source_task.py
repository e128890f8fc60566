"""Pickles and runs a task of the data source.

Clients of a tier are opened in the process that uses them, and kept until it ends. Modules that
load Arrow, Numba or librdkafka are imported in the functions that need them: source.py gives the
reason.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from isotherm.clock import SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import SourceOptions
from isotherm.spark.rows import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.remote.storage.api import RemoteStorageManager
    from isotherm.spark.plan.planning import BrokerRead, Read, ReadTask, SegmentRead
    from isotherm.spark.reading.task_codec import PlainRead
    from isotherm.spark.reading.task_reading import TierStorage
    from isotherm.spark.reading.users_storage import UsersStorage

# The number of tiers with open clients in one Python worker.
_OPEN_TIERS_MAX = 8


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task. `layout` is that of the options, or the one that the driver detected, so that tasks
    need not list the bucket."""

    task: ReadTask
    layout: str

    def __reduce__(self) -> tuple[object, ...]:
        from isotherm.spark.reading.task_codec import encode_task

        return _decode_partition, (encode_task(self.task), self.layout)


def _decode_partition(reads: list[PlainRead], layout: str) -> TaskPartition:
    from isotherm.spark.reading.task_codec import decode_task

    return TaskPartition(decode_task(reads), layout)


def read_partition(
    options: SourceOptions, spark_schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in an executor."""
    # If the query plans no partition, Spark adds one of its own.
    if not isinstance(partition, TaskPartition):
        return iter(())
    return _read_task(options, spark_schema, partition)


def _read_task(
    options: SourceOptions, spark_schema: StructType, partition: TaskPartition
) -> Iterator[pa.RecordBatch]:
    from isotherm.spark.driver.tiered_log import cause_when_gone
    from isotherm.spark.driver.tiers import read_settings
    from isotherm.spark.reading.readers import ReadSettings
    from isotherm.spark.reading.task_reading import WhenMissing, read_task

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
        when_missing=WhenMissing(
            read_again=functools.partial(_read_again, options, settings),
            read_elsewhere=functools.partial(_read_elsewhere, options, settings),
            fail_on_data_loss=options.fail_on_data_loss,
            cause_when_gone=cause_when_gone(options),
        ),
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
    """The storage manager of this process for a tier. It is opened once, and again in a forked
    child, which cannot use its parent's connections. Raises ConfigError if the class in `options`
    cannot be used here."""
    return open_users_storage(options) if settings is None else _open_storage(os.getpid(), settings)


def open_users_storage(options: SourceOptions) -> UsersStorage:
    """As `open_storage`, for options that name a user's RemoteStorageManager."""
    assert options.storage_manager is not None
    config = tuple(sorted(options.storage_manager_settings.items()))
    return _open_users_storage(os.getpid(), options.storage_manager, config)


def storage_of_job(store: ObjectStoreSettings | SourceOptions) -> RemoteStorageManager:
    """The storage manager through which a job reads segments: that of a bucket in a built-in
    layout, or the user's that the options name."""
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    if isinstance(store, SourceOptions):
        return open_users_storage(store)
    opened = open_object_store(store, create_folder=False)
    return ObjectStoreRemoteStorageManager(store, store=opened)


# The process id is part of the key, so that a forked child does not find its parent's client.
@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_storage(_process_id: int, settings: ObjectStoreSettings) -> TierStorage:
    from isotherm.remote.storage.object_client import open_object_store
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

    store = open_object_store(settings, create_folder=False)
    return ObjectStoreRemoteStorageManager(settings, store=store)


@functools.lru_cache(maxsize=_OPEN_TIERS_MAX)
def _open_users_storage(
    _process_id: int, class_name: str, config: tuple[tuple[str, str], ...]
) -> UsersStorage:
    from isotherm.remote.storage.checked import load_storage_manager
    from isotherm.spark.reading.users_storage import UsersStorage

    return UsersStorage(load_storage_manager(class_name, dict(config)), SystemClock())


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn garbage collection off. Planning makes millions of live objects and no cycles, and the
    collector would scan them again and again, for a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def freeze_imports() -> None:
    """Exclude the loaded modules from garbage collection, once per worker process.

    Spark's daemon collects garbage after every task and every planning, and a scan of the modules
    costs more than a small task. Call it after the first task, when all modules are loaded, Numba's
    included.
    """
    gc.collect()
    gc.freeze()
