"""The formats of keys and values, by the names of `--key` and `--value`, and their decoders.

raw          unchanged bytes
string       text in UTF-8
json         JSON objects, whose fields become columns
avro         values of a registered schema, whose id is before the bytes or in a header
protobuf     messages of a registered schema, in the same way
json-schema  JSON objects of a registered schema, which declares types; other fields have the type
             found
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from isotherm.errors import ConfigError
from isotherm.spark.requirements import check_registry_packages
from isotherm.spark.tables.debezium_values import EnvelopeDecoder
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, JsonDecoder, Values
from isotherm.spark.tables.schema_registry import RegistrySettings
from isotherm.spark.tables.value_decoder import ValueDecoder
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue, ValueType

RAW, STRING, JSON = "raw", "string", "json"
AVRO, PROTOBUF, JSON_SCHEMA = "avro", "protobuf", "json-schema"
REGISTERED_FORMATS = (AVRO, PROTOBUF, JSON_SCHEMA)
"""The formats that need a schema registry."""
UNWRAPPED_FORMATS = (JSON, AVRO, JSON_SCHEMA)
"""The formats that Debezium's converters write."""
VALUE_FORMATS = (RAW, STRING, JSON, *REGISTERED_FORMATS)


@dataclass(frozen=True)
class ValueFormat:
    """The format of a topic's keys or values. If they are `required`, null is dead. If they are
    `compared`, values that differ stay different. With `unwraps` they are change events of
    Debezium, whose rows become the column."""

    name: str
    registry: RegistrySettings | None = None
    required: bool = False
    compared: bool = False
    unwraps: bool = False


RAW_FORMAT = ValueFormat(RAW)


class RawDecoder:
    framing = None
    value_type: ValueType = pa.binary()
    has_grown = False

    def decode(self, values: Values) -> DecodedValues:
        return DecodedValues(values, ())


class StringDecoder:
    """Decodes text. Values that are not UTF-8 are dead."""

    framing = None
    value_type: ValueType = pa.string()
    has_grown = False

    def decode(self, values: Values) -> DecodedValues:
        dead = [DeadValue(place, "it is not UTF-8") for place in _not_utf8(values, 0)]
        good = values if not dead else values.take(others(len(values), dead))
        return DecodedValues(good.cast(pa.string()), dead)


class RequiredDecoder:
    """Decodes with another decoder. Values that it decodes to null are dead."""

    def __init__(self, decoder: ValueDecoder) -> None:
        self._decoder = decoder
        self.framing = decoder.framing

    @property
    def value_type(self) -> ValueType:
        return self._decoder.value_type

    @property
    def has_grown(self) -> bool:
        return self._decoder.has_grown

    def decode(self, values: Values) -> DecodedValues:
        column, dead = self._decoder.decode(values)
        if self.has_grown or not column.null_count:
            return DecodedValues(column, dead)
        places = others(len(values), dead).to_numpy()[np.asarray(column.is_null())]
        missing = [DeadValue(int(place), "it is null") for place in places]
        return DecodedValues(column.drop_null(), sorted([*dead, *missing]))


def formats(
    key: str,
    value: str,
    registry: RegistrySettings | None,
    *,
    needs_key: bool = False,
    unwraps: bool = False,
) -> KeyValue[ValueFormat]:
    """The formats of keys and values. Raises ConfigError for an unknown format, and for one without
    its registry or packages."""
    names = KeyValue(key, value)
    for option, name in zip(KeyValue._fields, names, strict=True):
        if name not in VALUE_FORMATS:
            raise ConfigError(
                f"no such format option=--{option} value={name} known={','.join(VALUE_FORMATS)}"
            )
        if name in REGISTERED_FORMATS:
            if registry is None:
                raise ConfigError(
                    f"the format needs a schema registry {option}={name} hint='--registry URL'"
                )
            check_registry_packages(name)
    if registry is not None and not set(names) & set(REGISTERED_FORMATS):
        raise ConfigError(
            f"the formats need no schema registry key={key} value={value}"
            f" needing={','.join(REGISTERED_FORMATS)}"
        )
    if unwraps and value not in UNWRAPPED_FORMATS:
        raise ConfigError(
            f"change events of Debezium are of another format value={value}"
            f" known={','.join(UNWRAPPED_FORMATS)}"
        )
    return KeyValue(
        ValueFormat(key, registry, required=needs_key, compared=needs_key),
        ValueFormat(value, registry, unwraps=unwraps),
    )


def first_types(key: str, value: str) -> DecodedTypes:
    """The types of the columns in a table without records."""
    return KeyValue(_first_type(key), _first_type(value))


def _first_type(name: str) -> ValueType:
    if name == RAW:
        return pa.binary()
    return pa.string() if name == STRING else None


def decoders_of(
    formats: KeyValue[ValueFormat], fixed: DecodedTypes, types: DecodedTypes
) -> KeyValue[ValueDecoder]:
    """The decoders of keys and values. `fixed` has the types of the table's columns, which do not
    change. `types` also has fields that will be added."""
    return KeyValue(*(_decoder_of(*part) for part in zip(formats, fixed, types, strict=True)))


def settled_decoders(formats: KeyValue[ValueFormat], types: DecodedTypes) -> KeyValue[ValueDecoder]:
    """Decoders to these types, which do not grow. Other fields are left out."""
    return KeyValue(
        *(_decoder_of(*part, may_grow=False) for part in zip(formats, types, types, strict=True))
    )


def _decoder_of(
    value_format: ValueFormat, fixed: ValueType, value_type: ValueType, *, may_grow: bool = True
) -> ValueDecoder:
    if value_format.required:
        optional = replace(value_format, required=False)
        return RequiredDecoder(_decoder_of(optional, fixed, value_type, may_grow=may_grow))
    if value_format.unwraps:
        whole = replace(value_format, unwraps=False)
        return EnvelopeDecoder(partial(_decoder_of, whole, may_grow=may_grow), fixed, value_type)
    match value_format.name:
        case "raw":
            return RawDecoder()
        case "string":
            return StringDecoder()
        case "json":
            return JsonDecoder(fixed, value_type, may_grow=may_grow)
    assert value_format.registry is not None, "formats has checked it"
    if value_format.name == JSON_SCHEMA:
        from isotherm.spark.tables.json_schema_values import JsonSchemaDecoder, schema_type

        return JsonSchemaDecoder(
            partial(schema_type, value_format.registry), fixed, value_type, may_grow=may_grow
        )
    from isotherm.spark.tables.registry_values import RegistryDecoder, open_codec

    return RegistryDecoder(
        partial(
            open_codec, value_format.name, value_format.registry, is_compared=value_format.compared
        ),
        fixed,
        value_type,
        may_grow=may_grow,
        has_path=value_format.name == PROTOBUF,
    )


def others(count: int, dead: Iterable[DeadValue]) -> pa.Array[pa.Int64Scalar]:
    """The places of the values that are not dead."""
    return pa.array(
        np.delete(np.arange(count), [dead_value.place for dead_value in dead]), pa.int64()
    )


def _not_utf8(values: Values, first: int) -> list[int]:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        if len(values) == 1:
            return [first]
        half = len(values) // 2
        return _not_utf8(values[:half], first) + _not_utf8(values[half:], first + half)
    return []
