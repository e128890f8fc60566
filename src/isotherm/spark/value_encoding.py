"""Encodes columns as keys and values of records, for a load.

binary       bytes or text as they are
json         Spark's to_json
json-schema  the same, behind the id of a registered schema
avro         to_avro of Spark's package spark-avro, behind the id
protobuf     ptars in the workers, an Arrow batch at a time, behind the id

The schema of the registered formats is the newest one of the subject TOPIC-key or TOPIC-value, as
with Confluent's serializers whose `auto.register.schemas` is false and whose `use.latest.version`
is true. Of Protobuf it is the first message of the file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import functions as sql
from pyspark.sql import types

from isotherm.errors import ConfigError
from isotherm.spark.requirements import check_registry_packages
from isotherm.spark.tables.schema_registry import (
    RegisteredSchema,
    RegistrySettings,
    UnknownSchemaError,
    latest_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

pc: Any = pyarrow.compute

BINARY, JSON, AVRO, PROTOBUF, JSON_SCHEMA = "binary", "json", "avro", "protobuf", "json-schema"
ENCODINGS = (BINARY, JSON, AVRO, PROTOBUF, JSON_SCHEMA)
REGISTERED_ENCODINGS = (AVRO, PROTOBUF, JSON_SCHEMA)
RECORD_COLUMNS = ("key", "value", "headers", "timestamp", "partition")
_FIRST_MESSAGE = b"\0"
_KINDS = {AVRO: "AVRO", PROTOBUF: "PROTOBUF", JSON_SCHEMA: "JSON"}
_AVRO_CLASS = "org.apache.spark.sql.avro.CatalystDataToAvro"


def check_encodings(key: str, value: str, registry: RegistrySettings | None) -> None:
    """Raise ConfigError for an unknown format, and for one without its registry or packages."""
    for option, name in (("key", key), ("value", value)):
        if name not in ENCODINGS:
            raise ConfigError(
                f"unknown format option=--{option}-format value={name!r} one_of={list(ENCODINGS)}"
            )
        if name in REGISTERED_ENCODINGS:
            if registry is None:
                raise ConfigError(
                    f"the format needs a schema registry {option}={name} hint='--registry URL'"
                )
            check_registry_packages(name)
    if registry is not None and not {key, value} & set(REGISTERED_ENCODINGS):
        raise ConfigError(f"the formats need no schema registry key={key} value={value}")


def encoded_columns(
    frame: DataFrame, topic: str, key: str, value: str, registry: RegistrySettings | None
) -> DataFrame:
    """The frame with `key` and `value` in these formats. Without a column `value` the value has all
    columns that are no part of a record.

    Raises ConfigError for columns that the schema does not have or cannot hold, and for a missing
    schema; SchemaRegistryError if the registry does not answer.
    """
    check_encodings(key, value, registry)
    names = {name.lower() for name in frame.columns}
    if value != BINARY and "value" not in names:
        rest = [name for name in frame.columns if name.lower() not in RECORD_COLUMNS]
        frame = frame.withColumn("value", sql.struct(*map(_column_of, rest)))
    if value != BINARY:
        frame = _encoded(frame, "value", value, topic, registry)
    if key != BINARY:
        if "key" not in names:
            raise ConfigError(
                f"there is no column key option=--key-format value={key} hint='--column key=SQL'"
            )
        frame = _encoded(frame, "key", key, topic, registry)
    return frame


def _column_of(name: str) -> Column:
    """The column of exactly this name, which may have dots and backticks."""
    quoted = name.replace("`", "``")
    return sql.col(f"`{quoted}`")


def _encoded(
    frame: DataFrame, column: str, name: str, topic: str, registry: RegistrySettings | None
) -> DataFrame:
    # Spark finds a column in any case, and calls it by the new name from here on.
    frame = frame.withColumnRenamed(column, column)
    if name == JSON:
        return frame.withColumn(column, _json(sql.col(column)))
    assert registry is not None, "check_encodings comes first"
    subject = f"{topic}-{column}"
    try:
        schema_id, schema = latest_schema(registry, subject)
    except UnknownSchemaError as error:
        raise ConfigError(
            f"the registry has no schema of the subject subject={subject}"
            " hint='register it: a load does not'"
        ) from error
    if schema.kind != _KINDS[name]:
        raise ConfigError(
            f"the registered schema is of another format subject={subject} kind={schema.kind}"
            f" option=--{column}-format value={name}"
        )
    head = b"\0" + schema_id.to_bytes(4, "big")
    if name == PROTOBUF:
        return _protobuf(frame, column, head + _FIRST_MESSAGE, schema, subject)
    if name == AVRO:
        bytes_of = _avro(frame, sql.col(column), schema)
    else:
        _check_properties(frame, column, schema, subject)
        bytes_of = _json(sql.col(column)).cast("binary")
    framed = sql.concat(sql.lit(head), bytes_of)
    return frame.withColumn(column, sql.when(sql.col(column).isNotNull(), framed))


def _json(column: Column) -> Column:
    """JSON of any column, null for null. Spark's `to_json` takes structures only."""
    text = sql.to_json(sql.struct(column.alias("v")), {"ignoreNullFields": "false"})
    # Without the braces and the name of the only field: {"v":...}.
    inner = sql.substr(text, sql.lit(6), sql.length(text) - sql.lit(6))
    return sql.when(column.isNotNull(), inner)


