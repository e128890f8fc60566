"""Adds a topic's new records to a table, exactly once, even if a process is killed at any step.

1. The driver plans tasks from the offsets that the table covers (topic_plan).
2. Each task writes its records to Parquet files, without rows in the JVM. A task that finds fields
   without a column writes no file, but looks for fields in all of its records.
3. If there are such fields, the table gets columns for them, and those tasks run again. One more
   round is nearly always enough: only a field inside a field of disputed type is found later.
4. For a table of newest values, files with superseded rows are rewritten without these rows
   (newest_values).
5. One commit makes all files visible, and stores the offsets that they cover (topic_table).

A file that no commit names is not part of the table. A killed run leaves such files behind.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from isotherm.errors import TableOvertakenError
from isotherm.spark.jobs.cost import Cost
from isotherm.spark.jobs.newest_values import KeyedFile, without_superseded
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.options import SourceOptions
from isotherm.spark.source_task import TaskPartition, read_partition
from isotherm.spark.tables.parquet_files import ParquetFiles, PutFile, attempt_name
from isotherm.spark.tables.partitioned_files import PartitionedFiles
from isotherm.spark.tables.table_rows import (
    SOURCE_SCHEMA,
    decoded_rows,
    rows_schema,
    values_of,
)
from isotherm.spark.tables.topic_table import FilePlaces, TableCommit, TopicTable
from isotherm.spark.tables.value_decoder import ValueDecoder
from isotherm.spark.tables.value_formats import ValueFormat, decoders_of
from isotherm.spark.tables.value_types import (
    DecodedTypes,
    KeyValue,
    decoded_types,
    merged_types,
    unmarked,
)
from isotherm.spark.task_folder import task_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.spark.driver.topic_plan import TopicPlan

_ROWS, _DEAD, _TOMBSTONES, _COLUMNS = "rows", "dead", "tombstones", "columns"
_REASON = "reason"
_FIELDS: list[Any] = [
    ("task", pa.int32()),
    ("kind", pa.string()),
    ("name", pa.string()),
    ("rows", pa.int64()),
    ("size", pa.int64()),
    ("type", pa.binary()),
]
_REPORT = pa.schema(_FIELDS)
_SAMPLED_BATCHES = 4
"""The batches of each task in which a new table looks for its first fields. One ranged GET has
about this many."""
_TASK_REASONS_MAX = 100
"""The reasons of dead letters that a task counts. A reason may have parts of a value in it."""
RUN_REASONS_MAX = 10
"""The reasons of dead letters that a run returns."""


@dataclass(frozen=True, slots=True)
class TableRun:
    """The rows, dead letters and files that a run added, and the bytes of its Parquet files.
    `reasons` has the most frequent reasons of dead letters, with their counts."""

    rows: int
    dead_letters: int
    files: int
    bytes_written: int
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class _Work:
    """The work of every task of a round. If `places` is None, a task only looks for fields in its
    first batches. `fixed` has the types of existing columns, `types` also those of new fields."""

    options: SourceOptions
    formats: KeyValue[ValueFormat]
    fixed: DecodedTypes
    types: DecodedTypes
    run: str
    newest: bool
    places: FilePlaces | None = None


class _Written(NamedTuple):
    """The files of a round's tasks, and the reasons of its dead letters. `grown` has the types of
    tasks that met new fields instead, by task number."""

    rows: Sequence[PutFile]
    dead: Sequence[PutFile]
    tombstones: Sequence[PutFile]
    reasons: Counter[str]
    grown: Mapping[int, DecodedTypes]


class _Merged(NamedTuple):
    """The files that a commit adds (`rows`) and removes (`replaced`). `unused` files of this run
    are in no table, and are deleted after the commit."""

    rows: Sequence[PutFile]
    replaced: Sequence[str] = ()
    unused: Sequence[str] = ()


def add_to_table(
    spark: SparkSession,
    options: SourceOptions,
    plan: TopicPlan,
    table: TopicTable,
    formats: KeyValue[ValueFormat],
    run: str,
    show_step: Callable[[str], None],
    *,
    newest: bool,
) -> TableRun:
    """Add the records of the plan to the existing table, in one commit.

    `run` is part of the names of files, so it must be unique. `show_step` gets the name of each
    step. With `newest` the table keeps only the newest value of each key.

    Raises TableOvertakenError if another run committed first. The files of this run are then
    deleted.
    """
    every = dict(enumerate(plan.tasks))
    fixed = table.types()
    work = _Work(options, formats, fixed, fixed, run, newest)
    if any(data_type is None for data_type in fixed):
        show_step("finding the fields")
        work = replace(work, types=_union(fixed, _run_tasks(spark, work, every).grown))
    rows: list[PutFile] = []
    dead: list[PutFile] = []
    tombstones: list[PutFile] = []
    reasons: Counter[str] = Counter()
    left = every
    # Each round except the last finds a field, so the rounds end.
    while left:
        work = _placed(work, table)
        show_step("writing files")
        written = _run_tasks(spark, work, left)
        rows += written.rows
        dead += written.dead
        tombstones += written.tombstones
        reasons += written.reasons
        left = {number: every[number] for number in written.grown}
        work = replace(work, types=_union(work.types, written.grown))
    merged = _Merged(rows)
    if newest and (rows or tombstones):
        show_step("leaving out superseded rows")
        merged = _merge(spark, table, rows, tombstones, work)
    show_step("committing the table")
    _commit(table, plan, merged, dead, work)
    files = [*merged.rows, *dead]
    return TableRun(
        rows=sum(file.rows for file in (*rows, *tombstones)),
        dead_letters=sum(file.rows for file in dead),
        files=len(files),
        bytes_written=sum(file.size for file in files),
        reasons=dict(reasons.most_common(RUN_REASONS_MAX)),
    )


def cost_of_table(plan: TopicPlan, options: SourceOptions) -> Cost:
    """The cost of the reads of a run: ranged GETs, and an index and a manifest for each part of a
    segment."""
    reads = [read for task in plan.tasks for read in task.task.reads]
    ranges = sum(-(-read.size_in_bytes // options.fetch_bytes) for read in reads)
    return Cost(
        gets=ranges + 2 * len(reads), bytes_read=plan.size_in_bytes, tasks=max(len(plan.tasks), 1)
    )


def _placed(work: _Work, table: TopicTable) -> _Work:
    """Give the table all columns of `types`, and return the work that writes files with them."""
    places = table.places(KeyValue(*map(unmarked, work.types)))
    types = table.types()
    return replace(work, places=places, fixed=types, types=types)


def _commit(
    table: TopicTable,
    plan: TopicPlan,
    merged: _Merged,
    dead: Sequence[PutFile],
    work: _Work,
) -> None:
    assert work.places is not None
    covered = table.covered()
    covered |= {
        offset_range.topic_partition.partition: offset_range.end for offset_range in plan.ranges
    }
    rows, letters = [row.name for row in merged.rows], [file.name for file in dead]
    try:
        table.commit(TableCommit(rows, letters, covered, merged.replaced))
    # After no other error: the commit may have been made all the same, and then names these files.
    except TableOvertakenError:
        work.places.rows.delete([*rows, *merged.unused])
        work.places.dead.delete(letters)
        raise
    table.settle()
    work.places.rows.delete(merged.unused)


def _merge(
    spark: SparkSession,
    table: TopicTable,
    rows: Sequence[PutFile],
    tombstones: Sequence[PutFile],
    work: _Work,
) -> _Merged:
    assert work.places is not None
    before = table.data_files()
    files = [KeyedFile(name) for name in (*before, *(row.name for row in rows))]
    files += [KeyedFile(tombstone.name, is_of_tombstones=True) for tombstone in tombstones]
    made = without_superseded(
        spark, files, work.places.rows, work.places.whole_schema, f"{work.run}-newest"
    )
    left = [row for row in rows if row.name not in made]
    unused = [row.name for row in rows if row.name in made] + [
        tombstone.name for tombstone in tombstones
    ]
    return _Merged(
        [*left, *(file for name in made for file in made[name])],
        [name for name in before if name in made],
        unused,
    )


def _union(types: DecodedTypes, types_by_task: Mapping[int, DecodedTypes]) -> DecodedTypes:
    """Merge the types that tasks inferred, in the order of tasks, which is that of partitions and
    offsets. So the same topic always gives the same columns."""
    return reduce(
        lambda before, number: merged_types(before, types_by_task[number], types),
        sorted(types_by_task),
        types,
    )


def _run_tasks(spark: SparkSession, work: _Work, tasks: Mapping[int, TaskPartition]) -> _Written:
    numbers = sorted(tasks)

    def run(index: int) -> Iterator[pa.RecordBatch]:
        number = numbers[index]
        rows = list(_run_task(work, number, tasks[number]))
        yield from pa.Table.from_pylist(rows, schema=_REPORT).to_batches()

    # A second action would run the tasks again and put their files twice, so this is the only one.
    reports = each_of(spark, len(numbers), run, _REPORT).collect()
    reports.sort(key=lambda row: (row.task, row.name))
    rows, dead, tombstones = (
        [PutFile(row.name, row.rows, row.size) for row in reports if row.kind == kind]
        for kind in (_ROWS, _DEAD, _TOMBSTONES)
    )
    reasons: Counter[str] = Counter()
    for row in reports:
        if row.kind == _REASON:
            reasons[row.name] += row.rows
    grown = {row.task: _types(row.type) for row in reports if row.kind == _COLUMNS}
    return _Written(rows, dead, tombstones, reasons, grown)


def _types(schema: bytes) -> DecodedTypes:
    return decoded_types(pa.ipc.read_schema(pa.py_buffer(schema)))


def _run_task(work: _Work, number: int, task: TaskPartition) -> Iterator[dict[str, Any]]:
    """Run one task, in an executor. Yields rows of _REPORT: the files that were put, or the types
    with the fields that the columns lack."""
    decoders = decoders_of(work.formats, work.fixed, work.types)
    put: list[tuple[str, PutFile]] = []
    reasons: Counter[str] = Counter()
    with closing(_batches(work.options, task)) as batches:
        if work.places is None:
            _look_through(itertools.islice(batches, _SAMPLED_BATCHES), decoders)
        else:
            name = f"{work.run}-{number:05}"
            put = _write_files(work, work.places, name, batches, decoders, reasons)
    if work.places is None or _have_grown(decoders):
        schema = rows_schema(KeyValue(*(decoder.value_type for decoder in decoders)))
        yield {"task": number, "kind": _COLUMNS, "type": schema.serialize().to_pybytes()}
        return
    for kind, file in put:
        yield {"task": number, "kind": kind, **file._asdict()}
    for reason, count in reasons.most_common(_TASK_REASONS_MAX):
        yield {"task": number, "kind": _REASON, "name": reason, "rows": count}


def _count(texts: Any, reasons: Counter[str]) -> None:
    for row in texts.value_counts().to_pylist():
        reason, count = row["values"], row["counts"]
        if reason in reasons or len(reasons) < _TASK_REASONS_MAX:
            reasons[reason] += count


def _batches(options: SourceOptions, task: TaskPartition) -> Generator[pa.RecordBatch]:
    yield from read_partition(options, SOURCE_SCHEMA, task)


def _look_through(batches: Iterable[pa.RecordBatch], decoders: KeyValue[ValueDecoder]) -> None:
    for batch in batches:
        for name, decoder in zip(KeyValue._fields, decoders, strict=True):
            decoder.decode(values_of(batch, name, decoder))


def _have_grown(decoders: KeyValue[ValueDecoder]) -> bool:
    return any(decoder.has_grown for decoder in decoders)


def _write_files(
    work: _Work,
    places: FilePlaces,
    name: str,
    batches: Iterator[pa.RecordBatch],
    decoders: KeyValue[ValueDecoder],
    reasons: Counter[str],
) -> list[tuple[str, PutFile]]:
    """Write the batches to files, put them, and count the reasons of dead letters. If a decoder
    finds a new field, look for more in the remaining batches, and put no file."""
    name = attempt_name(name)
    place, schema, by = places.rows, places.rows_schema, places.partition_by
    with (
        task_folder("isotherm-table-") as folder,
        PartitionedFiles(place, schema, folder / f"{name}-rows", by) as rows,
        ParquetFiles(places.dead, places.dead_schema, folder / f"{name}-dead") as dead,
        ParquetFiles(place, schema, folder / f"{name}-gone") as tombstones,
    ):
        for batch in batches:
            decoded = decoded_rows(batch, decoders)
            if _have_grown(decoders):
                _look_through(batches, decoders)
                # Leaving the contexts without `put_all` deletes the files that were put before.
                return []
            dead.write(decoded.dead)
            _count(decoded.dead.column("reason"), reasons)
            if work.newest:
                tombstones.write(decoded.rows.filter(pa.array(decoded.tombstones)))
                rows.write(decoded.rows.filter(pa.array(~decoded.tombstones)))
            else:
                rows.write(decoded.rows)
        kinds = ((_ROWS, rows), (_DEAD, dead), (_TOMBSTONES, tombstones))
        return [(kind, file) for kind, files in kinds for file in files.put_all()]
