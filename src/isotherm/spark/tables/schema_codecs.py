"""Opens the codec of a registered schema, once in each process for all of its tasks."""

from __future__ import annotations

import functools

from isotherm.spark.tables.framed_values import SchemaName
from isotherm.spark.tables.registry_values import SchemaCodec
from isotherm.spark.tables.schema_registry import (
    RegistrySettings,
    UnknownSchemaError,
    registered_schema,
)

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
