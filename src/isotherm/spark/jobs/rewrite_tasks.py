"""The tasks of a job that writes segments again, and stages them in the bucket (compact, erase).

A job finds in its first pass which records of each piece it acts on. The second pass brings their
offsets to the pieces that contain them, by a shuffle of 12 bytes for each record, or with the tasks
if they are few. Each piece is rewritten and staged in one task, which has in memory the offsets of
one piece (8 bytes each) and a few reads. It writes to its local disk.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sql

from isotherm.remote.metadata.wire.serde import decode_event, encode_keyed_event
from isotherm.remote.rewriting.journal import RewriteJournals, SegmentReplacement
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.segment_rewrite import RewriteRules, RewrittenSegment
from isotherm.remote.rewriting.staging import stage_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.cost import parallel_tasks
from isotherm.spark.options import SourceOptions
from isotherm.spark.tier.storage import storage_of_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

    from isotherm.record.batch_table import Int64Array

    PieceFunction: TypeAlias = Callable[[Iterator[Piece]], Iterator[pa.RecordBatch]]

# Approximate bytes of segments in a task. A larger segment has a task of its own.
TARGET_TASK_BYTES = 256 * 1024 * 1024
# There are more tasks than cores, so that small tasks fill the gaps that large ones leave.
_TASKS_PER_CORE = 3

STAGED_COLUMNS = (
    "piece int, segment binary, manifest binary, records_read long, records_kept long,"
    " bytes_read long, bytes_written long"
)
_STAGED_FIELDS: dict[str, pa.DataType] = {
    "piece": pa.int32(),
    "segment": pa.binary(),
    "manifest": pa.binary(),
    "records_read": pa.int64(),
    "records_kept": pa.int64(),
    "bytes_read": pa.int64(),
    "bytes_written": pa.int64(),
}
_STAGED_SCHEMA = pa.schema(_STAGED_FIELDS)

# The offset in a row that stands for no record. Each piece has such a row, so that it is rewritten
# even if no record of it is named.
_NO_RECORD = -1


class StagedPiece(NamedTuple):
    """`replacement` is None if a run in place would not change the piece."""

    piece: Piece
    replacement: SegmentReplacement | None
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The settings of the tasks. Picklable."""

    run: str
    source: ObjectStoreSettings | SourceOptions
    target: ObjectStoreSettings
    rules: RewriteRules
    in_place: bool


