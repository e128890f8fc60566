"""The Spark passes of a load: rows become the segments of a history.

    pack     the partition of each row, and its place in the order; rows go into pieces
             (packed_rows), which are on disk, so that every later pass sees the same rows
    count    rows and bytes of each partition, and of each range of places that it is cut into: with
             the counts before it a task knows the offset of its first record
    write    pieces go to their tasks, in order; each task sorts one range after the other, writes
             whole segments of one partition, and stages them

A range has about RANGE_BYTES, so a worker has that much in memory, and one piece of encoded
batches. Only many rows with one place can make a range larger.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql import types

from isotherm.errors import ConfigError, InvalidRecordError, PolicyViolationError
from isotherm.record.encode import Partitioner
from isotherm.remote.metadata.wire.serde import decode_event, encode_keyed_event
from isotherm.remote.rewriting.history_writer import HistoryRules, HistoryWriter
from isotherm.remote.rewriting.journal import NewSegment
from isotherm.remote.rewriting.staging import stage_new_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs import packed_rows, parquet_rows
from isotherm.spark.jobs.moved_offsets import MOVED, MovedRules, moved_ranges
from isotherm.spark.jobs.packed_rows import PLACE, WorkerRows
from isotherm.spark.jobs.rewrite_tasks import by_task, open_journals, open_storage
from isotherm.spark.small_input import is_small, map_batches
from isotherm.spark.task_folder import task_folder
from isotherm.types import Offset, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    WriteFunction: TypeAlias = "Callable[[Iterator[_SplitRow]], Iterator[pa.RecordBatch]]"

_HEADERS_SQL = "array<struct<key:string,value:binary>>"
_WRITTEN = "segment binary, manifest binary, moved binary"
_WRITTEN_FIELDS: dict[str, pa.DataType] = {
    "segment": pa.binary(),
    "manifest": pa.binary(),
    "moved": pa.binary(),
}
TASK_BYTES_MIN = 256 * 1024 * 1024
"""A task writes about so many bytes, or one whole segment if that is larger."""
RANGE_BYTES = 48 * 1024 * 1024
"""Rows that a task sorts at once."""
_ENCODED_BYTES = 8 * 1024 * 1024
"""Rows that a task encodes at once: the last batch of them may be small."""
_PIECES_AT_ONCE = 8
_NO_PARTITION_COLUMN = "the partitioner is column, and the input has no column partition"
_ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"
_QUANTILE_ACCURACY = 10_000


class PartitionRows(NamedTuple):
    """The rows that a load has for one partition. `bytes` are those of the records, not
    compressed."""

    partition: int
    records: int
    bytes: int
    first_ms: TimestampMs
    last_ms: TimestampMs


class PlaceRange(NamedTuple):
    """The rows of a partition from a place on (None: from the first), up to the next range. The
    task writes adjacent ranges of one partition."""

    task: int
    partition: int
    from_place: int | None


class TaskPlace(NamedTuple):
    """The offset of a task's first record, and the number of its records."""

    partition: int
    start_offset: Offset
    records: int


class _SplitRow(NamedTuple):
    """A piece in one range of places: a row of packed_rows.SPLIT."""

    task: int
    range: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """The settings of the tasks that write. Picklable."""

    run: str
    target: ObjectStoreSettings
    rules: HistoryRules
    fetch_bytes: int
    moved: MovedRules | None = None


@dataclass(frozen=True, slots=True)
class WrittenHistory:
    """The staged segments by partition, in the order of offsets. `moved` is a table of MOVED, with
    rows if the settings have rules for them."""

    segments: list[NewSegment]
    moved: pa.Table


