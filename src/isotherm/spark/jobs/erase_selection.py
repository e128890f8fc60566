"""Selects the records that `erase` acts on, over the pieces of a tiered log.

Records are read as they lie in the segments: those of aborted and of open transactions too. Keys
are compared as bytes: the Python workers look up few keys, and Spark joins many. An expression is
Spark's, over the columns of the source, and only the columns that it names leave the workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    StructField,
    StructType,
)
from pyspark.storagelevel import StorageLevel

from isotherm.errors import PolicyViolationError
from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.remote.erasure.redaction import FieldPath, redacted
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.arrow_rows import (
    TIMESTAMP_MS_MAX,
    ArrowArray,
    decoded_columns,
    numbers,
    record_batch,
)
from isotherm.spark.jobs.erase_keys import keys_digest, keys_frame
from isotherm.spark.jobs.erase_values import (
    DecodedAs,
    check_has_fields,
    decoded_values,
    piece_columns,
)
from isotherm.spark.jobs.erase_where import check_where, where_schema
from isotherm.spark.jobs.rewrite_tasks import map_pieces
from isotherm.spark.numbered_tasks import spark_schema
from isotherm.spark.options import SourceOptions
from isotherm.spark.row_schema import COLUMN_TYPES, arrow_schema, schema_of
from isotherm.spark.tables.value_decoder import ValueDecoder
from isotherm.spark.tables.value_formats import RAW, RAW_FORMAT, ValueFormat
from isotherm.spark.tables.value_types import ValueType
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from isotherm.record.batch_table import Int64Array
    from isotherm.record.columns import RecordColumns

# The stubs of these lack types that they take.
pc: Any = pyarrow.compute

_PIECE = "_piece"
_IS_OPEN = "_is_open"
_IS_DEAD = "_is_dead"
_BYTES = "_bytes"
_SELECTED = "piece int, is_dead boolean, records long, first long, offsets binary"
_SELECTED_FIELDS: dict[str, pa.DataType] = {
    "piece": pa.int32(),
    "is_dead": pa.bool_(),
    "records": pa.int64(),
    "first": pa.int64(),
    "offsets": pa.binary(),
}
KEYS_IN_WORKERS_MAX = 10_000
"""The most keys that the Python workers look up. Each batch of records builds a table of them, in
about a millisecond for this many. Spark joins more keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The records that match: all that is given applies. `keys` are sorted. `start` is inclusive,
    `end` exclusive, of offsets and of timestamps (milliseconds). `where` reads values as
    `value_format` decodes them, to the type `value_type` once it is found."""

    keys: Sequence[bytes] | None = None
    where: str | None = None
    partitions: frozenset[int] | None = None
    start_offset: Offset | None = None
    end_offset: Offset | None = None
    start_ms: TimestampMs | None = None
    end_ms: TimestampMs | None = None
    value_format: ValueFormat = RAW_FORMAT
    value_type: ValueType = None

    @property
    def decodes(self) -> bool:
        return self.where is not None and self.value_format.name != RAW

    @property
    def digest(self) -> str:
        """Tells whether two selectors are equal, without what they select."""
        members = {
            "keys": None if self.keys is None else keys_digest(self.keys),
            "where": self.where,
            "partitions": None if self.partitions is None else sorted(self.partitions),
            "offsets": [self.start_offset, self.end_offset],
            "timestampsMs": [self.start_ms, self.end_ms],
            "value": self.value_format.name,
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


@dataclass(frozen=True, slots=True)
class UndecodedValues:
    """How many of the records that were looked at have a value that cannot be decoded, in one
    piece, and where the first one is. They do not match."""

    count: int
    first: Offset


class _Columns(NamedTuple):
    """The columns that are read of the source, and those that Spark gets."""

    rows: pa.Schema
    schema: StructType
    decoded: DecodedAs | None


def _columns_read(spark: SparkSession, selector: Selector, settings: ScanSettings) -> _Columns:
    decoded = None
    value_type = COLUMN_TYPES["value"]
    if selector.decodes:
        decoded = DecodedAs(
            selector.value_format, check_has_fields(selector.value_type, selector.value_format)
        )
        value_type = spark_schema(pa.schema([("value", decoded.value_type)]))["value"].dataType
    named = {"offset"}
    if selector.where is not None:
        named |= check_where(spark, selector.where, value_type)
    if "value" not in named:
        decoded = None
    if selector.keys is not None:
        named.add("key")
    redacts = settings.action is EraseAction.REDACT
    if redacts:
        named.add("value")
    read = named if decoded is None else named | decoded.source_columns
    shown = value_type if decoded is not None else COLUMN_TYPES["value"]
    fields = where_schema([name for name in COLUMN_TYPES if name in named], shown).fields
    if decoded is not None and redacts:
        fields = [*fields, StructField(_BYTES, BinaryType())]
    more = [
        StructField(_PIECE, IntegerType()),
        StructField(_IS_OPEN, BooleanType()),
        StructField(_IS_DEAD, BooleanType()),
    ]
    rows = arrow_schema(schema_of([name for name in COLUMN_TYPES if name in read]))
    return _Columns(rows, StructType([*fields, *more]), decoded)


class Selection(NamedTuple):
    """The selected records of some pieces. A row of `rows` has some of one piece: their number, the
    first offset, and the offsets, 64-bit integers in the machine's order of bytes, all from the
    piece's start. With `is_dead` they do not match: their values cannot be decoded.

    `rows` are lazy and persisted: they run at the first action. They are few if there is none but
    for what was read at once.
    """

    rows: DataFrame
    are_few: bool

    def counts_of_pieces(self) -> tuple[dict[int, int], dict[int, UndecodedValues]]:
        """The number of selected records of each piece that has some, and of values that cannot be
        decoded. There `first` is from the piece's start."""
        rows = self.rows.select("piece", "is_dead", "records", "first")
        if not self.are_few:
            rows = rows.groupBy("piece", "is_dead").agg(
                sql.sum("records").alias("records"), sql.min("first").alias("first")
            )
        counts: dict[int, int] = {}
        undecoded: dict[int, UndecodedValues] = {}
        for row in rows.toArrow().to_pylist():
            piece, records, first = row["piece"], row["records"], row["first"]
            if not row["is_dead"]:
                counts[piece] = counts.get(piece, 0) + records
                continue
            before = undecoded.get(piece, UndecodedValues(0, first))
            undecoded[piece] = UndecodedValues(before.count + records, min(before.first, first))
        return counts, undecoded

    @property
    def offsets(self) -> DataFrame:
        """The columns `piece` and `offsets` of the records that match."""
        return self.rows.where("NOT is_dead").select("piece", "offsets")

    def offsets_of_pieces(self) -> dict[int, Int64Array]:
        """The offsets of the records that match, sorted. The caller has counted them."""
        parts: dict[int, list[Int64Array]] = {}
        for row in self.offsets.toArrow().to_pylist():
            parts.setdefault(row["piece"], []).append(np.frombuffer(row["offsets"], np.int64))
        return {piece: np.sort(np.concatenate(offsets)) for piece, offsets in parts.items()}

    @property
    def records(self) -> DataFrame:
        """A row for each record that matches: `piece`, and `relative`, its offset."""
        return self.offsets.mapInArrow(_records, "piece int, relative long")

    def unpersist(self) -> None:
        self.rows.unpersist()


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            relative = np.frombuffer(row["offsets"], np.int64)
            piece = np.full(len(relative), row["piece"], np.int32)
            yield pa.RecordBatch.from_pydict({"piece": piece, "relative": relative})