class Stager:
    """Stages the rewritten segments of one task."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self.source = storage_of_job(settings.source)
        self._target = open_storage(settings.target)
        self._journals = open_journals(settings.target)

    def new_id(self, piece: Piece) -> RemoteLogSegmentId:
        """The id of the segment that replaces a piece.

        It is a new one in each attempt: two attempts of a task share no object, even at the same
        time. The journal announces those of a failed one, so that they are deleted.
        """
        return RemoteLogSegmentId(
            piece.segment.topic_id_partition, uuid.UUID(bytes=os.urandom(16), version=4)
        )

    def stage(self, piece: Piece, rewritten: RewrittenSegment) -> pa.RecordBatch:
        """Stage and verify a segment, unless a run in place has not changed it. Returns its row of
        STAGED_COLUMNS."""
        settings = self._settings
        staged = None
        if rewritten.is_changed or not settings.in_place:
            staged = stage_segment(
                self._target,
                self._journals,
                settings.run,
                piece.segment,
                rewritten,
                settings.rules.fetch_bytes,
            )
        counts = rewritten.counts
        row = {
            "piece": piece.number,
            "segment": None if staged is None else encode_keyed_event(staged.new),
            "manifest": None if staged is None else staged.manifest,
            "records_read": counts.records_read,
            "records_kept": counts.records_kept,
            "bytes_read": counts.bytes_read,
            "bytes_written": counts.bytes_written,
        }
        return pa.RecordBatch.from_pylist([row], schema=_STAGED_SCHEMA)


def open_storage(settings: ObjectStoreSettings) -> ObjectStoreRemoteStorageManager:
    """The bucket of these settings, to write to. A local folder is created."""
    store = open_object_store(settings, create_folder=True)
    return ObjectStoreRemoteStorageManager(settings, store=store)


def open_journals(settings: ObjectStoreSettings) -> RewriteJournals:
    """The journals in the bucket of these settings. A local folder is created."""
    client = ObjectClient(settings, open_object_store(settings, create_folder=True))
    return RewriteJournals(client, settings.create_layout().root_directory)


def map_pieces(
    spark: SparkSession, pieces: Sequence[Piece], work: PieceFunction, schema: str | StructType
) -> DataFrame:
    """The batches of `work`, which gets the pieces of one task after the other."""
    tasks: dict[int, list[Piece]] = {}
    task_of = _task_of_pieces(spark, pieces)
    for piece in pieces:
        tasks.setdefault(task_of[piece.number], []).append(piece)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = (number for batch in batches for number in batch.column(0).to_numpy().tolist())
        return work(piece for number in numbers for piece in tasks[number])

    # A number in each partition: the function brings the pieces, so nothing needs a shuffle.
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, schema)


def offset_tasks(spark: SparkSession, pieces: Sequence[Piece], offsets: DataFrame) -> DataFrame:
    """The rows of `offsets` (piece int, relative long) in the tasks of their pieces, sorted. Each
    of `pieces` has a row at least; rows of other pieces are left out."""
    tasks = _task_of_pieces(spark, pieces)
    of_tasks = sql.broadcast(_numbered(spark, tasks))
    seeds = of_tasks.withColumn("relative", sql.lit(_NO_RECORD).cast("long"))
    return (
        by_task(seeds.unionByName(offsets.join(of_tasks, "piece")), max(tasks.values()) + 1)
        .sortWithinPartitions("piece", "relative")
        .select("piece", "relative")
    )


def offsets_of_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Int64Array]]:
    """Yield each piece's number and relative offsets, from the rows of `offset_tasks`, in a
    task."""
    number = -1
    parts: list[Int64Array] = []
    for batch in batches:
        pieces = batch["piece"].to_numpy(zero_copy_only=False)
        relative = batch["relative"].to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(pieces)]
        for start, end in pairwise(starts):
            if start == end:
                continue
            if int(pieces[start]) != number:
                if parts:
                    yield number, _records(parts)
                number, parts = int(pieces[start]), []
            # A copy: the slice would keep the memory of the whole batch.
            parts.append(relative[start:end].copy())
    if parts:
        yield number, _records(parts)


def staged_pieces(pieces: Sequence[Piece], rows: Sequence[Row]) -> list[StagedPiece]:
    """The results of the tasks, in the order of `pieces`, from collected rows of
    STAGED_COLUMNS."""
    by_number = {row.piece: row for row in rows}
    return [_staged(piece, by_number[piece.number]) for piece in pieces]


def _staged(piece: Piece, row: Row) -> StagedPiece:
    replacement = None
    if row.segment is not None:
        new = decode_event(bytes(row.segment))
        assert isinstance(new, RemoteLogSegmentMetadata), "written by this module"
        replacement = SegmentReplacement(piece.segment, new, bytes(row.manifest))
    counts = (row.records_read, row.records_kept, row.bytes_read, row.bytes_written)
    return StagedPiece(piece, replacement, *counts)


def by_task(frame: DataFrame, count: int) -> DataFrame:
    """One partition for each task. With PySpark 4.0 several tasks may share a partition."""
    if hasattr(type(frame), "repartitionById"):
        return frame.repartitionById(count, "task")
    return frame.repartition(count, "task")


def _numbered(spark: SparkSession, tasks: Mapping[int, int]) -> DataFrame:
    return spark.createDataFrame(list(tasks.items()), "piece int, task int")


def tasks_for(spark: SparkSession, size: int) -> int:
    """The number of tasks for so many bytes of segments."""
    return max(parallel_tasks(spark) * _TASKS_PER_CORE, -(-size // TARGET_TASK_BYTES))


def _task_of_pieces(spark: SparkSession, pieces: Sequence[Piece]) -> dict[int, int]:
    """Adjacent pieces share a task up to its share of the bytes."""
    sizes = [piece.segment.segment_size_in_bytes for piece in pieces]
    target = -(-sum(sizes) // tasks_for(spark, sum(sizes)))
    tasks: dict[int, int] = {}
    task, size_of_task = 0, 0
    for piece, size in zip(pieces, sizes, strict=True):
        if size_of_task and size_of_task + size > target:
            task, size_of_task = task + 1, 0
        tasks[piece.number] = task
        size_of_task += size
    return tasks


def _records(parts: list[Int64Array]) -> Int64Array:
    together = np.concatenate(parts)
    records: Int64Array = together[together != _NO_RECORD]
    return records
