"""The codec of a registered schema. A process opens each once, for all of its tasks."""

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
def open_codec(value_format: str, registry: RegistrySettings, name: SchemaName) -> SchemaCodec:
    """Raises UnknownSchemaError if values of this schema cannot be decoded, SchemaRegistryError if
    that is not known."""
    schema = registered_schema(registry, name.id)
    if schema.kind != _KINDS[value_format]:
        raise UnknownSchemaError(f"the schema is not of {value_format} but of {schema.kind}")
    # Each needs packages that the other does not.
    if schema.kind == "PROTOBUF":
        from isotherm.spark.tables.protobuf_schema import message_of
        from isotherm.spark.tables.protobuf_values import ProtobufCodec

        return ProtobufCodec(message_of(schema, name.path))
    from isotherm.spark.tables.avro_values import AvroCodec

    return AvroCodec(schema)
