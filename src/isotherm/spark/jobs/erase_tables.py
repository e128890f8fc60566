"""Deletes the rows of erased records from tables that `isotherm pipeline table` made, and looks
whether any is left.

A row is found by its partition and offset, because its key and value may be decoded. One task reads
these two columns of one file, and writes the file again if it has such rows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute, parquet

from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    PolicyViolationError,
    TableOvertakenError,
)
from isotherm.remote.erasure.certificate import ErasedTable
from isotherm.spark.jobs.rewritten_files import Keeps, rewrite_file
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.tables.erasable_files import ErasableFiles
from isotherm.spark.tables.open_table import TablePlace, open_table
from isotherm.spark.tables.parquet_files import Place, PutFile
from isotherm.spark.tables.topic_table import TopicTable, check_topic
from isotherm.spark.task_folder import task_folder
from isotherm.types import TopicIdPartition, uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.record.batch_table import Int64Array
    from isotherm.remote.rewriting.pieces import Piece
    from isotherm.spark.jobs.erase_selection import Selection

TABLE_RECORDS_MAX = 20_000_000
"""The most erased records whose rows are looked for. Each task has their offsets in memory, 8 bytes
each."""

ErasedOffsets: TypeAlias = "Mapping[TopicIdPartition, Int64Array]"
"""The offsets of the erased records, sorted."""

_FIELDS: list[Any] = [
    ("file", pa.int32()),
    ("matched", pa.int64()),
    ("name", pa.string()),
    ("rows", pa.int64()),
    ("size", pa.int64()),
]
_REPORT = pa.schema(_FIELDS)
_OFFSETS_FIELDS: list[Any] = [
    ("topicId", pa.string()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
]
OFFSETS_SCHEMA = pa.schema(_OFFSETS_FIELDS)


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table of one of the topics. `partitions` are the topic's erased ones."""

    table: TopicTable
    topic: str
    name: str
    table_format: str


@dataclass(frozen=True, slots=True)
class _Made:
    """What became of one file with `matched` rows. `put` are its new files."""

    matched: int
    put: Sequence[PutFile]


def open_tables(
    places: Sequence[TablePlace], partitions: Iterable[TopicIdPartition], *, writes: bool
) -> list[OpenedTable]:
    """Open the tables. Raises ConfigError if one does not exist, or is of another topic."""
    ids = {partition.topic: uuid_to_text(partition.topic_id) for partition in partitions}
    opened = []
    for place in places:
        assert place.name is not None, "the command names each"
        table = open_table("", place, writes=writes)
        identity = table.identity()
        if identity is None:
            raise ConfigError(f"there is no such table table={place.name} hint='--warehouse'")
        if identity.topic not in ids:
            raise ConfigError(
                f"the table is of a topic that is not erased table={place.name}"
                f" its_topic={identity.topic} topics={','.join(sorted(ids))}"
            )
        check_topic(identity, identity.topic, ids[identity.topic], place.name)
        opened.append(OpenedTable(table, identity.topic, place.name, place.table_format))
    return opened


def erased_offsets(
    selection: Selection, counts: Mapping[int, int], pieces: Sequence[Piece]
) -> ErasedOffsets:
    """The offsets of selected records, of which each piece has some number. Raises
    PolicyViolationError above TABLE_RECORDS_MAX."""
    _check_count(sum(counts.values()))
    relative = selection.offsets_of_pieces()
    selected: dict[TopicIdPartition, list[Int64Array]] = {}
    for piece in pieces:
        if piece.number in relative:
            offsets = relative[piece.number] + piece.start_offset
            selected.setdefault(piece.segment.topic_id_partition, []).append(offsets)
    return {owner: np.sort(np.concatenate(parts)) for owner, parts in selected.items()}


def joined_offsets(earlier: ErasedOffsets, later: ErasedOffsets) -> ErasedOffsets:
    """The offsets of two passes of a run. Raises PolicyViolationError above TABLE_RECORDS_MAX."""
    _check_count(sum(map(len, (*earlier.values(), *later.values()))))
    joined = dict(earlier)
    for owner, offsets in later.items():
        joined[owner] = np.union1d(joined[owner], offsets) if owner in joined else offsets
    return joined