def select_records(
    spark: SparkSession, pieces: Sequence[Piece], selector: Selector, settings: ScanSettings
) -> Selection:
    """The selected records.

    Reads each piece once. A task raises CorruptObjectError for damage, and PolicyViolationError for
    a value that is to be redacted and is not JSON.
    """
    pieces = [piece for piece in pieces if selector.may_match(piece)]
    if not pieces:
        return Selection(spark.createDataFrame([], _SELECTED), are_few=True)
    read = _columns_read(spark, selector, settings)
    keys = selector.keys
    looked_up: ArrowArray | None = None
    if keys is not None and len(keys) <= KEYS_IN_WORKERS_MAX:
        looked_up, keys = pa.array(keys, pa.binary()), None
    schema = arrow_schema(read.schema)
    times = (selector.start_ms, selector.end_ms)
    scan = _Scan(settings, read.rows, schema, read.decoded, looked_up, times)
    select = _Selected.of(pieces, settings)
    conditions = list(_conditions(selector))
    if selector.where is None and keys is None and not conditions:
        # Nothing is Spark's to compute, so no second worker gets the records from the JVM.
        selected = map_pieces(spark, pieces, lambda of_task: select(scan(of_task)), _SELECTED)
        return Selection(selected.persist(StorageLevel.DISK_ONLY), are_few=True)
    records = map_pieces(spark, pieces, scan, read.schema)
    for condition in conditions:
        records = records.where(condition)
    if selector.where is not None:
        records = records.where(sql.col(_IS_DEAD) | sql.expr(selector.where))
    if keys is not None:
        records = records.join(keys_frame(spark, list(keys)), "key", "left_semi")
    selected = records.mapInArrow(select, _SELECTED).persist(StorageLevel.DISK_ONLY)
    return Selection(selected, are_few=False)


def _conditions(selector: Selector) -> Iterator[Column]:
    offset = sql.col("offset")
    if selector.start_offset is not None:
        yield offset >= selector.start_offset
    if selector.end_offset is not None:
        yield offset < selector.end_offset


