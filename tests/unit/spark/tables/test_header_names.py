"""Values whose records name the schema in a header.

Confluent's serializers and their registry for tests are the oracle.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("polars")
import pyarrow as pa
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.row_schema import arrow_schema
from isotherm.spark.tables import schema_registry
from isotherm.spark.tables.framed_values import Framing
from isotherm.spark.tables.header_names import NAME_HEADERS, last_header, named_value, named_values
from isotherm.spark.tables.protobuf_schema import message_of
from isotherm.spark.tables.registry_values import open_codec
from isotherm.spark.tables.schema_registry import RegisteredSchema, RegistrySettings
from isotherm.spark.tables.table_rows import SOURCE_SCHEMA, decoded_rows
from isotherm.spark.tables.value_formats import decoders_of, first_types, formats
from isotherm.spark.tables.value_types import KeyValue

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "shop", "type": "string"}]}
JSON_ORDER = {"title": "Order", "type": "object", "properties": {"id": {"type": "number"}}}
PROTO = (
    'syntax = "proto3"; message First { int32 x = 1; }'
    " message Second { message In { int64 id = 1; } }"
)

Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with SchemaRegistryClient.new_client({"url": "mock://names"}) as made:
        monkeypatch.setattr(schema_registry, "_client", lambda _: made)
        open_codec.cache_clear()
        yield made
    open_codec.cache_clear()


def by_id(payload: bytes, context: Any, schema_id: Any) -> bytes:
    """The header with the registry's number, which Confluent's deserializers read too."""
    context.headers.append((f"__{context.field}_schema_id", schema_id.id_to_bytes()))
    return payload


def rows_of(key: str, value: str, records: list[Record]) -> tuple[list[Any], list[Any]]:
    """Rows and dead letters, as the second pass of a run makes them."""
    fields = [
        {"topic": "t", "partition": 0, "offset": n, "timestamp": 0, "timestampType": 0}
        | {"key": key_bytes, "value": value_bytes}
        | {"headers": [{"key": k, "value": v} for k, v in headers] or None}
        for n, (key_bytes, value_bytes, headers) in enumerate(records)
    ]
    batch = pa.RecordBatch.from_pylist(fields, schema=arrow_schema(SOURCE_SCHEMA))
    registry = RegistrySettings("http://registry")
    wanted, fixed = formats(key, value, registry), first_types(key, value)
    first = decoders_of(wanted, fixed, fixed)
    decoded_rows(batch, first)
    known = KeyValue(*(each.value_type for each in first))
    rows, dead, _ = decoded_rows(batch, decoders_of(wanted, known, known))
    rows.validate(full=True)
    return rows.to_pylist(), dead.to_pylist()


def written(
    serializer: Any, value: Any, field: str = "value", headers: Headers | None = None
) -> tuple[bytes, Headers]:
    named: Headers = [] if headers is None else headers
    return serializer(value, SerializationContext("t", field, named)), named


@pytest.mark.parametrize(
    "serialize_id", [header_schema_id_serializer, by_id, prefix_schema_id_serializer]
)
def test_avro_of_keys_and_values(client: Any, serialize_id: Any) -> None:
    conf = {"schema.id.serializer": serialize_id}
    key_of = AvroSerializer(client, json.dumps(PLACE), conf=conf)
    value_of = AvroSerializer(client, json.dumps(ORDER), conf=conf)
    records: list[Record] = []
    for number in range(5):
        key, headers = written(key_of, {"shop": f"s{number}"}, MessageField.KEY, [("other", b"x")])
        value, _ = written(value_of, {"id": number}, MessageField.VALUE, headers)
        records.append((key, value if number else None, headers))
    rows, dead = rows_of("avro", "avro", records)
    assert dead == []
    assert [row["key"] for row in rows] == [{"shop": f"s{number}"} for number in range(5)]
    assert [row["value"] for row in rows] == [None, *({"id": number} for number in range(1, 5))]
    # Headers stay as they are.
    assert [(each["key"], each["value"]) for each in rows[1]["headers"]] == records[1][2]


def guid_of(client: Any, kind: str, text: str) -> uuid.UUID:
    return uuid.UUID(client.register_schema_full_response("t-value", Schema(text, kind)).guid)


def test_json_schema(client: Any) -> None:
    name = SchemaId("JSON", guid=str(guid_of(client, "JSON", json.dumps(JSON_ORDER))))
    headers: Headers = []
    context = SerializationContext("t", MessageField.VALUE, headers)
    value = header_schema_id_serializer(b'{"id": 3}', context, name)
    assert value == b'{"id": 3}'
    rows, dead = rows_of("raw", "json-schema", [(None, value, headers)])
    assert (dead, rows[0]["value"]) == ([], {"id": 3.0})


def test_protobuf_has_its_indexes_in_the_header(client: Any) -> None:
    pytest.importorskip("grpc_tools")
    made = GetMessageClass(message_of(RegisteredSchema("PROTOBUF", PROTO, ()), (1, 0)))
    conf = {"schema.id.serializer": header_schema_id_serializer, "use.deprecated.format": False}
    value, headers = written(ProtobufSerializer(made, client, conf=conf), made(id=2**40))
    assert value == made(id=2**40).SerializeToString()
    ((name, header),) = headers
    assert header is not None
    # The serializer registers a descriptor. Other clients register the text of the file, as here.
    named = b"\1" + guid_of(client, "PROTOBUF", PROTO).bytes + header[17:]
    rows, dead = rows_of("raw", "protobuf", [(None, value, [(name, named)])])
    assert (dead, rows[0]["value"]) == ([], {"id": 2**40})


def test_what_is_no_name_in_a_header(client: Any) -> None:
    """The bytes of the value are not taken for a part of it."""
    value_of = AvroSerializer(client, json.dumps(ORDER))
    prefixed, _ = written(value_of, {"id": 7})
    name = NAME_HEADERS.value
    for header in (b"", b"\2", prefixed[:4], b"\1" * 16):
        rows, dead = rows_of("raw", "avro", [(None, prefixed[4:], [(name, header)])])
        assert rows == []
        assert dead[0]["reason"] == "value: it does not begin with a schema id"
        assert dead[0]["value"] == prefixed[4:]
    # A header without a value does not count, nor that of keys; of two the last one does; what is
    # behind it does not.
    for value, headers in (
        (prefixed, [(name, None)]),
        (prefixed, [(NAME_HEADERS.key, b"\2")]),
        (prefixed[5:], [(name, b"\2"), (name, prefixed[:5])]),
        (prefixed[5:], [(name, prefixed[:5] + b"more")]),
    ):
        rows, dead = rows_of("raw", "avro", [(None, value, headers)])
        assert (dead, rows[0]["value"]) == ([], {"id": 7})


NAMES = st.sampled_from([*NAME_HEADERS, "other", ""])
FRAMES = st.sampled_from([b"\0\0\0\0\1", b"\0\0\0\0\1\0", b"\1" + b"g" * 16, b"\2", b""])


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=4),
            st.none() | st.lists(st.tuples(NAMES, st.none() | FRAMES), max_size=4),
        ),
        max_size=12,
    ),
    st.integers(0, 3),
    st.booleans(),
)
def test_columns_are_as_single_values(
    records: list[tuple[bytes | None, Headers | None]], skipped: int, has_path: bool
) -> None:
    kind = arrow_schema(SOURCE_SCHEMA).field("headers").type
    before: list[tuple[bytes | None, Headers | None]] = [
        (b"v", [("__value_schema_id", b"\0\0\0\0\7")])
    ]
    whole = before * skipped + records
    values = pa.array([value for value, _ in whole], pa.binary())[skipped:]
    headers = pa.array(
        [each and [{"key": k, "value": v} for k, v in each] for _, each in whole], kind
    )[skipped:]
    found = named_values(values, headers, NAME_HEADERS.value, Framing(has_path))
    found.validate(full=True)
    assert found.to_pylist() == [
        named_value(value, last_header(each or [], NAME_HEADERS.value), has_path=has_path)
        for value, each in records
    ]
    assert named_values(values, headers, NAME_HEADERS.value, None) is values
