"""Rows of a table, and of its dead letters, from rows of the source.

    table         topic · partition · offset · timestamp · timestampType · headers · key · value
    dead letters  the same with the value's bytes, and reason

Columns have the source's names and types. Only `value` differs by format: bytes (raw), text
(string), or a struct with the fields of JSON objects (json). Without a known field there is no such
column yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from isotherm.spark.arrow_rows import TIMESTAMP_MS_MAX
from isotherm.spark.rows import arrow_schema, full_schema, schema_of
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, JsonDecoder, Values
from isotherm.spark.tables.value_types import ValueType

RAW, STRING, JSON = "raw", "string", "json"
VALUE_FORMATS = (RAW, STRING, JSON)

SOURCE_SCHEMA = StructType(
    [
        StructField(field.name, LongType()) if field.name == "timestamp" else field
        for field in full_schema(include_headers=True)
    ]
)
"""Of the rows that are decoded. `timestamp` is in milliseconds: a table counts microseconds in 64
bits, and cannot hold all."""

_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "headers", "key")


class DecodedRows(NamedTuple):
    """The rows of one batch: those of the table, and those of the dead letters."""

    rows: pa.RecordBatch
    dead: pa.RecordBatch


class ValueDecoder(Protocol):
    """Turns values into one column. `known` is the column's type, None without a known field; if it
    `has_grown`, columns are of no use any more."""

    known: ValueType

    @property
    def has_grown(self) -> bool: ...

    def decode(self, values: Values) -> DecodedValues: ...


class RawDecoder:
    known: ValueType = pa.binary()
    has_grown = False

    def decode(self, values: Values) -> DecodedValues:
        return DecodedValues(values, ())


class StringDecoder:
    """Values that are not UTF-8 are dead."""

    known: ValueType = pa.string()
    has_grown = False

    def decode(self, values: Values) -> DecodedValues:
        dead = [DeadValue(place, "the value is not UTF-8") for place in _not_utf8(values, 0)]
        good = values if not dead else values.take(_others(len(values), dead))
        return DecodedValues(good.cast(pa.string()), dead)


def decoder_of(value_format: str, fixed: ValueType, known: ValueType) -> ValueDecoder:
    """`fixed` is the type of the table's column, which stays; `known` has what is to come besides."""
    match value_format:
        case "raw":
            return RawDecoder()
        case "string":
            return StringDecoder()
        case _:
            return JsonDecoder(fixed, known)


def settled_decoder(value_format: str, value_type: ValueType) -> ValueDecoder:
    """Decodes to this type, which does not grow: other fields are left out."""
    if value_format == JSON:
        return JsonDecoder(value_type, value_type, may_grow=False)
    return decoder_of(value_format, value_type, value_type)


def rows_schema(value_type: ValueType) -> pa.Schema:
    """The table's columns."""
    schema = arrow_schema(schema_of(_COLUMNS))
    return schema if value_type is None else schema.append(pa.field("value", value_type))


def dead_schema() -> pa.Schema:
    """The columns of the dead letters."""
    return rows_schema(pa.binary()).append(pa.field("reason", pa.string()))


def decoded_rows(batch: pa.RecordBatch, decoder: ValueDecoder) -> DecodedRows:
    """The rows of a batch of SOURCE_SCHEMA. Each is in one of the two."""
    stamped, too_far = _with_timestamps(batch)
    if too_far:
        others = _others(batch.num_rows, too_far)
        values, found = decoder.decode(batch.column("value").take(others))
        places = others.to_numpy()
        dead = sorted([*too_far, *(DeadValue(int(places[p]), reason) for p, reason in found)])
    else:
        values, found = decoder.decode(batch.column("value"))
        dead = list(found)
    good = stamped.take(_others(batch.num_rows, dead)) if dead else stamped
    columns = [good.column(name) for name in _COLUMNS]
    if decoder.known is not None and not decoder.has_grown:
        columns.append(values)
    schema = rows_schema(decoder.known if len(columns) > len(_COLUMNS) else None)
    lost = stamped.take(pa.array([each.place for each in dead], pa.int64()))
    reasons = pa.array([each.reason for each in dead], pa.string())
    letters = [*(lost.column(name) for name in (*_COLUMNS, "value")), reasons]
    return DecodedRows(
        pa.RecordBatch.from_arrays(columns, schema=schema),
        pa.RecordBatch.from_arrays(letters, schema=dead_schema()),
    )


def _with_timestamps(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DeadValue]]:
    """The batch with the table's timestamps, null for those that it cannot hold, which are dead."""
    index = batch.schema.get_field_index("timestamp")
    milliseconds = batch.column(index).to_numpy()
    is_too_far = (milliseconds > TIMESTAMP_MS_MAX) | (milliseconds < -TIMESTAMP_MS_MAX)
    dead = [
        DeadValue(int(place), f"the timestamp is out of range timestamp_ms={milliseconds[place]}")
        for place in np.flatnonzero(is_too_far)
    ]
    mask = is_too_far if dead else None
    microseconds = np.where(is_too_far, 0, milliseconds) * 1000 if dead else milliseconds * 1000
    field = rows_schema(None).field("timestamp")
    column = pa.array(microseconds, pa.int64(), mask=mask).cast(field.type)
    return batch.set_column(index, field, column), dead


def _others(count: int, dead: Iterable[DeadValue]) -> pa.Array[pa.Int64Scalar]:
    return pa.array(np.delete(np.arange(count), [each.place for each in dead]), pa.int64())


def _not_utf8(values: Values, first: int) -> list[int]:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        if len(values) == 1:
            return [first]
        half = len(values) // 2
        return _not_utf8(values[:half], first) + _not_utf8(values[half:], first + half)
    return []
