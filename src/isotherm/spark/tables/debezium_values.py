"""Turns change events of Debezium into rows of the database table (`--unwrap debezium`), as
Debezium's ExtractNewRecordState does in Kafka Connect.

    {"before": ..., "after": {the row}, "op": "c", "source": ..., "ts_ms": ...}

The column is `after`, and null for a deletion. The fields around it are decoded too, because
formats decode whole values, and then dropped. New fields among them are not new columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from isotherm.spark.tables.json_values import DeadValue, DecodedValues, Values
from isotherm.spark.tables.value_decoder import ValueDecoder
from isotherm.spark.tables.value_types import ValueType

DEBEZIUM = "debezium"
AFTER, OP = "after", "op"
DELETION = "d"
ROWS = ("c", "r", "u")
"""The operations with a row: created, read by a snapshot, updated."""

# The stubs of these lack types that they take.
pc: Any = pyarrow.compute
_nulls: Any = pa.nulls

OpenDecoder = Callable[[ValueType, ValueType], ValueDecoder]
"""Opens a decoder of whole events, from their fixed and known types."""


class EnvelopeDecoder:
    """A ValueDecoder whose `fixed` and `value_type` are types of rows, not of events. Values that
    are no event about a row are dead: those without `op`, truncations, messages."""

    def __init__(self, open_decoder: OpenDecoder, fixed: ValueType, value_type: ValueType) -> None:
        self._open = open_decoder
        self._fixed = fixed
        self._begun_with = value_type
        self._events = open_decoder(_event(fixed), _event(value_type))
        self.framing = self._events.framing

    @property
    def value_type(self) -> ValueType:
        return _field(self._events.value_type, AFTER)

    @property
    def has_grown(self) -> bool:
        return self.value_type != self._begun_with

    def decode(self, values: Values) -> DecodedValues:
        column, dead = self._events.decode(values)
        if self._events.has_grown:
            if self.has_grown:
                return DecodedValues(_nulls(0), dead)
            # The new fields are outside the rows. Decode the values again with the type that is now
            # known.
            self._events = self._open(_event(self._fixed), self._events.value_type)
            column, dead = self._events.decode(values)
        return self._unwrapped(column, dead, len(values))

    def _unwrapped(self, column: Values, dead: Sequence[DeadValue], count: int) -> DecodedValues:
        places = np.delete(np.arange(count), [dead_value.place for dead_value in dead])
        is_event = np.asarray(column.is_valid())
        ops = _child(column, OP, pa.string())
        rows = _child(column, AFTER, self.value_type if self.value_type is not None else pa.null())
        is_deletion = np.asarray(pc.fill_null(pc.equal(ops, DELETION), False))
        is_row = np.asarray(pc.is_in(ops, pa.array(ROWS))) & np.asarray(rows.is_valid())
        is_lost = is_event & ~is_deletion & ~is_row
        lost = [
            DeadValue(int(places[index]), _reason(ops[int(index)].as_py()))
            for index in np.flatnonzero(is_lost)
        ]
        # `after` of a deletion is null.
        kept = rows.filter(pa.array(~is_lost))
        return DecodedValues(kept, sorted([*dead, *lost]) if lost else dead)


def _event(row: ValueType) -> ValueType:
    """The type of events that is known before the first event."""
    fields: list[Any] = [] if row is None else [pa.field(AFTER, row)]
    return pa.struct([*fields, pa.field(OP, pa.string())])


def _field(kind: ValueType, name: str) -> ValueType:
    if not isinstance(kind, pa.StructType) or kind.get_field_index(name) < 0:
        return None
    inner: pa.DataType = kind.field(name).type
    return inner


def _child(column: Values, name: str, kind: pa.DataType) -> Values:
    """A field of each event. Null for events without it."""
    if _field(column.type, name) is None:
        empty: Values = _nulls(len(column), kind)
        return empty
    child: Values = pc.struct_field(column, name)
    return child


def _reason(op: str | None) -> str:
    if op is None:
        return (
            "it is no change event of Debezium: it has no op; a JsonConverter needs"
            " schemas.enable=false"
        )
    if op in ROWS:
        return f"the change event has no row in after op={op}"
    return f"the event is no change of a row op={op}"