def _avro(frame: DataFrame, column: Column, schema: RegisteredSchema) -> Column:
    from pyspark.sql.avro.functions import to_avro

    spark = frame.sparkSession
    if schema.references:
        raise ConfigError("Spark's to_avro takes no schema that refers to others")
    try:
        spark._jvm.org.apache.spark.util.Utils.classForName(_AVRO_CLASS, True, False)  # type: ignore[union-attr]
    # py4j has no class of its own for a missing Java class.
    except Exception as error:
        raise ConfigError(
            "avro needs Spark's package spark-avro hint='--spark-config"
            f" spark.jars.packages=org.apache.spark:spark-avro_2.13:{spark.version}'"
        ) from error
    return to_avro(column, schema.text)


def _check_properties(
    frame: DataFrame, column: str, schema: RegisteredSchema, subject: str
) -> None:
    """Raise ConfigError for fields that the schema excludes or misses. Values are not checked: a
    validator would take each record by itself."""
    declared = json.loads(schema.text)
    kind = frame.schema[column].dataType
    if not isinstance(declared, dict) or not isinstance(kind, types.StructType):
        return
    fields = set(kind.fieldNames())
    missing = set(declared.get("required", ())) - fields
    excluded = set[str]()
    if declared.get("additionalProperties") is False:
        excluded = fields - set(declared.get("properties", ()))
    if missing or excluded:
        raise ConfigError(
            f"the columns are not those of the schema subject={subject}"
            f" missing={sorted(missing)} excluded={sorted(excluded)}"
        )


def _protobuf(
    frame: DataFrame, column: str, head: bytes, schema: RegisteredSchema, subject: str
) -> DataFrame:
    kind = frame.schema[column].dataType
    if not isinstance(kind, types.StructType):
        raise ConfigError(
            f"a message is made of columns subject={subject} column={column}"
            f" type={kind.simpleString()} hint='--column {column}=struct(...)'"
        )
    try:
        encoder = ProtobufEncoder(schema)
    except UnknownSchemaError as error:
        raise ConfigError(f"the schema is not one of Protobuf subject={subject}") from error
    encoder.check(kind, subject)
    fields = [
        types.StructField(
            field.name, types.BinaryType() if field.name == column else field.dataType
        )
        for field in frame.schema.fields
    ]
    encode = functools.partial(_encoded_batches, column, head, schema)
    return frame.mapInArrow(encode, types.StructType(fields))


def _encoded_batches(
    column: str, head: bytes, schema: RegisteredSchema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    encoder = ProtobufEncoder(schema)
    for batch in batches:
        place = batch.schema.names.index(column)
        columns = [
            encoder.encode(array, head) if number == place else array
            for number, array in enumerate(batch.columns)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class ProtobufEncoder:
    """Encodes structures as the first message of a schema. A null field is not set. Raises
    UnknownSchemaError for an invalid schema, and what `fitted_structures` raises."""

    def __init__(self, schema: RegisteredSchema) -> None:
        from ptars import HandlerPool, PtarsConfig

        from isotherm.spark.tables.protobuf_schema import message_of

        self._message = message_of(schema, (0,))
        pool = HandlerPool([self._message.file], config=PtarsConfig(timestamp_unit="us"))
        self._handler = pool.get_for_message(self._message)
        self._kind = pa.struct(
            [pa.field(field.name, _nullable(field.type)) for field in self._handler.schema()]
        )

    def check(self, kind: types.StructType, subject: str) -> None:
        """Raise ConfigError if the message does not have a field of the structure, or its type."""
        from isotherm.spark.message_fit import unknown_fields
        from isotherm.spark.row_schema import arrow_schema

        schema = arrow_schema(kind)
        unknown = sorted(unknown_fields(pa.struct(list(schema)), self._kind))
        if unknown:
            raise ConfigError(f"the message has no such fields subject={subject} fields={unknown}")
        try:
            empty = schema.empty_table().to_struct_array().combine_chunks()
            self.encode(empty, b"")
        except pa.ArrowException as error:
            raise ConfigError(
                f"a column does not fit its field of the message subject={subject}"
                f" reason={str(error)!r}"
            ) from error

    def encode(self, structures: Any, head: bytes) -> Any:
        from isotherm.spark.message_fit import fitted_structures

        fields = fitted_structures(structures, self._kind, self._message).flatten()
        rows = pa.RecordBatch.from_arrays(fields, names=[field.name for field in self._kind])
        payloads = self._handler.record_batch_to_array(rows).cast(pa.binary())
        framed = pc.binary_join_element_wise(pa.scalar(head, pa.binary()), payloads, b"")
        return pc.if_else(structures.is_valid(), framed, pa.scalar(None, pa.binary()))


def _nullable(kind: Any) -> Any:
    """The type with fields that may be null: Spark's columns may be, and null is not set."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return kind
