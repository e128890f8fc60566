"""Pickles and runs a task of the data source.

Modules that load Arrow, Numba or librdkafka are imported in the functions that need them: source.py
gives the reason.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from isotherm.clock import SystemClock
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import SourceOptions
from isotherm.spark.row_schema import arrow_schema
from isotherm.spark.tier.storage import open_storage

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.spark.plan.planning import BrokerRead, Read, ReadTask, SegmentRead
    from isotherm.spark.reading.task_codec import PlainRead


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
    from isotherm.spark.reading.readers import ReadSettings
    from isotherm.spark.reading.task_reading import WhenMissing, read_task
    from isotherm.spark.tier.tier_settings import read_settings
    from isotherm.spark.tier.tiered_log import cause_when_gone

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
            read_again=functools.partial(_plan_again, options, settings, elsewhere=False),
            read_elsewhere=functools.partial(_plan_again, options, settings, elsewhere=True),
            fail_on_data_loss=options.fail_on_data_loss,
            cause_when_gone=cause_when_gone(options),
        ),
    )
    freeze_imports()


def _plan_again(
    options: SourceOptions,
    settings: ObjectStoreSettings | None,
    read: SegmentRead,
    *,
    elsewhere: bool,
) -> Sequence[Read] | None:
    from isotherm.spark.tier.open_log import open_tiered_log

    # Without brokers: what no segment has is read from them as before, by a BrokerRead.
    with open_tiered_log(options, settings, None) as log:
        return log.read_elsewhere(read) if elsewhere else log.read_again(read)


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
    costs more than a small task. Call it after the first task, when all modules are loaded.
    """
    gc.collect()
    gc.freeze()
