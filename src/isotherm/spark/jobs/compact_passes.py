"""The two passes of a compaction on Spark.

    pass 1   pieces -> (partition, key, place): the newest place of each key, and the transactions
             that each piece leaves open. The shuffle is on the keys themselves: hashes could
             collide
    pass 2   places -> the pieces that contain them, by a shuffle of 12 bytes for each key. Each
             piece is rewritten and staged

Both passes read each segment once, in ranges. No record becomes a Python object, and the driver
gets nothing that grows with the number of keys. A task of pass 2 has in memory the places of one
piece (8 bytes for each of its keys) and a few reads. It writes to its local disk.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.storagelevel import StorageLevel

from isotherm.remote.compaction.journal import CompactionJournals, SegmentReplacement
from isotherm.remote.compaction.newest_keys import (
    KEY_PLACES,
    PLACE_BITS,
    newest_places,
    place_of,
)
from isotherm.remote.compaction.pieces import Piece
from isotherm.remote.compaction.segment_rewrite import CompactionRules, rewrite_piece
from isotherm.remote.compaction.staging import stage_segment
from isotherm.remote.metadata.wire.serde import decode_event, encode_keyed_event
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.cleaning.transactions import OpenTransactions, open_after
from isotherm.spark.jobs.cost import parallel_tasks
from isotherm.spark.options import SourceOptions
from isotherm.spark.task_folder import task_folder
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import ProducerId, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from isotherm.record.batch_table import Int64Array

# Approximate bytes of segments in a task. A larger segment has a task of its own.
TARGET_TASK_BYTES = 256 * 1024 * 1024
# There are more tasks than cores, so that small tasks fill the gaps that large ones leave.
_TASKS_PER_CORE = 3

_KEYS = "owner int, key binary, place long"
_REWRITTEN = (
    "piece int, segment binary, manifest binary, records_read long, records_kept long,"
    " bytes_read long, bytes_written long"
)
_REWRITTEN_FIELDS: dict[str, pa.DataType] = {
    "piece": pa.int32(),
    "segment": pa.binary(),
    "manifest": pa.binary(),
    "records_read": pa.int64(),
    "records_kept": pa.int64(),
    "bytes_read": pa.int64(),
    "bytes_written": pa.int64(),
}
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SHUFFLE_PARTITIONS_MAX = 8192

# The offset in a row of pass 2 that stands for no record. Each piece has such a row, so that it is
# rewritten even if no record of it remains.
_NO_RECORD = -1


class StagedPiece(NamedTuple):
    """`replacement` is None if compaction in place would not change the piece."""

    piece: Piece
    replacement: SegmentReplacement | None
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """The settings of the tasks. Picklable."""

    run: str
    source: ObjectStoreSettings | SourceOptions
    target: ObjectStoreSettings
    rules: CompactionRules
    in_place: bool


def newest_of_all(
    spark: SparkSession, pieces: Sequence[Piece], settings: PassSettings
) -> DataFrame:
    """Pass 1: the columns owner, key and place. Lazy and persisted: it runs at the first action.

    If `owner` is -1, `place` is that of a key's newest record. If `owner` is the number of a piece,
    `key` is a producer id, and `place` is 1 if the piece leaves its transaction open, else 0.
    """
    if not pieces:
        return spark.createDataFrame([], _KEYS)
    by_number = {piece.number: piece for piece in pieces}
    partitions = sorted({piece.segment.topic_id_partition for piece in pieces}, key=str)
    owners = {partition: number for number, partition in enumerate(partitions)}

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = storage_of_job(settings.source)
        for number in _numbers(batches):
            piece = by_number[number]
            transactions = OpenTransactions()
            tables = newest_places(storage, piece, settings.rules.fetch_bytes, transactions)
            for table in tables:
                yield from _owned(table, owners[piece.segment.topic_id_partition])
            # In the same rows as the keys: one read of a segment gives both.
            yield from _owned(_transactions_table(transactions), _producers_of(number))

    keys = _tasks(spark, pieces).mapInArrow(scan, _KEYS)
    newest = keys.groupBy("owner", "key").agg(sql.max("place").alias("place"))
    is_record = sql.col("owner") >= 0
    return newest.select(
        sql.when(is_record, sql.lit(-1)).otherwise(-1 - sql.col("owner")).alias("owner"),
        sql.when(~is_record, sql.col("key")).alias("key"),
        "place",
    ).persist(StorageLevel.DISK_ONLY)


@contextmanager
def shuffle_partitions(spark: SparkSession, pieces: Sequence[Piece]) -> Iterator[None]:
    """Set the number of shuffle partitions for pass 1, by the bytes of its segments, while it is
    planned. The persisted DataFrame keeps that number."""
    count = -(-sum(piece.segment.segment_size_in_bytes for piece in pieces) // TARGET_TASK_BYTES)
    before = spark.conf.get(_SHUFFLE_PARTITIONS)
    # Spark's default is 200, for any size: a small topic took minutes.
    partitions = min(max(count, parallel_tasks(spark)), _SHUFFLE_PARTITIONS_MAX)
    spark.conf.set(_SHUFFLE_PARTITIONS, str(partitions))
    try:
        yield
    finally:
        spark.conf.set(_SHUFFLE_PARTITIONS, str(before))


def open_producers_of(
    pieces: Sequence[Piece], newest: DataFrame
) -> dict[int, frozenset[ProducerId]]:
    """The producers with an open transaction at the start of each piece, by the number of the
    piece. Pieces without such producers are left out."""
    met: dict[int, dict[ProducerId, bool]] = {}
    for row in newest.where("owner >= 0").collect():
        producers = met.setdefault(row.owner, {})
        producers[int.from_bytes(row.key, "big", signed=True)] = bool(row.place)
    opened: dict[int, frozenset[ProducerId]] = {}
    before: frozenset[ProducerId] = frozenset()
    owner: TopicIdPartition | None = None
    for piece in pieces:
        if piece.segment.topic_id_partition != owner:
            owner, before = piece.segment.topic_id_partition, frozenset()
        if before:
            opened[piece.number] = before
        before = open_after(before, met.get(piece.number, {}))
    return opened


def stage_all(
    spark: SparkSession,
    pieces: Sequence[Piece],
    newest: DataFrame,
    open_producers: Mapping[int, frozenset[ProducerId]],
    settings: PassSettings,
) -> list[StagedPiece]:
    """Pass 2: rewrite, stage and verify every piece, in the order of `pieces`."""
    by_number = {piece.number: piece for piece in pieces}

    def rewrite(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stager = _Stager(settings)
        for number, offsets in _grouped(batches):
            row = stager.stage(by_number[number], offsets, open_producers.get(number, ()))
            yield pa.RecordBatch.from_pylist([row], schema=pa.schema(_REWRITTEN_FIELDS))

    lower = sql.lit(place_of(1, 0) - 1)
    placed = newest.where("owner < 0").select(
        sql.shiftright("place", PLACE_BITS).cast("int").alias("piece"),
        sql.col("place").bitwiseAND(lower).alias("relative"),
    )
    tasks = _task_of_pieces(spark, pieces)
    of_tasks = sql.broadcast(_numbered(spark, tasks))
    seeds = of_tasks.withColumn("relative", sql.lit(_NO_RECORD).cast("long"))
    rows = (
        _by_task(seeds.unionByName(placed.join(of_tasks, "piece")), max(tasks.values()) + 1)
        .sortWithinPartitions("piece", "relative")
        .select("piece", "relative")
        .mapInArrow(rewrite, _REWRITTEN)
        .collect()
    )
    staged = {row.piece: row for row in rows}
    return [_staged(piece, staged[piece.number]) for piece in pieces]


class _Stager:
    """Rewrites and stages pieces in one task of pass 2."""

    def __init__(self, settings: PassSettings) -> None:
        self._settings = settings
        self._source = storage_of_job(settings.source)
        store = open_object_store(settings.target, create_folder=True)
        self._target = ObjectStoreRemoteStorageManager(settings.target, store=store)
        self._journals = open_journals(settings.target)

    def stage(
        self, piece: Piece, newest: Int64Array, open_producers: Collection[ProducerId]
    ) -> dict[str, Any]:
        settings = self._settings
        # A new id in each attempt: two attempts of a task share no object, even at the same time.
        # The journal announces those of a failed one, so that they are deleted.
        new_id = RemoteLogSegmentId(
            piece.segment.topic_id_partition, uuid.UUID(bytes=os.urandom(16), version=4)
        )
        with task_folder("isotherm-compact-") as folder:
            rewritten = rewrite_piece(
                self._source, piece, newest, open_producers, settings.rules, new_id, folder
            )
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
        return {
            "piece": piece.number,
            "segment": None if staged is None else encode_keyed_event(staged.new),
            "manifest": None if staged is None else staged.manifest,
            "records_read": counts.records_read,
            "records_kept": counts.records_kept,
            "bytes_read": counts.bytes_read,
            "bytes_written": counts.bytes_written,
        }


def open_journals(settings: ObjectStoreSettings) -> CompactionJournals:
    """The journals in the bucket of these settings. A local folder is created."""
    client = ObjectClient(settings, open_object_store(settings, create_folder=True))
    return CompactionJournals(client, settings.create_layout().root_directory)


def _staged(piece: Piece, row: Row) -> StagedPiece:
    replacement = None
    if row.segment is not None:
        new = decode_event(bytes(row.segment))
        assert isinstance(new, RemoteLogSegmentMetadata), "written by this module"
        replacement = SegmentReplacement(piece.segment, new, bytes(row.manifest))
    counts = (row.records_read, row.records_kept, row.bytes_read, row.bytes_written)
    return StagedPiece(piece, replacement, *counts)


def _tasks(spark: SparkSession, pieces: Sequence[Piece]) -> DataFrame:
    """The numbers of the pieces as column `piece`, in one partition for each task."""
    tasks = _task_of_pieces(spark, pieces)
    numbered = _numbered(spark, tasks)
    return _by_task(numbered, max(tasks.values()) + 1).select("piece")


def _by_task(frame: DataFrame, count: int) -> DataFrame:
    """One partition for each task. With PySpark 4.0 several tasks may share a partition."""
    if hasattr(type(frame), "repartitionById"):
        return frame.repartitionById(count, "task")
    return frame.repartition(count, "task")


def _numbered(spark: SparkSession, tasks: Mapping[int, int]) -> DataFrame:
    return spark.createDataFrame(list(tasks.items()), "piece int, task int")


def _task_of_pieces(spark: SparkSession, pieces: Sequence[Piece]) -> dict[int, int]:
    """Adjacent pieces share a task up to its share of the bytes."""
    sizes = [piece.segment.segment_size_in_bytes for piece in pieces]
    slots = parallel_tasks(spark) * _TASKS_PER_CORE
    target = min(TARGET_TASK_BYTES, -(-sum(sizes) // slots))
    tasks: dict[int, int] = {}
    task, size_of_task = 0, 0
    for piece, size in zip(pieces, sizes, strict=True):
        if size_of_task and size_of_task + size > target:
            task, size_of_task = task + 1, 0
        tasks[piece.number] = task
        size_of_task += size
    return tasks


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch["piece"].to_numpy(zero_copy_only=False).tolist()


def _producers_of(piece_number: int) -> int:
    """The `owner` of rows about a piece's producers. It is negative, so that it is never the owner
    of rows about keys."""
    return -1 - piece_number


def _owned(table: pa.Table, owner: int) -> Iterator[pa.RecordBatch]:
    owners = pa.array(np.full(len(table), owner, dtype=np.int32))
    yield from table.add_column(0, "owner", owners).to_batches()


def _transactions_table(transactions: OpenTransactions) -> pa.Table:
    rows = [
        {"key": producer_id.to_bytes(8, "big", signed=True), "place": int(is_open)}
        for producer_id, is_open in transactions.items()
    ]
    return pa.Table.from_pylist(rows, schema=KEY_PLACES)


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Int64Array]]:
    """Yield each piece's number and relative offsets, from rows sorted by piece and offset."""
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


def _records(parts: list[Int64Array]) -> Int64Array:
    together = np.concatenate(parts)
    records: Int64Array = together[together != _NO_RECORD]
    return records
