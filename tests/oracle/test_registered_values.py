"""Tables of values with schemas in a real registry, which stores them on Isotherm.

Oracle: Confluent's serializers write the values, and the rows must have the serializers' input.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession

import isotherm.spark
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError, SchemaRegistryError
from isotherm.spark.tables.protobuf_schema import message_of
from isotherm.spark.tables.schema_registry import RegisteredSchema, RegistrySettings
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.record_sources import ClusterRecords
from isotherm.storage_view.registered_values import RegisteredValues
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from oracle.jars import OracleUnavailableError
from oracle.schema_registry import register, schema_registry
from tests.support.console_server import running_console
from tests.support.topic_tables import load_table, rows_of, run_table

pytestmark = pytest.mark.spark

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
SECOND = {**FIRST, "fields": [{"name": "id", "type": "long"}, *FIRST["fields"][1:], NOTE]}
OTHER = {**FIRST, "fields": [{"name": "id", "type": "string"}]}


@dataclass
class Registered:
    """A broker, a registry on it, and the broker's bucket."""

    broker: EmbeddedBroker
    url: str
    client: SchemaRegistryClient

    @property
    def bucket(self) -> Path:
        return self.broker.directory / "bucket"

    def put(
        self,
        topic: str,
        values: list[bytes | None],
        keys: list[bytes | None] | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        servers = {"bootstrap.servers": self.broker.bootstrap_servers}
        admin = AdminClient(servers)
        if topic not in admin.list_topics(timeout=300).topics:
            admin.create_topics([NewTopic(topic, 1, 1, config=TIERED_TOPIC)])[topic].result(300)
        producer = Producer(servers)
        for key, value in zip(keys or [None] * len(values), values, strict=True):
            producer.produce(topic, key=key, value=value, headers=headers)
        assert producer.flush(300) == 0

    def serializer(self, schema: object, topic: str = "orders", field: str = "value") -> Any:
        serialize = AvroSerializer(self.client, json.dumps(schema))
        context = SerializationContext(topic, MessageField(field))
        return lambda value: serialize(value, context)

    def table(self, topic: str, lake: Path, value: str, *options: str) -> dict[str, Any]:
        return run_table(
            topic, self.bucket, "-b", self.broker.bootstrap_servers, "--warehouse", str(lake),
            "--value", value, *options,
        )  # fmt: skip


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    folder = tmp_path_factory.mktemp("registered")
    (folder / "registry").mkdir()
    with EmbeddedBroker(folder / "broker") as broker:
        try:
            with (
                schema_registry(folder / "registry", broker.bootstrap_servers) as url,
                SchemaRegistryClient({"url": url}) as client,
            ):
                yield Registered(broker, url, client)
        except OracleUnavailableError as error:
            pytest.skip(str(error))


def test_avro_by_schemas_that_evolve(
    spark: SparkSession, registered: Registered, tmp_path: Path
) -> None:
    first, second = registered.serializer(FIRST), registered.serializer(SECOND)
    other = register(registered.url, "other", OTHER)
    unknown = b"\0\0\1\0\0x"
    wrong = [unknown, b"{}", b"", b"\0" + other.to_bytes(4, "big") + b"\x02x"]
    old = [{"id": n, "at": 1_700_000_000_000 + n} for n in range(100)]
    new = [{"id": 2**40 + n, "at": n, "note": None if n % 2 else f"n{n}"} for n in range(100)]
    options = ("--registry", registered.url)
    registered.put("orders", [*map(first, old), None, *wrong])
    done = registered.table("orders", tmp_path, "avro", *options)
    assert (done["rows"], done["dead_letters"]) == (101, 4)
    registered.put("orders", [*map(second, new), *map(first, old[:3]), first(old[0]) + b"!"])
    spanned = isotherm.spark.topic(
        spark,
        "orders",
        {
            "path": str(registered.bucket),
            "kafka.bootstrap.servers": registered.broker.bootstrap_servers,
        },
        warehouse=str(tmp_path),
        registry=registered.url,
    )
    assert spanned.count() == 101 + 103
    assert spanned.selectExpr("sum(value.id)").first()[0] == sum(
        each["id"] for each in [*old, *new, *old[:3]]
    )
    done = registered.table("orders", tmp_path, "avro", *options)
    assert (done["rows"], done["dead_letters"]) == (103, 1)

    rows = rows_of(load_table(tmp_path, "kafka.orders"))
    found = [
        row["value"] and {**row["value"], "at": round(row["value"]["at"].timestamp() * 1000)}
        for row in rows
    ]
    assert found == [
        *({**each, "note": None} for each in old), None, *new,
        *({**each, "note": None} for each in old[:3]),
    ]  # fmt: skip
    dead = rows_of(load_table(tmp_path, "kafka.orders_dead_letters"))
    own = int.from_bytes(first(old[0])[1:5], "big")
    assert [row["value"] for row in dead] == [*wrong, first(old[0]) + b"!"]
    assert [row["reason"] for row in dead] == [
        "value: the registry has no such schema schema_id=65536",
        "value: it does not begin with a schema id",
        "value: it does not begin with a schema id",
        f"value: field id changed from int64 to string schema_id={other}",
        f"value: it is not Avro of its schema: 1 bytes are left behind it schema_id={own}",
    ]


def test_keys_by_schemas(spark: SparkSession, registered: Registered, tmp_path: Path) -> None:
    place = {"name": "Place", "type": "record", "fields": [{"name": "shop", "type": "int"}]}
    key_of = registered.serializer(place, "sales", "key")
    wider = {**place, "fields": [*place["fields"], NOTE]}
    wider_key_of = registered.serializer(wider, "sales", "key")
    keys = [key_of({"shop": 1}), None, b"\0\0\1\0\0x", key_of({"shop": 2}), b"5"]
    registered.put("sales", [b"{}", b'{"n": 1}', b'{"n": 2}', b"{", b"["], keys)
    options = ("--key", "avro", "--registry", registered.url)
    done = registered.table("sales", tmp_path, "json", *options)
    assert (done["rows"], done["dead_letters"]) == (2, 3)
    registered.put("sales", [None, b'{"n": 3}'], [wider_key_of({"shop": 3, "note": "x"})] * 2)
    read = {
        "path": str(registered.bucket),
        "kafka.bootstrap.servers": registered.broker.bootstrap_servers,
    }
    frame = isotherm.spark.topic(
        spark, "sales", read, warehouse=str(tmp_path), registry=registered.url
    )
    rows = frame.orderBy("offset").collect()
    assert [row.key and row.key.shop for row in rows] == [1, None, 3, 3]
    done = registered.table("sales", tmp_path, "json", *options)
    assert (done["rows"], done["dead_letters"]) == (2, 0)
    table = rows_of(load_table(tmp_path, "kafka.sales"))
    assert [(row["key"], row["value"] and row["value"]["n"]) for row in table] == [
        ({"shop": 1, "note": None}, None),
        (None, 1),
        ({"shop": 3, "note": "x"}, None),
        ({"shop": 3, "note": "x"}, 3),
    ]
    dead = rows_of(load_table(tmp_path, "kafka.sales_dead_letters"))
    assert [(row["key"], row["value"]) for row in dead] == [
        (keys[2], b'{"n": 2}'), (keys[3], b"{"), (keys[4], b"["),
    ]  # fmt: skip
    assert [row["reason"].partition(":")[0] for row in dead] == ["key", "value", "key"]
    assert dead[0]["reason"] == "key: the registry has no such schema schema_id=65536"
    with pytest.raises(ConfigError, match="option=--key its_value=avro value=raw"):
        registered.table("sales", tmp_path, "json")


def test_schemas_that_headers_name(
    spark: SparkSession, registered: Registered, tmp_path: Path
) -> None:
    framed = registered.serializer(FIRST, "headed")({"id": 5, "at": 0})
    frame, value = framed[:5], framed[5:]
    registered.put("headed", [value, None], headers=[("__value_schema_id", frame)])
    registered.put("headed", [framed])
    # This registry knows no GUIDs.
    guid = UUID(int=7)
    registered.put("headed", [value], headers=[("__value_schema_id", b"\1" + guid.bytes)])
    options = ("--registry", registered.url)
    done = registered.table("headed", tmp_path, "avro", *options)
    assert (done["rows"], done["dead_letters"]) == (3, 1)
    rows = rows_of(load_table(tmp_path, "kafka.headed"))
    assert [row["value"] and row["value"]["id"] for row in rows] == [5, None, 5]
    (dead,) = rows_of(load_table(tmp_path, "kafka.headed_dead_letters"))
    assert dead["value"] == value
    assert dead["reason"] == f"value: the registry has no such schema schema_id={guid}"


ITEM = (
    'syntax = "proto3"; package parts; message Item { string sku = 1; optional uint64 count = 2; }'
)
CART = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "parts/item.proto";
message Before {}
message Cart {
  message Key { int32 shop = 1; }
  enum State { OPEN = 0; PAID = 1; }
  int64 id = 1; State state = 2; repeated parts.Item items = 3; map<string, double> prices = 4;
  google.protobuf.Timestamp at = 5; oneof payment { string card = 6; bool cash = 7; }
}
"""
MORE = CART.replace("int64 id = 1;", "int64 id = 1; optional string note = 8;")


def proto_serializer(registered: Registered, text: str, path: tuple[int, ...], field: str) -> Any:
    """A message class, and a function that serializes its messages with Confluent's serializer.

    That serializer cannot register texts, so it has a mock registry; the function replaces the
    mock's id by the id of `text`.
    """
    register(registered.url, "item", ITEM, "PROTOBUF")
    reference = {"name": "parts/item.proto", "subject": "item", "version": 1}
    text_id = register(registered.url, f"carts-{field}", text, "PROTOBUF", references=[reference])
    made = GetMessageClass(
        message_of(RegisteredSchema("PROTOBUF", text, (("parts/item.proto", ITEM),)), path)
    )
    serialize = ProtobufSerializer(made, SchemaRegistryClient.new_client({"url": "mock://"}))
    context = SerializationContext("carts", MessageField(field))
    return made, lambda value: b"\0" + text_id.to_bytes(4, "big") + serialize(value, context)[5:]


def test_protobuf_keys_and_values(
    spark: SparkSession, registered: Registered, tmp_path: Path
) -> None:
    cart, serialize = proto_serializer(registered, CART, (1,), "value")
    key, serialize_key = proto_serializer(registered, CART, (1, 0), "key")
    first = cart(id=1, state=1, prices={"a": 0.5}, cash=False)
    first.items.add(sku="x", count=2**64 - 1)
    first.at.seconds = 1_700_000_000
    values = [serialize(first), serialize(cart()), None]
    keys = [serialize_key(key(shop=n)) for n in range(3)]
    wrong = [values[0][:-1], b"\0\0\1\0\0\0", values[0][:5] + b"\x02\x10", b"\0\0\0\0\1"]
    registered.put("carts", [*values, *wrong], [*keys, *[keys[0]] * 4])
    options = ("--key", "protobuf", "--registry", registered.url)
    done = registered.table("carts", tmp_path, "protobuf", *options)
    assert (done["rows"], done["dead_letters"]) == (3, 4)
    cart, serialize = proto_serializer(registered, MORE, (1,), "value")
    registered.put("carts", [serialize(cart(id=2, note="n", card="c"))], [keys[2]])
    done = registered.table("carts", tmp_path, "protobuf", *options)
    assert (done["rows"], done["dead_letters"]) == (1, 0)

    empty = {"id": 0, "state": "OPEN", "items": [], "prices": [], "at": None}
    empty |= {"card": None, "cash": None, "note": None}
    expected = [
        empty
        | {"id": 1, "state": "PAID", "items": [{"sku": "x", "count": Decimal(2**64 - 1)}]}
        | {"prices": [("a", 0.5)], "cash": False}
        | {"at": datetime.fromtimestamp(1_700_000_000, UTC)},
        empty,
        None,
        empty | {"id": 2, "note": "n", "card": "c"},
    ]
    rows = rows_of(load_table(tmp_path, "kafka.carts"))
    assert [row["value"] for row in rows] == expected
    assert [row["key"]["shop"] for row in rows] == [0, 1, 2, 2]
    frame = isotherm.spark.topic(
        spark,
        "carts",
        {
            "path": str(registered.bucket),
            "kafka.bootstrap.servers": registered.broker.bootstrap_servers,
        },
        warehouse=str(tmp_path),
        registry=registered.url,
    )
    assert [row.n for row in frame.selectExpr("value.prices['a'] AS n").collect() if row.n] == [0.5]
    dead = rows_of(load_table(tmp_path, "kafka.carts_dead_letters"))
    own = int.from_bytes(values[0][1:5], "big")
    assert [row["reason"] for row in dead] == [
        (
            "value: it is not of its schema: failed to decode Protobuf message: unexpected EOF in"
            f" varint schema_id={own}"
        ),
        "value: the registry has no such schema schema_id=65536",
        f"value: the schema has no such message indexes=[8] schema_id={own}",
        "value: it does not begin with a schema id",
    ]


def test_json_schema_gives_the_types(
    spark: SparkSession, registered: Registered, tmp_path: Path
) -> None:
    del spark
    schema = {
        "type": "object",
        "properties": {"eur": {"type": "number"}, "tag": {"type": "string"}},
    }
    schema_id = register(registered.url, "prices-value", schema, "JSON").to_bytes(4, "big")
    values = [b'{"eur": 1}', b'{"eur": 2.5, "more": true}', b'{"eur": "x"}']
    registered.put(
        "prices", [b"\0" + schema_id + value for value in values] + [b'{"eur": 1}', None]
    )
    done = registered.table("prices", tmp_path, "json-schema", "--registry", registered.url)
    assert (done["rows"], done["dead_letters"]) == (3, 2)
    table = load_table(tmp_path, "kafka.prices")
    assert [row["value"] for row in rows_of(table)] == [
        {"eur": 1.0, "tag": None, "more": None},
        {"eur": 2.5, "tag": None, "more": True},
        None,
    ]
    assert str(table.schema().find_type("value.eur")) == "double"


def test_registry_that_cannot_be_asked_ends_the_run(registered: Registered, tmp_path: Path) -> None:
    registered.put("lost", [b"\0\0\0\0\1\2"])
    nowhere = (
        "--registry",
        f"http://127.0.0.1:{free_ports(1)[0]}",
        "--registry-option",
        "max.retries=0",
    )
    with pytest.raises(SchemaRegistryError, match=r"registry=http://127\.0\.0\.1"):
        registered.table("lost", tmp_path, "avro", *nowhere)
    for options, message in (
        ((), "needs a schema registry value=avro hint='--registry URL'"),
        (("--registry", registered.url, "--registry-option", "no=thing"), "Unrecognized"),
        (("--registry-option", "max.retries=0"), "need its URL"),
    ):
        with pytest.raises(ConfigError, match=message):
            registered.table("lost", tmp_path, "avro", *options)
    with pytest.raises(ConfigError, match="need no schema registry key=raw value=json"):
        registered.table("lost", tmp_path, "json", "--registry", registered.url)


@pytest.mark.nightly
def test_console_shows_them_as_they_were_put(registered: Registered) -> None:
    """One topic has keys and values of all kinds, and one value with an unknown schema."""
    serialize = registered.serializer(SECOND, "mixed")
    text = 'syntax = "proto3"; message First {} message Second { int64 id = 1; string note = 2; }'
    kind = GetMessageClass(message_of(RegisteredSchema("PROTOBUF", text, ()), (1,)))
    text_id = register(registered.url, "mixed-protobuf", text, "PROTOBUF").to_bytes(4, "big")
    # One index, which is 1: the second message of the file.
    message = b"\0" + text_id + b"\2\2" + kind(id=2**53 + 1, note="n").SerializeToString()
    draft = "http://json-schema.org/draft-07/schema#"
    json_id = register(registered.url, "json", {"$schema": draft, "type": "object"}, "JSON")
    in_json = b"\0" + json_id.to_bytes(4, "big") + b'{"delay": 1.10}'
    in_avro = serialize({"id": 2**53 + 1, "at": 1_700_000_000_000, "note": None})
    unknown = b"\0\0\1\0\0x"
    registered.put(
        "mixed", [in_avro, message, in_json, unknown, None], [in_avro, None, b"plain", None, None]
    )
    properties = {"bootstrap.servers": registered.broker.bootstrap_servers}
    clock = SystemClock()
    with running_console(
        lambda: StorageReader(properties, clock),
        records=ClusterRecords(properties, clock),
        registered=RegisteredValues(RegistrySettings(registered.url), clock),
    ) as address:
        answer = urllib.request.urlopen(f"{address}/api/topics/mixed/partitions/0/records")
        records = json.load(answer)["records"]
    values = [record["value"] and record["value"]["registered"] for record in records]
    assert [value and value["kind"] for value in values] == ["AVRO", "PROTOBUF", "JSON", None, None]
    assert json.loads(values[0]["text"]) == {
        "id": 2**53 + 1,
        "at": "2023-11-14T22:13:20+00:00",
        "note": None,
    }
    assert json.loads(values[1]["text"]) == {"id": str(2**53 + 1), "note": "n"}
    assert values[2]["text"] == '{"delay": 1.10}'
    assert "no such schema" in values[3]["error"]
    assert records[0]["key"]["registered"]["text"] == values[0]["text"]
    assert "registered" not in records[2]["key"]
