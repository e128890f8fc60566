"""Maintains a topic's tables between two runs. It deletes rows that Kafka has deleted, merges small
files, and expires old snapshots.

Each step reads the table, decides, and commits. If another program has replaced the same files or
deleted rows in between, the commit fails and the table stays as it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from isotherm.clock import Clock
from isotherm.errors import TableOvertakenError
from isotherm.spark.jobs.rewritten_files import PUT_SCHEMA, put_by_number, put_rows
from isotherm.spark.jobs.table_retention import LogStarts, delete_below
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.tables.column_fit import as_schema
from isotherm.spark.tables.parquet_files import ParquetFiles, Place, PutFile, attempt_name
from isotherm.spark.tables.time_partitions import folder_of
from isotherm.spark.tables.upkeep_plan import DataFile, plan_compaction
from isotherm.spark.task_folder import task_folder
from isotherm.types import Offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.spark.tables.iceberg_upkeep import IcebergKept

MERGE_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of rows in memory for each open file."""

_Place = tuple[int, Offset]  # the partition and offset of a row


def merge_files(
    spark: SparkSession,
    groups: Sequence[Sequence[DataFile]],
    place: Place,
    schema: pa.Schema,
    name: str,
) -> list[list[PutFile]]:
    """Merge each group, and return its new files. Their names begin with `name`."""

    def run(number: int) -> Iterator[pa.RecordBatch]:
        put = _merge_group(groups[number], place, schema, attempt_name(f"{name}-{number:05}"))
        yield from put_rows(number, put).to_batches()

    # A second action would run the tasks again and put their files twice, so this is the only one.
    made = put_by_number(each_of(spark, len(groups), run, PUT_SCHEMA).collect())
    return [made[number] for number in range(len(groups))]


def _merge_group(
    group: Sequence[DataFile], place: Place, schema: pa.Schema, name: str
) -> list[PutFile]:
    with (
        task_folder("isotherm-table-") as folder,
        # Files of one group are of one partition of the table.
        ParquetFiles(place, schema, folder / name, folder_of(group[0].name)) as files,
        closing(merged_batches(group, place, schema)) as batches,
    ):
        for batch in batches:
            files.write(batch)
        return files.put_all()


