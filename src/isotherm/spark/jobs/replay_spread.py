"""Replays a metadata topic with several tasks for each of its partitions.

Tasks read files in parallel. Spark groups the records by user partition, sorts them by offset, and
spills to disk if needed. Other tasks fold them. The fold of a user partition depends only on its
own records, so the result is that of the plain replay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.folding.decoded_run import place_hashes
from isotherm.spark.metadata.remote_metadata_log import (
    LogSlice,
    MetadataLog,
    RecordRun,
    as_events,
    until_time,
)
from isotherm.spark.metadata.slice_fold import (
    DAMAGED_BATCH,
    FOLDED,
    HEAD_MISSING,
    HEAD_MISSING_TEXT,
    RECORDS_MISSING,
    Findings,
    Gaps,
    SliceFold,
    folded_rows,
)
from isotherm.spark.numbered_tasks import each_of, spark_schema
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's Arrow batches have 10,000 rows. Larger runs of the fold cost less per record.
_RUN_BYTES = 16 * 1024 * 1024
_TASKS_PER_CORE = 2
_RAW_FIELDS: list[Any] = [
    ("metadata_partition", pa.int32()),
    ("offset", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    # The hash of the user partition: the shuffle key.
    ("place", pa.int64()),
    # A finding instead of a record: its kind and text.
    ("kind", pa.string()),
    ("text", pa.string()),
]
_RAW = pa.schema(_RAW_FIELDS)
_END_FIELDS: list[Any] = [("number", pa.int32()), ("end", pa.int64())]
_ENDS = pa.schema(_END_FIELDS)


def folded_by_place(
    spark: SparkSession,
    log: MetadataLog,
    slices: Sequence[LogSlice],
    topic_partitions: int | None,
    as_of_ms: TimestampMs | None,
) -> DataFrame:
    """Fold `slices` in tasks by user partition. The rows are those of slice_fold.FOLDED."""
    if as_of_ms is not None:
        ends = _ends_at(spark, log, slices, as_of_ms)
        slices = [log_slice.until(ends.get(log_slice.number)) for log_slice in slices]
    heads = {
        log_slice.number: log_slice.start_offset
        for log_slice in slices
        if log_slice.start_offset > 0
    }
    parts = [part for log_slice in slices for part in log_slice.by_file()]
    follows = [
        after.files[0].base_offset if after.files and after.number == part.number else 0
        for part, after in itertools.pairwise([*parts, LogSlice(-1, 0)])
    ]

    def read(number: int) -> Iterator[pa.RecordBatch]:
        yield from _read_part(log, parts[number], heads, follows[number])

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folding: SliceFold | None = None
        for number, table in _runs(batches):
            if folding is None or folding.number != number:
                if folding is not None:
                    yield from folded_rows(folding)
                folding = SliceFold(number, topic_partitions)
            _feed(folding, table)
        if folding is not None:
            yield from folded_rows(folding)

    raw = each_of(spark, len(parts), read, _RAW)
    tasks = _TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    shared = raw.repartition(tasks, raw.place).sortWithinPartitions("metadata_partition", "offset")
    return shared.mapInArrow(fold, spark_schema(FOLDED))


def _ends_at(
    spark: SparkSession, log: MetadataLog, slices: Sequence[LogSlice], as_of_ms: TimestampMs
) -> dict[int, Offset]:
    """The offset of the first record after `as_of_ms`, by metadata partition."""

    def find(number: int) -> Iterator[pa.RecordBatch]:
        part = slices[number]
        end = part.start_offset
        for run in until_time(log.read(part, lambda *_: None), as_of_ms):
            end = run.columns.next_offset
        yield pa.RecordBatch.from_pylist([{"number": part.number, "end": end}], schema=_ENDS)

    rows = each_of(spark, len(slices), find, _ENDS).collect()
    return {row.number: row.end for row in rows}


def _read_part(
    log: MetadataLog, part: LogSlice, heads: dict[int, Offset], next_file: Offset
) -> Iterator[pa.RecordBatch]:
    findings, gaps = Findings(part.number), Gaps()
    if heads.get(part.number) == part.start_offset and _is_first(part):
        findings.add(HEAD_MISSING, part.start_offset, HEAD_MISSING_TEXT)
    for run in log.read(part, lambda at, text: findings.add(DAMAGED_BATCH, at, text)):
        records = as_events(log.topic, run)
        if len(records.columns.offset):
            for first, text in gaps.of(records.columns):
                findings.add(RECORDS_MISSING, first, text)
            yield _raw_batch(part.number, records)
    if part.end_offset is None or next_file < part.end_offset:
        for first, text in gaps.before(next_file):
            findings.add(RECORDS_MISSING, first, text)
    yield from pa.Table.from_pylist(findings.rows(), schema=_RAW).to_batches()


def _is_first(part: LogSlice) -> bool:
    return not part.files or part.files[0].base_offset <= part.start_offset


def _raw_batch(number: int, run: RecordRun) -> pa.RecordBatch:
    columns, count = run.columns, len(run.columns.offset)
    arrays: dict[str, Any] = {
        "metadata_partition": pa.repeat(pa.scalar(number, pa.int32()), count),
        "offset": pa.array(columns.offset),
        "key": columns.key,
        "value": columns.value,
        "place": pa.array(place_hashes(columns)),
        "kind": pa.nulls(count, pa.string()),
        "text": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(arrays, schema=_RAW)


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Join batches to runs of rows, each of one metadata partition. The input is sorted by metadata
    partition."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        numbers = batch.column(0).to_numpy()
        for start, end in _equal_ranges(numbers):
            if waiting and waiting[-1].column(0)[0].as_py() != numbers[start]:
                yield _taken(waiting)
                size = 0
            waiting.append(batch.slice(start, end - start))
            size += waiting[-1].nbytes
        if size > _RUN_BYTES:
            yield _taken(waiting)
            size = 0
    if waiting:
        yield _taken(waiting)


def _equal_ranges(numbers: Any) -> list[tuple[int, int]]:
    borders = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
    return list(itertools.pairwise(borders))


def _taken(waiting: list[pa.RecordBatch]) -> tuple[int, pa.Table]:
    table = pa.Table.from_batches(waiting).combine_chunks()
    waiting.clear()
    return table["metadata_partition"][0].as_py(), table


def _feed(folding: SliceFold, table: pa.Table) -> None:
    for row in table.filter(pc.is_valid(table["kind"])).to_pylist():
        folding.findings.add(row["kind"], row["offset"], row["text"])
    records = table.filter(pc.is_null(table["kind"])).combine_chunks()
    if len(records) == 0:
        return
    offsets = records["offset"].to_numpy()
    key: Any = records["key"].combine_chunks()
    value: Any = records["value"].combine_chunks()
    folding.feed_some(MetadataColumns(offsets, key, value, int(offsets[-1]) + 1))
