"""Rows of a load straight from Parquet files: Spark's way of a row into Arrow costs more than all
that a load does with it.

A frame that is no more than the columns key, value and timestamp of files is read by the workers.
Every other frame is Spark's to compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types

from isotherm.types import TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_COLUMNS = ("key", "value", "timestamp")
_NOT_HERE = {"headers", "timestamptype"}
_TASK_BYTES = 128 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_ROWS_MAX = 8192
"""A value that occurs often is once in the file, so rows may be larger than the file says."""
_UNITS_OF_A_MS = {"ms": 1, "us": 1000}


class RowGroup(NamedTuple):
    """`rows_at_once` are about as many as _BATCH_BYTES have in the file."""

    path: str
    number: int
    rows_at_once: int


def tasks_of(frame: DataFrame) -> list[list[RowGroup]]:
    """The row groups of a frame, in tasks; none if Spark has to read it."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    names = {name.lower() for name in kinds}
    if not _is_parquet(frame) or names & _NOT_HERE or names & set(_COLUMNS) - set(kinds):
        return []
    kind = kinds.get("timestamp")
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    if isinstance(kind, types.TimestampNTZType) and zone != "UTC":
        return []
    tasks: list[list[RowGroup]] = []
    size_of_task = 0
    for url in frame.inputFiles():
        place = urlsplit(url)
        if place.scheme != "file":
            return []
        path = unquote(place.path)
        try:
            metadata = pq.read_metadata(path)
        except pa.ArrowException:
            # Spark says what is wrong with the file, or leaves it out if it is told to.
            return []
        if not _is_readable(metadata.schema.to_arrow_schema(), kinds):
            return []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            size = group.total_byte_size
            if not tasks or size_of_task + size > _TASK_BYTES:
                tasks.append([])
                size_of_task = 0
            size_of_task += size
            rows = max(1, group.num_rows * _BATCH_BYTES // max(size, _BATCH_BYTES))
            tasks[-1].append(RowGroup(path, number, min(rows, _BATCH_ROWS_MAX)))
    return tasks


def _is_parquet(frame: DataFrame) -> bool:
    """Whether the frame has columns of files as they are: no row less, no computed column."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    while plan.getClass().getSimpleName() == "Project":
        columns = plan.projectList()
        if any(
            columns.apply(n).getClass().getSimpleName() != "AttributeReference"
            for n in range(columns.size())
        ):
            return False
        plan = plan.child()
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = plan.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    # Other formats, as that of a table with deleted rows, are kinds of this one.
    is_plain = relation.fileFormat().getClass().getName() == _FORMAT
    return bool(is_plain and relation.partitionSchema().isEmpty())


def _is_readable(schema: pa.Schema, kinds: dict[str, types.DataType]) -> bool:
    """Whether the file has the columns, in types whose values Spark does not change."""
    for name in _COLUMNS:
        if name not in kinds:
            continue
        if name not in schema.names:
            return False
        kind: Any = schema.field(name).type
        if name != "timestamp":
            is_same = pa.types.is_binary(kind) or pa.types.is_string(kind)
        elif isinstance(kinds[name], types.LongType):
            is_same = pa.types.is_int64(kind)
        else:
            is_same = pa.types.is_timestamp(kind) and kind.unit in _UNITS_OF_A_MS
        if not is_same:
            return False
    return True


def read(
    tasks: Sequence[Sequence[RowGroup]],
    columns: Sequence[str],
    now_ms: TimestampMs,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The rows of tasks, with the columns that `packed_rows.pack` takes."""
    chosen = [name for name in _COLUMNS if name in columns]
    for batch in numbers:
        for task in batch.column(0).to_numpy().tolist():
            for group in tasks[task]:
                with pq.ParquetFile(group.path, memory_map=True) as file:
                    for rows in file.iter_batches(
                        group.rows_at_once, [group.number], chosen, use_threads=False
                    ):
                        yield _as_records(rows, now_ms)


def _as_records(rows: pa.RecordBatch, now_ms: TimestampMs) -> pa.RecordBatch:
    count, names = len(rows), rows.schema.names
    times: Any = np.full(count, now_ms, dtype=np.int64)
    if "timestamp" in names:
        column: Any = rows["timestamp"]
        units = _UNITS_OF_A_MS[getattr(column.type, "unit", "ms")]
        times = column.cast(pa.int64()).fill_null(now_ms * units).to_numpy() // units
    key: Any = rows["key"].cast(pa.binary()) if "key" in names else pa.nulls(count, pa.binary())
    return pa.RecordBatch.from_pydict(
        {
            "key": key,
            "value": rows["value"].cast(pa.binary()),
            "timestamp": pa.array(times),
            "timestamp_type": pa.array(np.zeros(count, dtype=np.int32)),
            "place": pa.array(times),
        }
    )