def merged_batches(
    group: Sequence[DataFile], place: Place, schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    """All rows of these files as `schema`. They are in the order of partitions and offsets if each
    file is."""
    waiting = sorted(group, key=lambda file: (file.first, file.name), reverse=True)
    heads: list[tuple[_Place, int]] = []
    readers: dict[int, _Reader] = {}
    with ExitStack() as opened:
        while waiting or heads:
            while waiting and (not heads or waiting[-1].first <= heads[0][0]):
                number = len(readers)
                source = opened.enter_context(place.open(waiting.pop().name))
                readers[number] = _Reader(source, schema)
                readers[number].push(heads, number)
            if not heads:
                continue
            _, number = heapq.heappop(heads)
            # Up to the next row of another open file, and of the next file that is not open yet.
            others = [head for head, _ in heads[:1]] + [file.first for file in waiting[-1:]]
            yield readers[number].take_below(min(others, default=None))
            readers[number].push(heads, number)


class _Reader:
    """The rows of one file that are not taken yet. `head` is the place of the first of them."""

    def __init__(self, source: Any, schema: pa.Schema) -> None:
        self._schema = schema
        file = parquet.ParquetFile(source)
        size = sum(file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups))
        rows = max(MERGE_BATCH_BYTES * file.metadata.num_rows // max(size, 1), 1)
        self._batches = file.iter_batches(batch_size=rows)
        self._batch: pa.RecordBatch | None = None
        self.head: _Place | None = None
        self._next_batch()

    def push(self, heads: list[tuple[_Place, int]], number: int) -> None:
        if self.head is not None:
            heapq.heappush(heads, (self.head, number))

    def take_below(self, end: _Place | None) -> pa.RecordBatch:
        """Take the rows of the current batch that come before `end`, at least one."""
        batch = self._batch
        assert batch is not None, "there is a head"
        count = batch.num_rows if end is None else max(_rows_below(batch, end), 1)
        if count == batch.num_rows:
            self._next_batch()
        else:
            self._batch = batch.slice(count)
            self.head = _place_of(self._batch)
        return as_schema(batch.slice(0, count), self._schema)

    def _next_batch(self) -> None:
        self._batch = next((batch for batch in self._batches if batch.num_rows), None)
        self.head = None if self._batch is None else _place_of(self._batch)


def _place_of(batch: pa.RecordBatch) -> _Place:
    return batch.column("partition")[0].as_py(), batch.column("offset")[0].as_py()


def _rows_below(batch: pa.RecordBatch, end: _Place) -> int:
    """The number of rows before the first one at or after `end`."""
    partitions, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
    reached = (partitions > end[0]) | ((partitions == end[0]) & (offsets >= end[1]))
    return int(np.argmax(reached)) if reached.any() else batch.num_rows


OpenSpark = Callable[[], "SparkSession"]


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """Snapshots older than `expire_ms` expire; with None, none do. Rows below the `log_starts` are
    deleted; with None, they stay."""

    compacts: bool = False
    expire_ms: int | None = None
    log_starts: Callable[[], LogStarts] | None = None

    @property
    def has_any(self) -> bool:
        return self.compacts or self.expire_ms is not None or self.log_starts is not None


@dataclass(frozen=True, slots=True)
class UpkeepDone:
    """The counts of the table and its dead letters together. `merged_files` became `new_files`."""

    deleted_rows: int = 0
    merged_files: int = 0
    new_files: int = 0
    expired_snapshots: int = 0
    deleted_files: int = 0

    def __add__(self, other: UpkeepDone) -> UpkeepDone:
        return UpkeepDone(
            self.deleted_rows + other.deleted_rows,
            self.merged_files + other.merged_files,
            self.new_files + other.new_files,
            self.expired_snapshots + other.expired_snapshots,
            self.deleted_files + other.deleted_files,
        )


def keep_tables(
    tables: Sequence[IcebergKept],
    settings: UpkeepSettings,
    open_spark: OpenSpark,
    run: str,
    clock: Clock,
    show_step: Callable[[str], None],
) -> UpkeepDone:
    """Maintain the tables as `settings` say. `run` is part of the names of files, so it must be
    unique. Spark is opened only if files are written.

    Raises TableOvertakenError if another program changed a table. Earlier commits stay.
    """
    done = UpkeepDone()
    for number, table in enumerate(tables):
        table.read()
        if settings.log_starts is not None:
            show_step("deleting rows below the log start")
            deleted = delete_below(table, settings.log_starts, open_spark, f"{run}-kept-{number}")
            done += UpkeepDone(deleted_rows=deleted)
        if settings.compacts:
            show_step("merging small files")
            done += compact(table, open_spark, f"{run}-merged-{number}")
        if settings.expire_ms is not None:
            show_step("expiring snapshots")
            expired = table.expire(clock.now_ms() - settings.expire_ms)
            done += UpkeepDone(expired_snapshots=expired.snapshots, deleted_files=expired.files)
    return done


def compact(table: IcebergKept, open_spark: OpenSpark, name: str) -> UpkeepDone:
    """Replace small files by larger ones with the same rows, in one commit. There is no commit if
    no two files may be merged."""
    groups = plan_compaction(table.files())
    if not groups:
        return UpkeepDone()
    place = table.place
    made = [
        put_file
        for put in merge_files(open_spark(), groups, place, table.schema, name)
        for put_file in put
    ]
    old = [file for group in groups for file in group]
    added = [put_file.name for put_file in made]
    # A merge that loses rows must not be committed.
    assert sum(put_file.rows for put_file in made) == sum(data_file.rows for data_file in old)
    try:
        table.replace(added, [data_file.name for data_file in old], keeps_rows=True)
    # After no other error: the commit may have been made all the same.
    except TableOvertakenError:
        place.delete(added)
        raise
    return UpkeepDone(merged_files=len(old), new_files=len(made))
