"""Appends to a table what a topic has and the table has not: exactly once, whatever is killed.

1. The driver plans tasks from the offsets that the table covers (topic_plan).
2. Each task turns its records into Parquet files, without rows in the JVM. A task that meets fields
   which the columns lack writes nothing, but looks through all of its records.
3. If there are such fields, the table gets their columns, and those tasks run again. Nearly always
   once: a field inside of one whose type is disputed may be found later.
4. One commit makes all files visible, with the offsets that they cover (topic_table).

A file without a commit is no part of the table; a killed run leaves such files behind.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from isotherm.errors import TableOvertakenError
from isotherm.spark.driver.topic_plan import TopicPlan
from isotherm.spark.jobs.cost import Cost
from isotherm.spark.jobs.slice_fold import each_of
from isotherm.spark.options import SourceOptions
from isotherm.spark.source_task import TaskPartition, read_partition
from isotherm.spark.tables.parquet_files import ParquetFiles, PutFile
from isotherm.spark.tables.table_rows import (
    SOURCE_SCHEMA,
    ValueDecoder,
    decoded_rows,
    decoder_of,
)
from isotherm.spark.tables.topic_table import FilePlaces, TableCommit, TopicTable
from isotherm.spark.tables.value_types import ValueType, merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS, _DEAD, _COLUMNS = "rows", "dead", "columns"
_VALUE = "value"
_FIELDS: list[Any] = [
    ("task", pa.int32()),
    ("kind", pa.string()),
    ("name", pa.string()),
    ("rows", pa.int64()),
    ("size", pa.int64()),
    ("type", pa.binary()),
]
_TOLD = pa.schema(_FIELDS)
_SAMPLED_BATCHES = 4
"""Of each task, for the fields of a table without any; one ranged GET has so many."""


@dataclass(frozen=True, slots=True)
class TableRun:
    """What a run added: counts, and bytes of Parquet."""

    rows: int
    dead_letters: int
    files: int
    bytes_written: int


@dataclass(frozen=True)
class _Work:
    """What every task is given. Without `places` it looks for fields in its first batches."""

    options: SourceOptions
    value_format: str
    fixed: ValueType
    known: ValueType
    run: str
    places: FilePlaces | None = None


class _Written(NamedTuple):
    """The files of some tasks, and the types of those that met new fields instead."""

    rows: Sequence[PutFile]
    dead: Sequence[PutFile]
    grown: Mapping[int, ValueType]


def append(
    spark: SparkSession,
    options: SourceOptions,
    plan: TopicPlan,
    table: TopicTable,
    value_format: str,
    run: str,
    tell: Callable[[str], None],
) -> TableRun:
    """Append the records of the plan to the table, which exists, in one commit. `run` is part of the
    names of files: no other run has it. `tell` is given the present step.

    Raises TableOvertakenError if another run was faster: then the files of this one are deleted.
    """
    every = dict(enumerate(plan.tasks))
    fixed = table.value_type()
    work = _Work(options, value_format, fixed, fixed, run)
    if fixed is None:
        tell("fields are looked for")
        work = replace(work, known=_union(None, _run_tasks(spark, work, every).grown))
    rows: list[PutFile] = []
    dead: list[PutFile] = []
    left = every
    # Each round but the last finds a field.
    while left:
        work = _placed(work, table)
        tell("files are written")
        written = _run_tasks(spark, work, left)
        rows += written.rows
        dead += written.dead
        left = {number: every[number] for number in written.grown}
        work = replace(work, known=_union(work.known, written.grown))
    tell("the table is committed")
    _commit(table, plan, rows, dead, work)
    files = [*rows, *dead]
    return TableRun(
        rows=sum(each.rows for each in rows),
        dead_letters=sum(each.rows for each in dead),
        files=len(files),
        bytes_written=sum(each.size for each in files),
    )


def cost_of_table(plan: TopicPlan, options: SourceOptions) -> Cost:
    """Of the reads of a run: ranged GETs, and an index and a manifest for each part of a segment."""
    reads = [read for each in plan.tasks for read in each.task.reads]
    ranges = sum(-(-read.size_in_bytes // options.fetch_bytes) for read in reads)
    return Cost(
        gets=ranges + 2 * len(reads), bytes_read=plan.size_in_bytes, tasks=max(len(plan.tasks), 1)
    )


def _placed(work: _Work, table: TopicTable) -> _Work:
    """The work of writing, after the table has all columns of `known`: from now on they are fixed."""
    places = table.places(work.known)
    known = table.value_type()
    return replace(work, places=places, fixed=known, known=known)


def _commit(
    table: TopicTable,
    plan: TopicPlan,
    rows: Sequence[PutFile],
    dead: Sequence[PutFile],
    work: _Work,
) -> None:
    covered = table.covered()
    covered |= {each.topic_partition.partition: each.end for each in plan.ranges}
    names = [each.name for each in rows], [each.name for each in dead]
    try:
        table.commit(TableCommit(*names, covered))
    except TableOvertakenError:
        assert work.places is not None
        work.places.rows.delete(names[0])
        work.places.dead.delete(names[1])
        raise
    table.settle()


def _union(known: ValueType, found: Mapping[int, ValueType]) -> ValueType:
    """In the order of tasks, which is that of partitions and offsets."""
    return reduce(lambda before, number: merged(before, found[number], known), sorted(found), known)


def _run_tasks(spark: SparkSession, work: _Work, tasks: Mapping[int, TaskPartition]) -> _Written:
    numbers = sorted(tasks)

    def run(index: int) -> Iterator[pa.RecordBatch]:
        number = numbers[index]
        told = list(_run_task(work, number, tasks[number]))
        yield from pa.Table.from_pylist(told, schema=_TOLD).to_batches()

    # Each task puts files, so it must run once: collect, and no second action.
    found = each_of(spark, len(numbers), run, _TOLD).collect()
    found.sort(key=lambda row: (row.task, row.name))
    return _Written(
        [PutFile(row.name, row.rows, row.size) for row in found if row.kind == _ROWS],
        [PutFile(row.name, row.rows, row.size) for row in found if row.kind == _DEAD],
        {row.task: _value_type(row.type) for row in found if row.kind == _COLUMNS},
    )


def _value_type(told: bytes) -> ValueType:
    schema = pa.ipc.read_schema(pa.py_buffer(told))
    return schema.field(_VALUE).type if _VALUE in schema.names else None


def _run_task(work: _Work, number: int, task: TaskPartition) -> Iterator[dict[str, Any]]:
    """In an executor. The files that were put, or the type with fields that the columns lack."""
    decoder = decoder_of(work.value_format, work.fixed, work.known)
    put: list[tuple[str, PutFile]] = []
    with closing(_batches(work.options, task)) as batches:
        if work.places is None:
            _look_through(itertools.islice(batches, _SAMPLED_BATCHES), decoder)
        else:
            put = _write_files(work.places, f"{work.run}-{number:05}", batches, decoder)
    if work.places is None or decoder.has_grown:
        schema = pa.schema([] if decoder.known is None else [pa.field(_VALUE, decoder.known)])
        yield {"task": number, "kind": _COLUMNS, "type": schema.serialize().to_pybytes()}
    for kind, file in put:
        yield {"task": number, "kind": kind, **file._asdict()}


def _batches(options: SourceOptions, task: TaskPartition) -> Generator[pa.RecordBatch]:
    yield from read_partition(options, SOURCE_SCHEMA, task)


def _look_through(batches: Iterable[pa.RecordBatch], decoder: ValueDecoder) -> None:
    for batch in batches:
        decoder.decode(batch.column(_VALUE))


def _write_files(
    places: FilePlaces, name: str, batches: Iterator[pa.RecordBatch], decoder: ValueDecoder
) -> list[tuple[str, PutFile]]:
    """The files; none if the decoder grows: then all batches have been looked through."""
    from pyspark import TaskContext

    context = TaskContext.get()
    # Spark may try a task again, and run two at a time.
    name = f"{name}-{context.taskAttemptId() if context is not None else 0}"
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-table-") as folder,
        ParquetFiles(places.rows, places.rows_schema, Path(folder) / f"{name}-rows") as rows,
        ParquetFiles(places.dead, places.dead_schema, Path(folder) / f"{name}-dead") as dead,
    ):
        for batch in batches:
            decoded = decoded_rows(batch, decoder)
            if decoder.has_grown:
                _look_through(batches, decoder)
                return []
            rows.write(decoded.rows)
            dead.write(decoded.dead)
        put = [(_ROWS, each) for each in rows.put_all()]
        return put + [(_DEAD, each) for each in dead.put_all()]
