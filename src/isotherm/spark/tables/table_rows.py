"""Makes the rows of a table, and of its dead letters, from rows of the source.

    table         topic · partition · offset · timestamp · timestampType · headers · key · value
    dead letters  the same with the bytes of key and value, and reason

Columns have the source's names and types. Only the types of `key` and `value` depend on the format
(value_formats). While no field of them is known, the table lacks the column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from isotherm.spark.row_schema import arrow_schema, full_schema, schema_of
from isotherm.spark.tables.column_limits import DAY_MAX, DAY_MIN, DAY_S
from isotherm.spark.tables.debezium_values import EnvelopeDecoder
from isotherm.spark.tables.header_names import NAME_HEADERS, named_values
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, Places, Values
from isotherm.spark.tables.value_decoder import ValueDecoder
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue

SOURCE_SCHEMA = StructType(
    [
        StructField(field.name, LongType()) if field.name == "timestamp" else field
        for field in full_schema(include_headers=True)
    ]
)
"""The schema of the rows to decode.

`timestamp` is in milliseconds, because a table cannot have all of them.
"""

TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX = DAY_MIN * DAY_S * 1_000, (DAY_MAX + 1) * DAY_S * 1_000 - 1
"""The timestamps of a table's rows, both inclusive."""

_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "headers")


class DecodedRows(NamedTuple):
    """The rows of one batch, for the table and for the dead letters. `tombstones` marks the rows of
    the table that delete their key: they have no value, or are deletions of Debezium."""

    rows: pa.RecordBatch
    dead: pa.RecordBatch
    tombstones: npt.NDArray[np.bool_]


def rows_schema(types: DecodedTypes) -> pa.Schema:
    """The table's columns."""
    decoded = zip(KeyValue._fields, types, strict=True)
    fields = [pa.field(name, kind) for name, kind in decoded if kind is not None]
    return pa.schema([*arrow_schema(schema_of(_COLUMNS)), *fields])


def dead_schema() -> pa.Schema:
    """The columns of the dead letters."""
    return rows_schema(KeyValue(pa.binary(), pa.binary())).append(pa.field("reason", pa.string()))


def decoded_rows(batch: pa.RecordBatch, decoders: KeyValue[ValueDecoder]) -> DecodedRows:
    """Decode a batch of SOURCE_SCHEMA. Each row is in exactly one of the two results. They are
    unusable if a decoder has grown."""
    count = batch.num_rows
    stamped, too_far = _with_timestamps(batch)
    reasons = dict(too_far)
    decoded: dict[str, DecodedValues] = {}
    deleted: DecodedValues | None = None
    for name, decoder in zip(KeyValue._fields, decoders, strict=True):
        values = decoder.decode(values_of(batch, name, decoder))
        if isinstance(decoder, EnvelopeDecoder):
            deleted = values
        for place, reason in values.dead:
            reasons.setdefault(place, f"{name}: {reason}")
        if decoder.value_type is not None:
            decoded[name] = values
    if any(value_decoder.has_grown for value_decoder in decoders):
        return DecodedRows(batch.slice(0, 0), batch.slice(0, 0), np.zeros(0, np.bool_))
    places = np.array(sorted(reasons), np.int64)
    kept = np.delete(np.arange(count), places)
    good = stamped.take(pa.array(kept, pa.int64())) if reasons else stamped
    columns = [good.column(name) for name in _COLUMNS]
    columns += [_of_places(values, kept, count) for values in decoded.values()]
    lost = stamped.take(pa.array(places, pa.int64()))
    texts = pa.array([reasons[place] for place in places.tolist()], pa.string())
    letters = [*(lost.column(name) for name in (*_COLUMNS, *KeyValue._fields)), texts]
    types = KeyValue(*(value_decoder.value_type for value_decoder in decoders))
    if deleted is None:
        is_tombstone = np.asarray(batch.column("value").is_null())[kept]
    else:
        is_tombstone = np.asarray(_of_places(deleted, kept, count).is_null())
    return DecodedRows(
        pa.RecordBatch.from_arrays(columns, schema=rows_schema(types)),
        pa.RecordBatch.from_arrays(letters, schema=dead_schema()),
        is_tombstone,
    )


def values_of(batch: pa.RecordBatch, name: str, decoder: ValueDecoder) -> Values:
    """The keys or values of a batch for their decoder: with the names of their schemas, also
    those in headers.
    """
    header = getattr(NAME_HEADERS, name)
    return named_values(batch.column(name), batch.column("headers"), header, decoder.framing)


def _of_places(values: DecodedValues, kept: Places, count: int) -> Values:
    """The decoded values at these places, none of which is dead."""
    # All values that are left out are dead in this column.
    if len(values.column) == len(kept):
        return values.column
    own = np.delete(np.arange(count), [dead_value.place for dead_value in values.dead])
    return values.column.take(pa.array(np.searchsorted(own, kept), pa.int64()))


def _with_timestamps(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DeadValue]]:
    """The batch with the table's timestamps.

    Timestamps out of range are null, and their rows are dead.
    """
    index = batch.schema.get_field_index("timestamp")
    milliseconds = batch.column(index).to_numpy()
    is_too_far = (milliseconds > TIMESTAMP_MS_MAX) | (milliseconds < TIMESTAMP_MS_MIN)
    where = np.flatnonzero(is_too_far)
    dead = [
        DeadValue(int(place), f"the timestamp is not in the years 1 to 9999 timestamp_ms={ms}")
        for place, ms in zip(where, milliseconds[where], strict=True)
    ]
    mask = is_too_far if dead else None
    microseconds = np.where(is_too_far, 0, milliseconds) * 1000 if dead else milliseconds * 1000
    field = dead_schema().field("timestamp")
    column = pa.array(microseconds, pa.int64(), mask=mask).cast(field.type)
    return batch.set_column(index, field, column), dead
