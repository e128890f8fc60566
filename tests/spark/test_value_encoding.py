"""Columns become values of registered schemas: read by other implementations of each format."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame, SparkSession

from isotherm.errors import ConfigError
from isotherm.spark.tables.protobuf_schema import message_of
from isotherm.spark.tables.schema_registry import RegisteredSchema, RegistrySettings
from isotherm.spark.value_encoding import encoded_columns
from oracle.jars import resolve_spark_avro_jars
from tests.support.spark_driver import SparkDriver
from tests.support.table_histories import serve_schemas

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
PROTOBUF = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int32 id = 1;
  string city = 2;
  repeated string tags = 3;
  Place place = 4;
  Kind kind = 5;
  google.protobuf.Timestamp at = 6;
  map<string, int64> counts = 7;
  optional double share = 8;
}
message Place { int64 x = 1; string name = 2; }
enum Kind { OLD = 0; NEW = 1; }
"""
JSON_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
SCHEMAS = {
    7: {"subject": "avro-value", "schema": json.dumps(AVRO)},
    8: {"subject": "proto-value", "schemaType": "PROTOBUF", "schema": PROTOBUF},
    9: {"subject": "json-value", "schemaType": "JSON", "schema": json.dumps(JSON_SCHEMA)},
    10: {"subject": "proto-key", "schemaType": "PROTOBUF", "schema": PROTOBUF},
}
AT = datetime.datetime(2024, 2, 29, 12, 0, 1, 500_000, tzinfo=datetime.UTC)


@pytest.fixture
def registry() -> Iterator[RegistrySettings]:
    with serve_schemas(SCHEMAS) as url:
        yield RegistrySettings(url)


def frame_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [
            (1, "Z\u00fcrich", ["a", "b"], (5,), "NEW", AT, {"n": 3}, 0.5, "k1"),
            (2, None, [], None, None, None, None, None, None),
            (300, "", None, (None,), "OLD", AT, {}, 0.0, "k3"),
        ],
        "id int, city string, tags array<string>, place struct<x:bigint>, kind string,"
        " at timestamp, counts map<string,bigint>, share double, key string",
    )


def values_of(frame: DataFrame, column: str = "value") -> list[bytes | None]:
    return [row[0] and bytes(row[0]) for row in frame.select(column).collect()]


def read_message(value: bytes, schema_id: int) -> dict[str, Any]:
    assert value[:6] == b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    message = GetMessageClass(message_of(RegisteredSchema("PROTOBUF", PROTOBUF, ()), (0,)))()
    message.ParseFromString(value[6:])
    return MessageToDict(message)


def test_messages_are_read_by_protobufs_own_parser(
    spark: SparkSession, registry: RegistrySettings
) -> None:
    encoded = encoded_columns(frame_of(spark), "proto", "binary", "protobuf", registry)
    assert [read_message(value or b"", 8) for value in values_of(encoded)] == [
        {
            "id": 1,
            "city": "Z\u00fcrich",
            "tags": ["a", "b"],
            "place": {"x": "5"},
            "kind": "NEW",
            "at": "2024-02-29T12:00:01.500Z",
            "counts": {"n": "3"},
            "share": 0.5,
        },
        {"id": 2},
        {"id": 300, "place": {}, "at": "2024-02-29T12:00:01.500Z", "share": 0.0},
    ]
    assert [row.key for row in encoded.select("key").collect()] == ["k1", None, "k3"]


def test_a_null_key_stays_null(spark: SparkSession, registry: RegistrySettings) -> None:
    frame = frame_of(spark).selectExpr(
        "CASE WHEN id = 1 THEN named_struct('id', id) END AS key", "'v' AS value"
    )
    keys = values_of(encoded_columns(frame, "proto", "protobuf", "binary", registry), "key")
    assert read_message(keys[0] or b"", 10) == {"id": 1}
    assert keys[1:] == [None, None]