def prepare(
    rows: DataFrame | WorkerRows,
    *,
    partitioner: Partitioner,
    partitions_count: int,
    run_size: int,
    order_by: str | None,
    now_ms: TimestampMs,
    folder: str | None,
) -> DataFrame:
    """The rows as records, packed. Rows with equal places are in the order of their ties, else of
    the input. `folder` is for pieces, if all tasks see it; the caller deletes it.

    Raises ConfigError for columns that are no record's.
    """
    packer = functools.partial(packed_rows.pack, partitioner, partitions_count, run_size, folder)
    if isinstance(rows, WorkerRows):
        if partitioner is Partitioner.COLUMN:
            raise ConfigError(_NO_PARTITION_COLUMN)
        return rows.packed(packer)
    columns = {field.name.lower(): field for field in rows.schema.fields}
    if "value" not in columns:
        raise ConfigError(
            f"the input has no column value columns={sorted(columns)}"
            " hint='--column value=SQL makes one, --value-format json one of all columns'"
        )
    chosen = [
        _bytes_of(columns, "key").alias("key"),
        _bytes_of(columns, "value").alias("value"),
        _timestamp_of(columns, now_ms).alias("timestamp"),
        _timestamp_type_of(columns).alias("timestamp_type"),
        _place_of(rows, columns, order_by, now_ms).alias(PLACE),
        *_headers_of(columns),
    ]
    if partitioner is Partitioner.COLUMN:
        if "partition" not in columns:
            raise ConfigError(_NO_PARTITION_COLUMN)
        chosen.append(sql.col(columns["partition"].name).cast("int").alias("partition"))
    elif order_by is None:
        tasks = parquet_rows.tasks_of(rows)
        if tasks:
            reader = functools.partial(parquet_rows.read, tasks, rows.columns, now_ms)
            numbers = rows.sparkSession.range(0, len(tasks), 1, len(tasks))
            return WorkerRows(numbers, reader).packed(packer)
    return rows.select(*chosen).mapInArrow(packer, packed_rows.PACKED_SQL)


def _timestamp_type_of(columns: Mapping[str, types.StructField]) -> Column:
    """0 CreateTime, 1 LogAppendTime, from the column of a source of Kafka's records."""
    if "timestamptype" not in columns:
        return sql.lit(0)
    return sql.coalesce(sql.col(columns["timestamptype"].name).cast("int"), sql.lit(0))


def _bytes_of(columns: Mapping[str, types.StructField], name: str) -> Column:
    if name not in columns:
        return sql.lit(None).cast("binary")
    kind = columns[name].dataType
    if not isinstance(kind, types.BinaryType | types.StringType):
        raise ConfigError(
            f"column is neither binary nor string column={name} type={kind.simpleString()}"
            f" hint='--{name}-format json encodes it'"
        )
    return sql.col(columns[name].name).cast("binary")


def _headers_of(columns: Mapping[str, types.StructField]) -> list[Column]:
    """The column of headers. None without headers: an array costs each row more than its key."""
    if "headers" not in columns:
        return []
    type_text = columns["headers"].dataType.simpleString()
    if type_text != _HEADERS_SQL:
        raise ConfigError(
            f"column has the wrong type column=headers type={type_text!r} need={_HEADERS_SQL}"
        )
    return [sql.col(columns["headers"].name).alias("headers")]


def _timestamp_of(columns: Mapping[str, types.StructField], now_ms: TimestampMs) -> Column:
    """Milliseconds. As with a producer, a record without a timestamp gets the time of the run."""
    if "timestamp" not in columns:
        return sql.lit(now_ms).cast("long")
    kind, column = columns["timestamp"].dataType, sql.col(columns["timestamp"].name)
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        column = sql.unix_millis(column.cast("timestamp"))
    elif not isinstance(kind, types.LongType):
        raise ConfigError(
            "column is neither a timestamp nor milliseconds column=timestamp"
            f" type={kind.simpleString()}"
        )
    return sql.coalesce(column, sql.lit(now_ms)).cast("long")


def _place_of(
    frame: DataFrame,
    columns: Mapping[str, types.StructField],
    order_by: str | None,
    now_ms: TimestampMs,
) -> Column:
    if order_by is None:
        return _timestamp_of(columns, now_ms)
    column = sql.expr(order_by)
    kind = frame.select(column.alias("place")).schema["place"].dataType
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        column = sql.unix_micros(column.cast("timestamp"))
    elif isinstance(kind, types.DateType):
        column = sql.unix_date(column)
    elif not isinstance(kind, types.IntegralType):
        raise ConfigError(
            f"records cannot be ordered by this order_by={order_by!r} type={kind.simpleString()}"
            " hint='take an integer, a date or a timestamp'"
        )
    return sql.coalesce(column.cast("long"), sql.lit(-(2**63)))


def count_rows(
    packed: DataFrame, partitions_count: int, *, copies_records: bool
) -> list[PartitionRows]:
    """Count the rows of each partition. Raises InvalidRecordError for rows that are no records: a
    partition that the topic does not have, a time before 1970, a header without a name. With
    `copies_records` a broker has taken any time already."""
    counted = packed.groupBy("partition").agg(
        sql.sum("records").alias("records"),
        sql.sum("bytes").alias("bytes"),
        sql.min("first_ms").alias("first_ms"),
        sql.max("last_ms").alias("last_ms"),
        sql.sum("wrong_times").alias("wrong_times"),
        sql.sum("nameless").alias("nameless"),
    )
    rows = sorted(counted.collect(), key=lambda row: row.partition)
    for row in rows:
        if not 0 <= row.partition < partitions_count:
            raise InvalidRecordError(
                f"rows are of a partition that the topic does not have partition={row.partition}"
                f" rows={row.records} partitions={partitions_count}"
            )
        if row.wrong_times and not copies_records:
            raise InvalidRecordError(
                "rows have a time before 1970, which Kafka's producer refuses"
                f" rows={row.wrong_times} partition={row.partition} first_ms={row.first_ms}"
            )
        if row.nameless:
            raise InvalidRecordError(
                f"headers have no name headers={row.nameless} partition={row.partition}"
            )
    return [PartitionRows(*row[:5]) for row in rows]


