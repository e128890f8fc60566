"""`spark.readStream.format("isotherm")`: the stream reader that Spark calls.

It is not part of `source`, because PySpark 4.0 and 4.1 import that module but lack the classes that
are imported here: they have no read limits, and pass no start offset to a source.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from isotherm.clock import SystemClock
from isotherm.spark.options import SourceOptions
from isotherm.spark.source_task import TaskPartition, read_partition, uncollected
from isotherm.spark.streaming.stream_offsets import decode_offset, encode_offset

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.spark.streaming.stream_query import StreamQuery


class IsothermStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark creates two readers: one for offsets and tasks, in a process that lives as long as the
    query, and one for the executors, which only reads."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._layout = ""
        self._resources = ExitStack()
        self._opened: StreamQuery | None = None

    def initialOffset(self) -> dict[str, Any]:
        return encode_offset(self._query.initial_offset())

    def getDefaultReadLimit(self) -> ReadLimit:
        """A limit that only says whether there are limits, since no read limit of Spark covers all
        options. `latestOffset` applies the options themselves."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        is_limited = not isinstance(limit, ReadAllAvailable)
        begun = decode_offset(start)
        reached = self._query.next_offset(begun, is_limited=is_limited)
        # Spark begins a batch if the text changes. So return the last text itself, which may
        # contain a start.
        return start if reached is begun else encode_offset(reached)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._query.latest_offset()
        return None if latest is None else encode_offset(latest)

    def prepareForTriggerAvailableNow(self) -> None:
        self._query.fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with uncollected():
            tasks = self._query.tasks(decode_offset(start), decode_offset(end))
        return [TaskPartition(task, self._layout) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, partition)

    def stop(self) -> None:
        """Close the clients. Spark does not always call this; the clients then end with their
        process."""
        self._resources.close()

    @property
    def _query(self) -> StreamQuery:
        if self._opened is None:
            from isotherm.spark.streaming.stream_query import StreamQuery
            from isotherm.spark.tier.open_log import open_brokers, open_tiered_log
            from isotherm.spark.tier.tier_settings import read_settings

            options = self._options
            settings = read_settings(options)
            log = self._resources.enter_context(
                open_tiered_log(
                    options, settings, open_brokers(options), by_name=options.plans_by_name
                )
            )
            self._layout = "" if settings is None else settings.layout
            self._opened = StreamQuery(options, log, SystemClock())
        return self._opened
