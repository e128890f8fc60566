"""The two passes of a compaction on Spark.

    pass 1   pieces -> (partition, key, place): the newest place of each key, and the transactions
             that each piece leaves open. The shuffle is on the keys themselves: hashes could
             collide
    pass 2   places -> the pieces that contain them (rewrite_tasks). Each piece is rewritten and
             staged

Both passes read each segment once, in ranges. No record becomes a Python object, and the driver
gets nothing that grows with the number of keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.storagelevel import StorageLevel

from isotherm.remote.compaction.compacted_piece import CompactionRules, compact_piece
from isotherm.remote.compaction.newest_keys import (
    KEY_PLACES,
    PLACE_BITS,
    newest_places,
    place_of,
)
from isotherm.remote.rewriting.pieces import Piece
from isotherm.segment.cleaning.transactions import OpenTransactions, open_after
from isotherm.spark.jobs.cost import parallel_tasks
from isotherm.spark.jobs.rewrite_tasks import (
    STAGED_COLUMNS,
    TARGET_TASK_BYTES,
    StagedPiece,
    Stager,
    TaskSettings,
    map_pieces,
    offset_tasks,
    offsets_of_pieces,
    staged_pieces,
)
from isotherm.spark.task_folder import task_folder
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import ProducerId, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS = "owner int, key binary, place long"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_SHUFFLE_PARTITIONS_MAX = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings(TaskSettings):
    """The settings of the tasks. Picklable."""

    rules: CompactionRules


def newest_of_all(
    spark: SparkSession, pieces: Sequence[Piece], settings: PassSettings
) -> DataFrame:
    """Pass 1: the columns owner, key and place. Lazy and persisted: it runs at the first action.

    If `owner` is -1, `place` is that of a key's newest record. If `owner` is the number of a piece,
    `key` is a producer id, and `place` is 1 if the piece leaves its transaction open, else 0.
    """
    if not pieces:
        return spark.createDataFrame([], _KEYS)
    partitions = sorted({piece.segment.topic_id_partition for piece in pieces}, key=str)
    owners = {partition: number for number, partition in enumerate(partitions)}

    def scan(of_task: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        storage = storage_of_job(settings.source)
        for piece in of_task:
            transactions = OpenTransactions()
            tables = newest_places(storage, piece, settings.rules.fetch_bytes, transactions)
            for table in tables:
                yield from _owned(table, owners[piece.segment.topic_id_partition])
            # In the same rows as the keys: one read of a segment gives both.
            yield from _owned(_transactions_table(transactions), _producers_of(piece.number))

    keys = map_pieces(spark, pieces, scan, _KEYS)
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
        stager = Stager(settings)
        for number, offsets in offsets_of_pieces(batches):
            piece = by_number[number]
            opened = open_producers.get(number, ())
            with task_folder("isotherm-compact-") as folder:
                rewritten = compact_piece(
                    stager.source,
                    piece,
                    offsets,
                    opened,
                    settings.rules,
                    stager.new_id(piece),
                    folder,
                )
                row = stager.stage(piece, rewritten)
            yield row

    lower = sql.lit(place_of(1, 0) - 1)
    placed = newest.where("owner < 0").select(
        sql.shiftright("place", PLACE_BITS).cast("int").alias("piece"),
        sql.col("place").bitwiseAND(lower).alias("relative"),
    )
    tasks = offset_tasks(spark, pieces, placed)
    return staged_pieces(pieces, tasks.mapInArrow(rewrite, STAGED_COLUMNS).collect())


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