def plan_ranges(
    packed: DataFrame,
    rows: Sequence[PartitionRows],
    task_bytes: int,
    range_bytes: int = RANGE_BYTES,
) -> list[PlaceRange]:
    """Cut each partition into ranges of about `range_bytes` by approximate quantiles of the places,
    and give each task about `task_bytes` of adjacent ones. A range may turn out to be empty."""
    counts = {partition.partition: max(1, -(-partition.bytes // range_bytes)) for partition in rows}
    most = max(counts.values(), default=1)
    bounds: dict[int, list[int]] = {}
    if most > 1:
        places = packed.select("partition", sql.explode("places").alias("place"))
        shares = sql.array(*(sql.lit(n / most) for n in range(1, most)))
        quantiles = sql.percentile_approx("place", shares, max(_QUANTILE_ACCURACY, 10 * most))
        for row in places.groupBy("partition").agg(quantiles.alias("places")).collect():
            count = counts[row.partition]
            # As many of the quantiles as this partition has ranges.
            chosen = [row.places[round(n * most / count) - 1] for n in range(1, count)]
            bounds[row.partition] = sorted(set(chosen))
    ranges: list[PlaceRange] = []
    task, size_of_task = -1, 0
    for partition in rows:
        starts = (None, *bounds.get(partition.partition, ()))
        size_of_range = partition.bytes // len(starts)
        for start in starts:
            if start is None or size_of_task + size_of_range > task_bytes:
                task, size_of_task = task + 1, 0
            size_of_task += size_of_range
            ranges.append(PlaceRange(task, partition.partition, start))
    return ranges


def _split(packed: DataFrame, ranges: Sequence[PlaceRange], *, with_data: bool) -> DataFrame:
    first: dict[int, int] = {}
    bounds: dict[int, list[int]] = {}
    for number, place_range in enumerate(ranges):
        first.setdefault(place_range.partition, number)
        starts = bounds.setdefault(place_range.partition, [])
        if place_range.from_place is not None:
            starts.append(place_range.from_place)
    first_ranges = {partition: (first[partition], tuple(bounds[partition])) for partition in first}
    splitter = functools.partial(
        packed_rows.split,
        first_ranges,
        [place_range.task for place_range in ranges],
        with_data=with_data,
    )
    return map_batches(packed, splitter, packed_rows.SPLIT)


def first_offsets(
    packed: DataFrame,
    rows: Sequence[PartitionRows],
    ranges: Sequence[PlaceRange],
    starts: Mapping[int, Offset],
) -> dict[int, TaskPlace]:
    """For each task that has rows the offset of its first record, and the number of its records.
    Offsets have no gaps."""
    if len(ranges) == len(rows):
        counts = {
            place_range.task: row.records for place_range, row in zip(ranges, rows, strict=True)
        }
    else:
        split = _split(packed, ranges, with_data=False)
        counts = {row["task"]: row["records"] for row in _records_of_tasks(split)}
    following = dict(starts)
    places: dict[int, TaskPlace] = {}
    for task, partition in dict.fromkeys(
        (place_range.task, place_range.partition) for place_range in ranges
    ):
        count = counts.get(task, 0)
        if count:
            places[task] = TaskPlace(partition, following[partition], count)
            following[partition] += count
    return places


def _records_of_tasks(split: DataFrame) -> list[Row]:
    return split.groupBy("task").agg(sql.sum("records").alias("records")).collect()


def write_all(
    packed: DataFrame,
    ranges: Sequence[PlaceRange],
    places: Mapping[int, TaskPlace],
    owners: Mapping[int, TopicIdPartition],
    settings: WriteSettings,
    spark_tasks: int,
) -> WrittenHistory:
    """Write and stage all segments, in at most `spark_tasks` of Spark's tasks.

    Raises PolicyViolationError if a task has other rows than those that were counted.
    """
    write = functools.partial(_write, settings, dict(places), dict(owners))
    split = _split(packed, ranges, with_data=True)
    count = min(spark_tasks, ranges[-1].task + 1)
    if is_small(split.sparkSession):
        # The rows are places of pieces, in the driver: they need no shuffle.
        rows = _written_in(split.sparkSession, split.toArrow(), count, write)
    else:
        with _few_rows_at_once(split.sparkSession):
            rows = (
                by_task(split, count)
                .sortWithinPartitions("task", "range", "row")
                .select("task", "range", "data")
                .mapInArrow(lambda batches: write(_split_rows(batches)), _WRITTEN)
                .collect()
            )
    segments = [
        NewSegment(_segment(row.segment), bytes(row.manifest))
        for row in rows
        if row.segment is not None
    ]
    segments.sort(
        key=lambda segment: (
            str(segment.metadata.topic_id_partition),
            segment.metadata.start_offset,
        )
    )
    moved = [packed_rows.decoded(bytes(row.moved)) for row in rows if row.moved is not None]
    return WrittenHistory(segments, pa.Table.from_batches(moved, MOVED))


def _written_in(
    spark: SparkSession, split: pa.Table, count: int, write: WriteFunction
) -> list[Row]:
    own: dict[int, list[_SplitRow]] = {number: [] for number in range(count)}
    for row in split.sort_by(
        [(name, "ascending") for name in ("task", "range", "row")]
    ).to_pylist():
        own[row["task"] % count].append(_SplitRow(row["task"], row["range"], row["data"]))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = (number for batch in batches for number in batch.column(0).to_numpy().tolist())
        return write(row for number in numbers for row in own[number])

    return spark.range(0, count, 1, count).mapInArrow(run, _WRITTEN).collect()


@contextmanager
def _few_rows_at_once(spark: SparkSession) -> Iterator[None]:
    """A row is a piece of megabytes. Spark's default, 10,000 rows for a worker at once, is too much
    memory where it does not count bytes as well (PySpark 4.0)."""
    before = spark.conf.get(_ROWS_AT_ONCE)
    spark.conf.set(_ROWS_AT_ONCE, str(_PIECES_AT_ONCE))
    try:
        yield
    finally:
        spark.conf.set(_ROWS_AT_ONCE, str(before))


def _segment(data: bytes) -> RemoteLogSegmentMetadata:
    segment = decode_event(bytes(data))
    assert isinstance(segment, RemoteLogSegmentMetadata), "written by this module"
    return segment


def _write(
    settings: WriteSettings,
    places: Mapping[int, TaskPlace],
    owners: Mapping[int, TopicIdPartition],
    rows_of_pieces: Iterator[_SplitRow],
) -> Iterator[pa.RecordBatch]:
    storage, journals = open_storage(settings.target), open_journals(settings.target)

    def stage(writer: HistoryWriter) -> pa.RecordBatch:
        segment = writer.take()
        staged = stage_new_segment(storage, journals, settings.run, segment, settings.fetch_bytes)
        writer.remove_files()
        return _written_row(encode_keyed_event(staged.metadata), staged.manifest)

    with task_folder("isotherm-load-") as folder:
        for task, of_task in itertools.groupby(rows_of_pieces, key=lambda row: row.task):
            partition, offset, count = places[task]
            writer = HistoryWriter(owners[partition], offset, settings.rules, folder)
            for _, of_range in itertools.groupby(of_task, key=lambda row: row.range):
                for rows in packed_rows.in_order([row.data for row in of_range]):
                    if settings.moved is not None:
                        moved = moved_ranges(rows, partition, writer.next_offset, settings.moved)
                        yield _written_row(moved=packed_rows.encoded(moved))
                    step = max(1, len(rows) * _ENCODED_BYTES // max(rows.nbytes, 1))
                    for start in range(0, len(rows), step):
                        for _ in writer.append(rows.slice(start, step)):
                            yield stage(writer)
            if writer.has_records:
                yield stage(writer)
            # Offsets are assigned by counts. Other rows in this pass would give an offset twice, or
            # leave one out.
            if writer.next_offset != offset + count:
                raise PolicyViolationError(
                    "the input has changed while it was read"
                    f" partition={owners[partition]} counted={count}"
                    f" written={writer.next_offset - offset}"
                    " hint='write from an input that does not change'"
                )


def _written_row(
    segment: bytes | None = None, manifest: bytes | None = None, moved: bytes | None = None
) -> pa.RecordBatch:
    row = {"segment": segment, "manifest": manifest, "moved": moved}
    return pa.RecordBatch.from_pylist([row], schema=pa.schema(_WRITTEN_FIELDS))


def _split_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[_SplitRow]:
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("task", "range", "data"))
        yield from map(_SplitRow, *columns)
