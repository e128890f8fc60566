"""Selects the records that `erase` acts on, over the pieces of a tiered log.

Records are read as they lie in the segments: those of aborted and of open transactions too. Keys
are compared as bytes, by a join. An expression is Spark's, over the columns of the source, and only
the columns that it names leave the Python workers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType, IntegerType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from isotherm.errors import ConfigError, PolicyViolationError
from isotherm.record.columns import decode_columns
from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.remote.erasure.redaction import FieldPath, redacted
from isotherm.remote.rewriting.pieces import Piece, located, read_chunks
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.arrow_rows import decoded_columns, numbers, record_batch
from isotherm.spark.jobs.erase_keys import keys_digest, keys_frame
from isotherm.spark.jobs.rewrite_tasks import piece_numbers, piece_tasks
from isotherm.spark.options import SourceOptions
from isotherm.spark.row_schema import COLUMN_TYPES, arrow_schema, schema_of
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from isotherm.record.batch_table import Int64Array
    from isotherm.record.columns import RecordColumns

WHERE_COLUMNS = ("key", "value", "headers", "timestamp", "partition", "offset")
_PIECE = "_piece"
_IS_OPEN = "_is_open"
_SELECTED = "piece int, relative long"
# Functions whose result is another one at another time. Spark counts them as deterministic, because
# they are constant within a query. The proof is another query.
_OF_THE_TIME = re.compile(
    r"\b(now|current_timestamp|current_date|current_time|localtimestamp|curdate|unix_timestamp)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The records that match: all that is given applies. `keys` are sorted. `start` is inclusive,
    `end` exclusive, of offsets and of timestamps (milliseconds)."""

    keys: Sequence[bytes] | None = None
    where: str | None = None
    partitions: frozenset[int] | None = None
    start_offset: Offset | None = None
    end_offset: Offset | None = None
    start_ms: TimestampMs | None = None
    end_ms: TimestampMs | None = None

    @property
    def digest(self) -> str:
        """Tells whether two selectors are equal, without what they select."""
        members = {
            "keys": None if self.keys is None else keys_digest(self.keys),
            "where": self.where,
            "partitions": None if self.partitions is None else sorted(self.partitions),
            "offsets": [self.start_offset, self.end_offset],
            "timestampsMs": [self.start_ms, self.end_ms],
        }
        return hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()

    @property
    def names_whole_keys(self) -> bool:
        """Whether it matches either all records of a key or none."""
        return self.keys is not None and self == Selector(keys=self.keys)

    def may_match(self, piece: Piece) -> bool:
        partition = piece.segment.topic_id_partition.partition
        return (
            (self.partitions is None or partition in self.partitions)
            and (self.end_offset is None or piece.start_offset < self.end_offset)
            and (self.start_offset is None or piece.end_offset > self.start_offset)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSettings:
    """The settings of the tasks. With TOMBSTONE and REDACT a record on which the action would
    change nothing is not selected, so that none is after a run. Picklable."""

    source: ObjectStoreSettings | SourceOptions
    fetch_bytes: int
    action: EraseAction
    fields: tuple[FieldPath, ...] = ()
    keeps_tombstones: bool = False
    """For DROP: raise PolicyViolationError at a selected tombstone."""


def check_where(spark: SparkSession, text: str) -> frozenset[str]:
    """The columns that an expression names. Raises ConfigError if Spark refuses it, or if it may
    select other records the next time."""
    frame = spark.createDataFrame([], schema_of(WHERE_COLUMNS))
    try:
        plan: Any = frame.where(text)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        reason = " ".join(str(error).partition("\n\nJVM stacktrace")[0].split())
        raise ConfigError(
            f"Spark refuses the expression of --where reason={reason!r}"
            f" columns={','.join(WHERE_COLUMNS)}"
        ) from None
    if not plan.deterministic() or _OF_THE_TIME.search(_QUOTED.sub("", text)):
        raise ConfigError(
            "the expression of --where may select other records each time, and the proof selects"
            f" once more value={text!r} hint='write times and numbers as literals'"
        )
    return frozenset(name for name in WHERE_COLUMNS if _is_named(spark, text, name))


def _is_named(spark: SparkSession, text: str, column: str) -> bool:
    # Not a frame that drops the column: Spark would find it below the projection.
    others = schema_of([name for name in WHERE_COLUMNS if name != column])
    try:
        spark.createDataFrame([], others).where(text)
    except PySparkException:
        return True
    return False


def select_records(
    spark: SparkSession, pieces: Sequence[Piece], selector: Selector, settings: ScanSettings
) -> DataFrame:
    """The selected records: `piece`, and `relative`, the offset from the piece's start. Lazy and
    persisted: it runs at the first action.

    Reads each piece once. A task raises CorruptObjectError for damage, and PolicyViolationError for
    a value that is to be redacted and is not JSON.
    """
    pieces = [piece for piece in pieces if selector.may_match(piece)]
    if not pieces:
        return spark.createDataFrame([], _SELECTED)
    named = set() if selector.where is None else set(check_where(spark, selector.where))
    named.add("offset")
    if selector.keys is not None:
        named.add("key")
    if selector.start_ms is not None or selector.end_ms is not None:
        named.add("timestamp")
    if settings.action is EraseAction.REDACT:
        named.add("value")
    rows = schema_of([name for name in COLUMN_TYPES if name in named])
    more = [StructField(_PIECE, IntegerType()), StructField(_IS_OPEN, BooleanType())]
    schema = StructType([*rows.fields, *more])
    scan = _Scan(pieces, settings, arrow_schema(rows), arrow_schema(schema))
    records = piece_tasks(spark, pieces).mapInArrow(scan, schema)
    if settings.action is EraseAction.TOMBSTONE:
        records = records.where(sql.col(_IS_OPEN))
    for condition in _conditions(selector):
        records = records.where(condition)
    if selector.where is not None:
        records = records.where(selector.where)
    if selector.keys is not None:
        records = records.join(keys_frame(spark, list(selector.keys)), "key", "left_semi")
    selected = records.mapInArrow(_Selected.of(pieces, settings), _SELECTED)
    return selected.persist(StorageLevel.DISK_ONLY)


def _conditions(selector: Selector) -> Iterator[Column]:
    offset = sql.col("offset")
    if selector.start_offset is not None:
        yield offset >= selector.start_offset
    if selector.end_offset is not None:
        yield offset < selector.end_offset
    if selector.start_ms is not None:
        yield sql.col("timestamp") >= sql.timestamp_millis(sql.lit(selector.start_ms))
    if selector.end_ms is not None:
        yield sql.col("timestamp") < sql.timestamp_millis(sql.lit(selector.end_ms))


def counts_of_pieces(selected: DataFrame) -> dict[int, int]:
    """The number of selected records of each piece that has some."""
    return {row["piece"]: row["count"] for row in selected.groupBy("piece").count().collect()}


@dataclass(frozen=True, slots=True)
class _Scan:
    """Reads pieces in a task. `rows` are the source's columns, `schema` has those of the job
    too."""

    pieces: Sequence[Piece]
    settings: ScanSettings
    rows: pa.Schema
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = storage_of_job(self.settings.source)
        by_number = {piece.number: piece for piece in self.pieces}
        decoded = decoded_columns(self.rows) | self._looked_at()
        for number in piece_numbers(batches):
            piece = by_number[number]
            for chunk, _ in read_chunks(storage, piece, self.settings.fetch_bytes):
                data = memoryview(chunk.data)[: chunk.size]
                while len(data):
                    with located(piece):
                        columns = decode_columns(data, columns=decoded)
                    if columns.position_end == 0:
                        break
                    data = data[columns.position_end :]
                    yield self._batch(piece, columns)

    def _looked_at(self) -> frozenset[str]:
        if self.settings.action is EraseAction.TOMBSTONE:
            return frozenset({"value", "headers"})
        return frozenset({"value"} if self.settings.keeps_tombstones else ())

    def _batch(self, piece: Piece, columns: RecordColumns) -> pa.RecordBatch:
        rows = record_batch(columns, piece.segment.topic_id_partition.topic_partition, self.rows)
        is_open: Any = np.ones(columns.count, dtype=np.bool_)
        if self._looked_at():
            assert columns.value is not None
            is_open = columns.value.is_valid().to_numpy(zero_copy_only=False)
        if columns.headers is not None and self.settings.action is EraseAction.TOMBSTONE:
            lengths = columns.headers.value_lengths().to_numpy(zero_copy_only=False)
            is_open = is_open | (lengths > 0)
        numbered = numbers(np.full(columns.count, piece.number, np.int32), pa.int32())
        arrays = [*rows.columns, numbered, pa.array(is_open)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True, slots=True)
class _Selected:
    """Turns selected records into rows of `_SELECTED`, in a task."""

    numbers: Int64Array
    starts: Int64Array
    names: dict[int, str]
    settings: ScanSettings

    @classmethod
    def of(cls, pieces: Sequence[Piece], settings: ScanSettings) -> Self:
        """The pieces ascend by their number."""
        return cls(
            np.array([piece.number for piece in pieces], dtype=np.int64),
            np.array([piece.start_offset for piece in pieces], dtype=np.int64),
            {piece.number: str(piece.segment.topic_id_partition) for piece in pieces},
            settings,
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for records in batches:
            batch = self._changing(records) if self._redacts else records
            pieces = batch[_PIECE].to_numpy(zero_copy_only=False)
            offsets = batch["offset"].to_numpy(zero_copy_only=False)
            if self.settings.keeps_tombstones:
                self._refuse_tombstones(batch, pieces, offsets)
            rows = np.searchsorted(self.numbers, pieces)
            yield pa.RecordBatch.from_arrays(
                [pa.array(pieces, pa.int32()), pa.array(offsets - self.starts[rows], pa.int64())],
                names=["piece", "relative"],
            )

    @property
    def _redacts(self) -> bool:
        return self.settings.action is EraseAction.REDACT

    def _changing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records with a field to redact."""
        changes = []
        for row, value in enumerate(batch["value"].to_pylist()):
            try:
                changes.append(value is not None and redacted(value, self.settings.fields) != value)
            except ValueError as error:
                number, offset = batch[_PIECE][row].as_py(), batch["offset"][row].as_py()
                raise PolicyViolationError(
                    "a value that should be redacted is not JSON"
                    f" partition={self.names[number]} offset={offset} reason='{error}'"
                    " hint='--action drop or --action tombstone'"
                ) from None
        return batch.filter(pa.array(changes, pa.bool_()))

    def _refuse_tombstones(self, batch: pa.RecordBatch, pieces: Any, offsets: Any) -> None:
        is_open = batch[_IS_OPEN].to_numpy(zero_copy_only=False)
        if not is_open.all():
            at = int(np.argmin(is_open))
            raise PolicyViolationError(
                "a tombstone of a compacted topic is selected, and without it older records of its"
                f" key would come back partition={self.names[int(pieces[at])]}"
                f" offset={int(offsets[at])} hint='select by --keys alone, or add AND value IS NOT"
                " NULL to --where'"
            )