def test_columns_are_encoded_whatever_their_names_are(
    spark: SparkSession, registry: RegistrySettings
) -> None:
    frame = frame_of(spark).limit(1)
    upper = frame.selectExpr("struct(id) AS Value", "struct(city) AS KEY")
    for name, schema_id in (("proto", 8), ("json", 9)):
        formats = ("json", {"proto": "protobuf", "json": "json-schema"}[name])
        encoded = encoded_columns(upper, name, *formats, registry)
        assert sorted(encoded.columns) == ["key", "value"]
        (value,) = values_of(encoded)
        assert (value or b"")[:5] == b"\0" + schema_id.to_bytes(4, "big")
    odd = frame.selectExpr("id AS `a.b`", "id AS `c``d`", "city AS `Key`")
    encoded = encoded_columns(odd, "json", "binary", "json", None)
    assert [json.loads(row.value) for row in encoded.collect()] == [{"a.b": 1, "c`d": 1}]


def test_json_of_a_schema_has_its_id(spark: SparkSession, registry: RegistrySettings) -> None:
    encoded = encoded_columns(
        frame_of(spark).select("id", "city"), "json", "binary", "json-schema", registry
    )
    values = [value or b"" for value in values_of(encoded)]
    assert {value[:5] for value in values} == {b"\0\0\0\0\x09"}
    assert [json.loads(value[5:]) for value in values] == [
        {"id": 1, "city": "Z\u00fcrich"},
        {"id": 2, "city": None},
        {"id": 300, "city": ""},
    ]


@pytest.mark.parametrize(
    ("topic", "columns", "value_format", "message"),
    [
        ("other", "id", "json-schema", "no schema of the subject subject=other-value"),
        ("json", "id", "protobuf", "of another format subject=json-value kind=JSON"),
        ("json", "city", "json-schema", r"missing=\['id'\] excluded=\[\]"),
        ("json", "id, tags", "json-schema", r"missing=\[\] excluded=\['tags'\]"),
        ("proto", "id, id AS extra", "protobuf", r"no such fields .*fields=\['extra'\]"),
        ("proto", "tags AS id", "protobuf", "does not fit its field"),
        ("proto", "'v' AS value", "protobuf", "a message is made of columns"),
        ("avro", "id", "avro", "needs Spark's package spark-avro"),
        ("json", "id", "yaml", "unknown format option=--value-format value='yaml'"),
    ],
)
def test_columns_that_a_schema_cannot_hold_are_refused(
    spark: SparkSession,
    registry: RegistrySettings,
    topic: str,
    columns: str,
    value_format: str,
    message: str,
) -> None:
    frame = frame_of(spark).selectExpr(*columns.split(", "))
    with pytest.raises(ConfigError, match=message):
        encoded_columns(frame, topic, "binary", value_format, registry)


def test_a_registered_format_needs_a_registry(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="needs a schema registry value=avro"):
        encoded_columns(frame_of(spark), "avro", "binary", "avro", None)


ENCODE = """
import isotherm.spark
from isotherm.spark.tables.schema_registry import RegistrySettings
from isotherm.spark.value_encoding import encoded_columns

config = {"spark.jars": given["jars"], **short_lived}
spark = isotherm.spark.session("avro", master="local[1]", config=config)
rows = [(1, "Z", ["a"]), (2, None, [])]
frame = spark.createDataFrame(rows, "id long, city string, tags array<string>")
encoded = encoded_columns(frame, "avro", "binary", "avro", RegistrySettings(given["registry"]))
answer("values", [[bytes(row.value).hex()] for row in encoded.collect()])
spark.stop()
"""


@pytest.mark.slow
def test_avro_of_sparks_package_is_read_by_fastavro(
    registry: RegistrySettings, tmp_path: Path
) -> None:
    jars = ",".join(str(path) for path in resolve_spark_avro_jars())
    given = {"jars": jars, "registry": registry.url}
    with SparkDriver(tmp_path / "driver", ENCODE, given) as driver:
        values = [bytes.fromhex(text) for (text,) in driver.answer("values")]
    assert {value[:5] for value in values} == {b"\0\0\0\0\x07"}
    read: list[Any] = [
        fastavro.schemaless_reader(io.BytesIO(value[5:]), fastavro.parse_schema(AVRO), None)
        for value in values
    ]
    assert read == [
        {"id": 1, "city": "Z", "tags": ["a"]},
        {"id": 2, "city": None, "tags": []},
    ]