def _check_count(records: int) -> None:
    if records > TABLE_RECORDS_MAX:
        raise PolicyViolationError(
            "too many records are selected to look for their rows in tables"
            f" limit={TABLE_RECORDS_MAX} hint='several runs, with --partitions or --until'"
        )


def offsets_table(erased: ErasedOffsets) -> pa.Table:
    """The offsets as rows of OFFSETS_SCHEMA."""
    parts = [
        pa.table(
            [
                pa.array([uuid_to_text(owner.topic_id)] * len(offsets), pa.string()),
                pa.array([owner.topic] * len(offsets), pa.string()),
                pa.array(np.full(len(offsets), owner.partition, np.int32)),
                pa.array(offsets, pa.int64()),
            ],
            schema=OFFSETS_SCHEMA,
        )
        for owner, offsets in erased.items()
    ]
    return pa.concat_tables(parts) if parts else OFFSETS_SCHEMA.empty_table()


def read_offsets(data: bytes) -> ErasedOffsets:
    """Inverse of `offsets_table`, from the file of a run. Raises CorruptMetadataError if it is
    another one."""
    try:
        table = parquet.read_table(io.BytesIO(data)).select(OFFSETS_SCHEMA.names)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMetadataError("the offsets of the erasure cannot be read") from error
    owners = table.group_by(["topicId", "topic", "partition"]).aggregate([]).to_pylist()
    erased = {}
    for row in owners:
        owner = TopicIdPartition(uuid_from_text(row["topicId"]), row["topic"], row["partition"])
        condition = (compute.field("topicId") == row["topicId"]) & (
            compute.field("partition") == row["partition"]
        )
        erased[owner] = np.sort(table.filter(condition).column("offset").to_numpy())
    return erased


def count_rows(
    spark: SparkSession, tables: Sequence[OpenedTable], erased: ErasedOffsets
) -> list[ErasedTable]:
    """Count the rows of erased records, as `left`: in the newest state of each table and of its
    dead letters, in older ones, and in files that no state names."""
    counted = []
    for table in tables:
        _read(table)
        left = 0
        for files in table.table.erasable():
            files.read()
            every = {*files.files(), *files.older(), *files.unnamed()}
            made = _look(spark, files, sorted(every), _of_topic(erased, table.topic))
            left += sum(one.matched for one in made.values())
        counted.append(ErasedTable(name=table.name, table_format=table.table_format, left=left))
    return counted


def erase_rows(
    spark: SparkSession,
    tables: Sequence[OpenedTable],
    erased: ErasedOffsets,
    run: str,
    progress: Callable[[str], None],
) -> list[ErasedTable]:
    """Delete the rows of erased records, expire the older states of the tables, and delete the
    files that no state names, if they have such rows. `run` is part of the names of files.

    May be repeated. Raises TableOvertakenError if another program changed a table meanwhile.
    """
    done = []
    for table in tables:
        progress(f"deleting rows of the table {table.name}")
        _read(table)
        table.table.settle()
        offsets = _of_topic(erased, table.topic)
        deleted = 0
        for number, files in enumerate(table.table.erasable()):
            deleted += _erase_rows_of(spark, files, offsets, f"{run}-erased-{number}")
        done.append(ErasedTable(name=table.name, table_format=table.table_format, deleted=deleted))
    return done


def with_left(
    tables: Sequence[ErasedTable], counted: Sequence[ErasedTable]
) -> tuple[ErasedTable, ...]:
    """The tables with the rows that were counted. Raises ConfigError if they are others."""
    if [table.name for table in tables] != [table.name for table in counted]:
        raise ConfigError(
            f"the run erased rows of these tables tables={','.join(table.name for table in tables)}"
            " hint='give --table for each of them'"
        )
    return tuple(replace(table, left=now.left) for table, now in zip(tables, counted, strict=True))


