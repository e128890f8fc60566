"""Decodes values for an expression of `erase`, to the column that `table` would make of them.

The column's type must be the same one for the selection, for the proof, and for a later look, or
the expression could select other records. So one pass over all values finds it, as a run of `table`
would, and the certificate keeps it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from isotherm.errors import ConfigError, CorruptMetadataError
from isotherm.record.columns import decode_columns
from isotherm.remote.rewriting.pieces import Piece, located, read_chunks
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.arrow_rows import ArrowArray, decoded_columns, record_batch
from isotherm.spark.jobs.rewrite_tasks import map_pieces
from isotherm.spark.numbered_tasks import spark_schema
from isotherm.spark.options import SourceOptions
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.spark.tables.table_rows import values_of
from isotherm.spark.tables.value_decoder import ValueDecoder
from isotherm.spark.tables.value_formats import (
    RAW,
    RAW_FORMAT,
    REGISTERED_FORMATS,
    ValueFormat,
    decoders_of,
    first_types,
    settled_decoders,
)
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue, ValueType, merged, unmarked
from isotherm.spark.tier.storage import storage_of_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.record.columns import RecordColumns
    from isotherm.remote.storage.api import RemoteStorageManager

_FIELDS: dict[str, pa.DataType] = {
    "piece": pa.int32(),
    "type": pa.binary(),
    "is_complete": pa.bool_(),
}
_FOUND = pa.schema(_FIELDS)
_TYPE_COLUMN = "value"


@dataclass(frozen=True, slots=True)
class DecodedAs:
    """The format of values, and the type of their column. Picklable."""

    value_format: ValueFormat
    value_type: pa.DataType

    @property
    def source_columns(self) -> frozenset[str]:
        return source_columns(self.value_format)

    def decoder(self) -> ValueDecoder:
        types: DecodedTypes = KeyValue(pa.binary(), self.value_type)
        return settled_decoders(KeyValue(RAW_FORMAT, self.value_format), types).value


def source_columns(value_format: ValueFormat) -> frozenset[str]:
    """The columns that decoding needs. A header may name the schema."""
    return frozenset({"value", "headers"} if value_format.name in REGISTERED_FORMATS else {"value"})


def decoded_values(
    batch: pa.RecordBatch, decoder: ValueDecoder, kind: pa.DataType
) -> tuple[ArrowArray, ArrowArray]:
    """The decoded values of a batch as a column of type `kind`, null where a value cannot be
    decoded, and where that is so."""
    column, dead = decoder.decode(_named(batch, decoder))
    is_dead = np.zeros(batch.num_rows, np.bool_)
    is_dead[[dead_value.place for dead_value in dead]] = True
    if dead:
        places = np.cumsum(~is_dead) - 1
        column = column.take(pa.array(places, pa.int64(), mask=is_dead))
    return (column if column.type == kind else column.cast(kind)), pa.array(is_dead)


def find_value_type(
    spark: SparkSession,
    pieces: Sequence[Piece],
    value_format: ValueFormat,
    source: ObjectStoreSettings | SourceOptions,
    fetch_bytes: int,
) -> ValueType:
    """The type of the column, by the values of the pieces in their order. None if no value has a
    field. Reads the pieces, unless the format alone has a type."""
    kind = first_types(RAW, value_format.name).value
    if kind is not None or not pieces:
        return kind
    names = source_columns(value_format)
    rows = arrow_schema(schema_of([name for name in ("value", "headers") if name in names]))
    while True:
        find = _FindType(value_format, source, fetch_bytes, rows, kind)
        rows_of_pieces = map_pieces(spark, pieces, find, spark_schema(_FOUND)).collect()
        before: ValueType = kind
        for row in sorted(rows_of_pieces, key=lambda row: row.piece):
            kind = merged(kind, None if row.type is None else _decoded(bytes(row.type)))
        # A value that a task cannot decode may have fields that it can with the types of all.
        if kind == before or all(row.is_complete for row in rows_of_pieces):
            return unmarked(kind)


@dataclass(frozen=True, slots=True)
class _FindType:
    """Finds the type in a task, from `kind` on. Yields one row of _FOUND."""

    value_format: ValueFormat
    source: ObjectStoreSettings | SourceOptions
    fetch_bytes: int
    rows: pa.Schema
    kind: ValueType

    def __call__(self, pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        types: DecodedTypes = KeyValue(pa.binary(), self.kind)
        fixed: DecodedTypes = KeyValue(pa.binary(), None)
        decoder = decoders_of(KeyValue(RAW_FORMAT, self.value_format), fixed, types).value
        storage = storage_of_job(self.source)
        columns = decoded_columns(self.rows)
        first, is_complete = None, True
        for piece in pieces:
            first = piece.number if first is None else first
            owner = piece.segment.topic_id_partition.topic_partition
            for part in piece_columns(storage, piece, self.fetch_bytes, columns):
                batch = record_batch(part, owner, self.rows)
                is_complete &= not decoder.decode(_named(batch, decoder)).dead
        if first is not None:
            kind = _encoded(decoder.value_type)
            row = {"piece": first, "type": kind, "is_complete": is_complete}
            yield pa.RecordBatch.from_pylist([row], schema=_FOUND)


def piece_columns(
    storage: RemoteStorageManager, piece: Piece, fetch_bytes: int, columns: frozenset[str]
) -> Iterator[RecordColumns]:
    """The records of a piece in order, those of aborted and of open transactions too. Raises
    CorruptObjectError for damage."""
    for chunk, _ in read_chunks(storage, piece, fetch_bytes):
        data = memoryview(chunk.data)[: chunk.size]
        while len(data):
            with located(piece):
                decoded = decode_columns(data, columns=columns)
            if decoded.position_end == 0:
                break
            data = data[decoded.position_end :]
            yield decoded


def type_text(kind: ValueType) -> str | None:
    """The type for a certificate."""
    return None if kind is None else base64.b64encode(_encoded(kind) or b"").decode()


def type_of_text(text: str | None) -> ValueType:
    """Raises CorruptMetadataError for anything but a text of `type_text`."""
    try:
        return None if text is None else _decoded(base64.b64decode(text, validate=True))
    except (ValueError, KeyError, OSError) as error:
        raise CorruptMetadataError("the certificate has no type of values") from error


def check_has_fields(kind: ValueType, value_format: ValueFormat) -> pa.DataType:
    """Raises ConfigError if no value has a field that an expression could name."""
    if kind is None:
        raise ConfigError(
            "no value could be decoded, so --where has no column value to read"
            f" value={value_format.name} hint='--value names the format of values'"
        )
    return kind


def _named(batch: pa.RecordBatch, decoder: ValueDecoder) -> ArrowArray:
    return batch.column("value") if decoder.framing is None else values_of(batch, "value", decoder)


def _encoded(kind: ValueType) -> bytes | None:
    if kind is None:
        return None
    return pa.schema([pa.field(_TYPE_COLUMN, kind)]).serialize().to_pybytes()


def _decoded(data: bytes) -> pa.DataType:
    kind: pa.DataType = pa.ipc.read_schema(pa.py_buffer(data)).field(_TYPE_COLUMN).type
    return kind