@dataclass(frozen=True, slots=True)
class _Scan:
    """Reads pieces in a task. `rows` are the source's columns, `schema` has those of the job
    too."""

    settings: ScanSettings
    rows: pa.Schema
    schema: pa.Schema
    decoded: DecodedAs | None
    keys: ArrowArray | None
    times: tuple[TimestampMs | None, TimestampMs | None]
    """Records from the first time on, and before the second one. In milliseconds: a record's time
    may be too far for Spark's type."""

    def __call__(self, pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        storage = storage_of_job(self.settings.source)
        names = decoded_columns(self.rows) | self._looked_at()
        if self.times != (None, None):
            names |= {"timestamp"}
        decoder = None if self.decoded is None else self.decoded.decoder()
        for piece in pieces:
            for columns in piece_columns(storage, piece, self.settings.fetch_bytes, names):
                batch = self._batch(piece, columns, decoder)
                if batch.num_rows:
                    yield batch

    def _looked_at(self) -> frozenset[str]:
        if self.settings.action is EraseAction.TOMBSTONE:
            return frozenset({"value", "headers"})
        return frozenset({"value"} if self.settings.keeps_tombstones else ())

    def _batch(
        self, piece: Piece, columns: RecordColumns, decoder: ValueDecoder | None
    ) -> pa.RecordBatch:
        shown = _with_times_of_spark(columns)
        rows = record_batch(shown, piece.segment.topic_id_partition.topic_partition, self.rows)
        is_open: Any = np.ones(columns.count, dtype=np.bool_)
        if self._looked_at():
            assert columns.value is not None
            is_open = columns.value.is_valid().to_numpy(zero_copy_only=False)
        if columns.headers is not None and self.settings.action is EraseAction.TOMBSTONE:
            lengths = columns.headers.value_lengths().to_numpy(zero_copy_only=False)
            is_open = is_open | (lengths > 0)
        is_in_time = self._is_in_time(columns)
        if self.keys is not None:
            # Few records have one of the keys, and the others need not be decoded or go to Spark.
            has_key = pc.is_in(rows["key"], value_set=self.keys)
            rows = rows.filter(has_key)
            is_in = has_key.to_numpy(zero_copy_only=False)
            is_open, is_in_time = is_open[is_in], is_in_time[is_in]
        if not is_in_time.all():
            rows, is_open = rows.filter(pa.array(is_in_time)), is_open[is_in_time]
        if self.settings.action is EraseAction.TOMBSTONE:
            rows, is_open = rows.filter(pa.array(is_open)), is_open[is_open]
        count = rows.num_rows
        own: dict[str, Any] = {
            _PIECE: numbers(np.full(count, piece.number, np.int32), pa.int32()),
            _IS_OPEN: pa.array(is_open),
            _IS_DEAD: pa.array(np.zeros(count, dtype=np.bool_)),
        }
        if decoder is not None:
            own[_BYTES] = rows["value"]
            kind = self.schema.field("value").type
            own["value"], own[_IS_DEAD] = decoded_values(rows, decoder, kind)
        arrays = [own[name] if name in own else rows[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _is_in_time(self, columns: RecordColumns) -> Any:
        is_in: Any = np.ones(columns.count, dtype=np.bool_)
        start_ms, end_ms = self.times
        if start_ms is not None:
            assert columns.timestamp_ms is not None
            is_in &= columns.timestamp_ms >= start_ms
        if end_ms is not None:
            assert columns.timestamp_ms is not None
            is_in &= columns.timestamp_ms < end_ms
        return is_in


def _with_times_of_spark(columns: RecordColumns) -> RecordColumns:
    """The records, with the farthest time of Spark's type in place of one beyond it. It compares
    with every other time as the record's own does."""
    times = columns.timestamp_ms
    if times is None:
        return columns
    return replace(columns, timestamp_ms=np.clip(times, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX))


@dataclass(frozen=True, slots=True)
class _Selected:
    """Packs selected records into rows of `_SELECTED`, in a task."""

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
            relative = offsets - self.starts[np.searchsorted(self.numbers, pieces)]
            is_dead = batch[_IS_DEAD].to_numpy(zero_copy_only=False)
            rows = []
            order = np.lexsort((relative, is_dead, pieces))
            steps = (np.diff(pieces[order]) != 0) | (np.diff(is_dead[order]) != 0)
            cuts = [0, *(np.flatnonzero(steps) + 1).tolist(), len(order)]
            for start, end in pairwise(cuts if len(order) else ()):
                mine = order[start:end]
                rows.append(
                    {
                        "piece": int(pieces[mine[0]]),
                        "is_dead": bool(is_dead[mine[0]]),
                        "records": len(mine),
                        "first": int(relative[mine[0]]),
                        "offsets": relative[mine].tobytes(),
                    }
                )
            yield pa.RecordBatch.from_pylist(rows, schema=pa.schema(_SELECTED_FIELDS))

    @property
    def _redacts(self) -> bool:
        return self.settings.action is EraseAction.REDACT

    def _changing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records with a field to redact, and the dead ones."""
        changes = []
        values = batch[_BYTES if _BYTES in batch.schema.names else "value"]
        is_dead = batch[_IS_DEAD].to_pylist()
        for row, value in enumerate(values.to_pylist()):
            if is_dead[row]:
                changes.append(True)
                continue
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
        is_open = is_open | batch[_IS_DEAD].to_numpy(zero_copy_only=False)
        if not is_open.all():
            at = int(np.argmin(is_open))
            raise PolicyViolationError(
                "a tombstone of a compacted topic is selected, and without it older records of its"
                f" key would come back partition={self.names[int(pieces[at])]}"
                f" offset={int(offsets[at])} hint='select by --keys alone, or add AND value IS NOT"
                " NULL to --where'"
            )