def _read(opened: OpenedTable) -> None:
    if opened.table.identity() is None:
        raise TableOvertakenError(f"the table was dropped meanwhile table={opened.name}")


def _erase_rows_of(
    spark: SparkSession,
    files: ErasableFiles,
    erased: Mapping[int, Int64Array],
    name: str,
) -> int:
    files.read()
    made = _look(spark, files, files.files(), erased, name)
    added = [file.name for one in made.values() for file in one.put]
    try:
        files.replace(added, list(made))
    # After no other error: the commit may have been made all the same.
    except TableOvertakenError:
        files.place.delete(added)
        raise
    files.read()
    files.place.delete(list(_look(spark, files, files.unnamed(), erased)))
    return sum(one.matched for one in made.values())


def _look(
    spark: SparkSession,
    files: ErasableFiles,
    names: Sequence[str],
    erased: Mapping[int, Int64Array],
    name: str | None = None,
) -> dict[str, _Made]:
    """The files that have rows of erased records, by name. With `name` they are written again
    without these."""
    if not names or not erased:
        return {}
    place, schema = files.place, files.schema
    is_kept = _Kept(erased)

    def run(number: int) -> Iterator[pa.RecordBatch]:
        file = names[number]
        matched = _count(place, file, is_kept)
        if not matched:
            return
        put: list[PutFile] = []
        if name is not None and schema is not None:
            put = rewrite_file(place, file, is_kept, schema, f"{name}-{number:05}")
        elif name is not None:
            _write_over(place, file, is_kept)
        base = {"file": number, "matched": matched}
        rows = [{**base, **put_file._asdict()} for put_file in put] or [base]
        yield from pa.Table.from_pylist(rows, schema=_REPORT).to_batches()

    # A second action would run the tasks again and put their files twice, so this is the only one.
    made: dict[str, _Made] = {}
    for row in each_of(spark, len(names), run, _REPORT).collect():
        one = made.setdefault(names[row.file], _Made(row.matched, []))
        if row.name is not None:
            made[names[row.file]] = _Made(
                one.matched, [*one.put, PutFile(row.name, row.rows, row.size)]
            )
    return made


@dataclass(frozen=True, slots=True)
class _Kept:
    """Tells which rows of a batch stay: those whose record was not erased."""

    erased: Mapping[int, Int64Array]

    def __call__(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        partitions, offsets = (batch.column(n).to_numpy() for n in ("partition", "offset"))
        kept = np.ones(batch.num_rows, np.bool_)
        for partition in np.unique(partitions).tolist():
            gone = self.erased.get(partition)
            if gone is not None:
                at = np.minimum(np.searchsorted(gone, offsets), len(gone) - 1)
                kept &= (partitions != partition) | (gone[at] != offsets)
        return kept


def _count(place: Place, file: str, is_kept: Keeps) -> int:
    with place.open(file) as source:
        places = parquet.ParquetFile(source).iter_batches(columns=["partition", "offset"])
        return sum(int(np.count_nonzero(~is_kept(batch))) for batch in places)


def _write_over(place: Place, file: str, is_kept: Keeps) -> None:
    """Put the file again under its name, without rows that do not stay. It may have no row then."""
    with task_folder("isotherm-table-") as folder:
        path = folder / "rewritten.parquet"
        with place.open(file) as source:
            reader = parquet.ParquetFile(source)
            with parquet.ParquetWriter(path, reader.schema_arrow, compression="zstd") as writer:
                for number in range(reader.num_row_groups):
                    for batch in reader.read_row_group(number).combine_chunks().to_batches():
                        writer.write_batch(batch.filter(pa.array(is_kept(batch))))
        place.put(file, path)


def _of_topic(erased: ErasedOffsets, topic: str) -> dict[int, Int64Array]:
    return {
        owner.partition: offsets
        for owner, offsets in erased.items()
        if owner.topic == topic and len(offsets)
    }
