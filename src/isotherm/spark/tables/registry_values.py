"""Decodes values whose schemas are in a registry to one column, for all formats of schemas.

The type of the column grows by the schemas that a batch names, before any value is decoded. If a
schema does not fit the column, its values are dead letters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.spark.tables.column_fit import conflict, conformed, nulls
from isotherm.spark.tables.column_limits import UnfitValueError
from isotherm.spark.tables.framed_values import NO_VALUE, Framing, SchemaName, framed, not_framed
from isotherm.spark.tables.halving import decode_by_halves
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, Places, Values
from isotherm.spark.tables.schema_registry import (
    RegistrySettings,
    UnknownSchemaError,
    registered_schema,
)
from isotherm.spark.tables.value_types import ValueType, merged, too_deep, twin

_REASON_SIZE_MAX = 200


class SchemaCodec(Protocol):
    """Decodes the values of one schema to a column of type `column`, which is None if they have
    no bytes.
    """

    column: ValueType

    def decode(self, payloads: Values) -> DecodedValues: ...


OpenCodec: TypeAlias = Callable[[SchemaName], SchemaCodec]
"""Opens the codec of a schema. Raises UnknownSchemaError if its values cannot be decoded."""


class RegistryDecoder:
    """A ValueDecoder. `fixed` is the part of `value_type` that the table has. Without `may_grow`,
    other fields are left out. With `has_path` values have Protobuf's indexes (see `framed`)."""

    def __init__(
        self,
        open_codec: OpenCodec,
        fixed: ValueType,
        value_type: ValueType,
        *,
        may_grow: bool = True,
        has_path: bool = False,
    ) -> None:
        self._open_codec = open_codec
        self.framing = Framing(has_path)
        self._fixed = fixed
        self._begun_with = value_type
        self._may_grow = may_grow
        self._codecs: dict[SchemaName, SchemaCodec | str] = {}
        self.value_type = value_type

    @property
    def has_grown(self) -> bool:
        return self.value_type != self._begun_with

    def decode(self, values: Values) -> DecodedValues:
        names, schemas, payloads = framed(values, has_path=self.framing.has_path)
        # In the order of records, because new columns are added in that order.
        for name in names:
            self._learn(name)
        dead = not_framed(schemas)
        if self.has_grown:
            return DecodedValues(pa.nulls(0), dead)
        kind = pa.null() if self.value_type is None else self.value_type
        without = np.flatnonzero(schemas == NO_VALUE)
        parts, places = [nulls(len(without), kind)], [without]
        for index, name in enumerate(names):
            where = np.flatnonzero(schemas == index)
            # Usually a batch names only one schema, and nothing is copied.
            of_schema = payloads if len(where) == len(values) else _taken(payloads, where)
            column, lost = self._decoded(name, of_schema, kind)
            dead += [
                DeadValue(int(where[dead_value.place]), dead_value.reason) for dead_value in lost
            ]
            parts.append(column)
            places.append(np.delete(where, [dead_value.place for dead_value in lost]))
        dead.sort()
        order = np.concatenate(places)
        column = pa.concat_arrays([part for part in parts if len(part)] or parts[:1])
        if (np.diff(order) < 0).any():
            column = _taken(column, np.argsort(order, kind="stable"))
        return DecodedValues(column, dead)

    def _learn(self, name: SchemaName) -> None:
        if name in self._codecs:
            return
        try:
            codec = self._open_codec(name)
        except UnknownSchemaError as error:
            # Remembered: otherwise each batch would ask the registry again.
            self._codecs[name] = str(error)
            return
        reason = too_deep(codec.column)
        if reason is not None:
            self._codecs[name] = f"the schema cannot be a column: {reason}"
            return
        self._codecs[name] = codec
        if self._may_grow:
            self.value_type = merged(self.value_type, codec.column, self._fixed)

    def _decoded(self, name: SchemaName, payloads: Values, kind: pa.DataType) -> DecodedValues:
        """The values as `kind`, and those that cannot be decoded."""
        codec = self._codecs[name]
        reason = (
            codec
            if isinstance(codec, str)
            else twin(codec.column, self.value_type) or conflict(codec.column, self.value_type)
        )
        if isinstance(codec, str) or reason is not None:
            return DecodedValues(
                nulls(0, kind),
                [_lost(place, str(reason), name) for place in range(len(payloads))],
            )
        column, dead = codec.decode(payloads)
        fitted = _fitted(column, kind)
        places = np.delete(np.arange(len(payloads)), [dead_value.place for dead_value in dead])
        unfit = [
            DeadValue(int(places[dead_value.place]), dead_value.reason)
            for dead_value in fitted.dead
        ]
        lost = sorted([*dead, *unfit])
        return DecodedValues(fitted.column, [_lost(*dead_value, name) for dead_value in lost])


def _fitted(column: Values, kind: pa.DataType) -> DecodedValues:
    """The values as `kind`, and those that it cannot have."""
    if column.type == kind:  # nearly always
        return DecodedValues(column, ())

    def fitted(values: Values, places: Places) -> DecodedValues | None:
        try:
            # A copy: a slice of lists has the elements of all of them.
            own = values if len(values) == len(column) else _taken(values, np.arange(len(values)))
            return DecodedValues(conformed(own, kind), ())
        except UnfitValueError as error:
            if len(values) > 1:
                return None
            return DecodedValues(nulls(0, kind), [DeadValue(int(places[0]), str(error))])

    return decode_by_halves(column, kind, fitted)


def _taken(values: Values, places: Places) -> Values:
    return values.take(pa.array(places, pa.int64()))


def _lost(place: int, reason: str, name: SchemaName) -> DeadValue:
    return DeadValue(place, f"{reason[:_REASON_SIZE_MAX]} schema_id={name.id}")


CODECS_MAX = 1000
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF"}


@functools.lru_cache(CODECS_MAX)
def open_codec(
    value_format: str, registry: RegistrySettings, name: SchemaName, *, is_compared: bool = False
) -> SchemaCodec:
    """The codec of a schema. With `is_compared`, values that differ stay different. Raises
    UnknownSchemaError if its values cannot be decoded, and SchemaRegistryError if the registry does
    not answer."""
    schema = registered_schema(registry, name.id)
    if schema.kind != _KINDS[value_format]:
        raise UnknownSchemaError(f"the schema is not of {value_format} but of {schema.kind}")
    # Import only the codec that is needed, because each needs its own packages.
    if schema.kind == "PROTOBUF":
        from isotherm.spark.tables.protobuf_schema import message_of
        from isotherm.spark.tables.protobuf_values import ProtobufCodec

        return ProtobufCodec(message_of(schema, name.path), is_compared=is_compared)
    from isotherm.spark.tables.avro_values import AvroCodec

    return AvroCodec(schema)
