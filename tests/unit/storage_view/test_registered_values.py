"""Values decoded with schemas of a registry, as people read them.

Confluent's serializers are the oracle of tests/oracle/test_registered_records.py. Here a scripted
registry counts its requests.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("grpc_tools")
import fastavro
from google.protobuf.message_factory import GetMessageClass

from isotherm.errors import SchemaRegistryError
from isotherm.spark.tables.framed_values import SchemaId
from isotherm.spark.tables.protobuf_schema import message_of
from isotherm.spark.tables.schema_registry import (
    RegisteredSchema,
    RegistrySettings,
    UnknownSchemaError,
)
from isotherm.storage_view import registered_values
from isotherm.storage_view.registered_values import (
    QUESTIONS_MAX,
    NamedBytes,
    RegisteredValue,
    RegisteredValues,
)
from isotherm.testing.sim_clock import SimClock

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "raw", "type": "bytes"},
        {"name": "next", "type": ["null", "Order"], "default": None},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3";
message First { int32 x = 1; }
message Second { message Inner { int64 big = 1; string name = 2; int32 none = 3; } }
"""


class Registry:
    """Schemas by id, and the ids requested, in order."""

    def __init__(self) -> None:
        self.schemas: dict[SchemaId, RegisteredSchema] = {}
        self.asked: list[SchemaId] = []
        self.is_gone = False

    def find(self, _: RegistrySettings, schema_id: SchemaId) -> RegisteredSchema:
        self.asked.append(schema_id)
        if self.is_gone:
            raise SchemaRegistryError("the schema registry fails")
        if schema_id not in self.schemas:
            raise UnknownSchemaError("the registry has no such schema")
        return self.schemas[schema_id]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(registered_values, "registered_schema", made.find)
    return made


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def values(clock: SimClock) -> RegisteredValues:
    return RegisteredValues(RegistrySettings("http://registry"), clock)


def read_all(
    values: RegisteredValues, some: Sequence[bytes | None]
) -> list[RegisteredValue | None]:
    return values.read_all([NamedBytes(each) for each in some])


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def order(number: int) -> dict[str, Any]:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    return {"id": number, "at": at, "price": Decimal("12.30"), "raw": b"\xff\0", "next": None}


def test_avro_is_json_that_loses_nothing(registry: Registry, values: RegisteredValues) -> None:
    registry.schemas[7] = RegisteredSchema("AVRO", json.dumps(ORDER), ())
    value = {**order(2**60 + 1), "next": order(1)}
    (read,) = read_all(values, [framed(7, avro(ORDER, value))])
    assert read is not None
    assert (read.schema_id, read.kind, read.error) == (7, "AVRO", None)
    found = json.loads(read.text or "")
    assert found["id"] == 2**60 + 1
    assert found["at"] == "2026-01-31T12:00:00+00:00"
    assert (found["price"], found["raw"]) == ("12.30", "ff00")
    assert found["next"]["id"] == 1


@pytest.mark.parametrize(
    "more",
    [{"type": "string", "default": None}, {"type": {"type": "string", "logicalType": "decimal"}}],
)
def test_what_only_writers_need_of_an_avro_schema_may_be_invalid(
    registry: Registry, values: RegisteredValues, more: dict[str, Any]
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", **more}]}
    registry.schemas[7] = RegisteredSchema("AVRO", json.dumps(schema), ())
    (read,) = read_all(values, [framed(7, b"\x02x")])
    assert read is not None
    assert (read.text, read.error) == ('{"f": "x"}', None)


DECIMAL = {"logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "references"),
    [
        ({"type": "bytes", **DECIMAL}, ()),
        ({"type": "fixed", "name": "F", "size": 12, **DECIMAL}, ()),
        ("shop.Price", ({"type": "fixed", "name": "shop.Price", "size": 12, **DECIMAL},)),
    ],
)
def test_a_decimal_with_more_digits_than_its_schema_says_has_them_all(
    registry: Registry, values: RegisteredValues, schema: Any, references: Any
) -> None:
    given = tuple((str(number), json.dumps(each)) for number, each in enumerate(references))
    fields = [{"name": "f", "type": schema}]
    record = {"type": "record", "name": "R", "fields": fields}
    registry.schemas[7] = RegisteredSchema("AVRO", json.dumps(record), given)
    unscaled = (-1_234_567_890_123_456_789_012).to_bytes(12, "big", signed=True)
    payload = avro("bytes", unscaled) if schema == {"type": "bytes", **DECIMAL} else unscaled
    (read,) = read_all(values, [framed(7, payload)])
    assert read is not None
    assert (read.text, read.error) == ('{"f": "-12345678901234567890.12"}', None)


def test_a_number_of_a_million_digits_is_shown_as_its_bytes(
    registry: Registry, values: RegisteredValues
) -> None:
    """Its digits would take a processor for minutes."""
    registry.schemas[7] = RegisteredSchema("AVRO", json.dumps({"type": "bytes", **DECIMAL}), ())
    unscaled = b"\x7f" * 1_000_000
    (read,) = read_all(values, [framed(7, avro("bytes", unscaled))])
    assert read is not None
    assert (read.text, read.error) == (json.dumps(unscaled.hex()), None)


@pytest.mark.parametrize(
    ("logical", "number"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 1_764_400_000_123_000),
        ({"type": "int", "logicalType": "date"}, 2_932_897),
        ({"type": "int", "logicalType": "time-millis"}, 86_400_000),
    ],
)
def test_a_time_that_python_lacks_is_its_number(
    registry: Registry, values: RegisteredValues, logical: dict[str, Any], number: int
) -> None:
    """Mostly a producer has sent microseconds as milliseconds."""
    registry.schemas[7] = RegisteredSchema("AVRO", json.dumps(logical), ())
    (read,) = read_all(values, [framed(7, avro("long", number))])
    assert read is not None
    assert (read.text, read.error) == (str(number), None)


def test_protobuf_is_the_message_that_its_indexes_name(
    registry: Registry, values: RegisteredValues
) -> None:
    schema = RegisteredSchema("PROTOBUF", PROTO, ())
    registry.schemas[3] = schema
    inner = GetMessageClass(message_of(schema, (1, 0)))(big=2**60 + 1, name="ü")
    first = GetMessageClass(message_of(schema, (0,)))(x=5)
    nested = framed(3, bytes([4, 2, 0]) + inner.SerializeToString())
    short = framed(3, b"\0" + first.SerializeToString())
    found = [each and json.loads(each.text or "") for each in read_all(values, [nested, short])]
    assert found == [{"big": str(2**60 + 1), "name": "ü", "none": 0}, {"x": 5}]
    assert registry.asked == [3]


def test_header_names_the_schema_of_the_whole_value(
    registry: Registry, values: RegisteredValues
) -> None:
    guid = uuid.uuid4()
    registry.schemas[guid] = RegisteredSchema("PROTOBUF", PROTO, ())
    registry.schemas[7] = RegisteredSchema("JSON", "{}", ())
    inner = GetMessageClass(message_of(registry.schemas[guid], (1, 0)))(big=5)
    nested, plain, undecoded, absent = values.read_all(
        [
            NamedBytes(inner.SerializeToString(), b"\1" + guid.bytes + bytes([4, 2, 0])),
            NamedBytes(b'{"a": 1}', framed(7, b"")),
            NamedBytes(b'{"a": 1}', b"\2"),
            NamedBytes(None, framed(7, b"")),
        ]
    )
    assert nested is not None
    assert plain is not None
    assert (nested.schema_id, json.loads(nested.text or "")["big"]) == (guid, "5")
    assert (plain.schema_id, plain.text) == (7, '{"a": 1}')
    assert (undecoded, absent) == (None, None)


def test_json_schema_is_the_text_behind_the_frame(
    registry: Registry, values: RegisteredValues
) -> None:
    registry.schemas[1] = RegisteredSchema("JSON", "{}", ())
    read, broken = read_all(values, [framed(1, b'{"delay": 1.10}'), framed(1, b'{"delay"')])
    assert read is not None
    assert read.text == '{"delay": 1.10}'
    assert broken is not None
    assert broken.text is None
    assert "it is not JSON" in (broken.error or "")


@pytest.mark.parametrize("value", [None, b"", b"text", b"\0\0\0\1"])
def test_value_without_a_frame_is_no_value_of_a_schema(
    registry: Registry, values: RegisteredValues, value: bytes | None
) -> None:
    assert read_all(values, [value]) == [None]
    assert registry.asked == []


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("long", b"", "ends before"),
        ("long", b"\x02\x02", "1 bytes are left"),
        ("string", b"\x02\xff", "not Avro of its schema"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\0", "items without bytes"),
        (
            {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
            b"\xfe\xff\xff\xff\x0f\0",
            "items without bytes",
        ),
        ("nothing", b"", "not one of Avro"),
    ],
)  # fmt: skip
def test_value_that_is_not_of_its_schema_says_why(
    registry: Registry, values: RegisteredValues, schema: Any, payload: bytes, reason: str
) -> None:
    registry.schemas[1] = RegisteredSchema("AVRO", json.dumps(schema), ())
    (read,) = read_all(values, [framed(1, payload)])
    assert read is not None
    assert read.text is None
    assert reason in (read.error or "")


def test_registry_is_asked_once_for_each_schema_and_for_few_in_a_step(
    registry: Registry, values: RegisteredValues, clock: SimClock
) -> None:
    binary = [framed(n, b"x") for n in range(QUESTIONS_MAX + 5)]
    read = read_all(values, binary)
    assert len(registry.asked) == QUESTIONS_MAX
    assert "no such schema" in ((read[0] and read[0].error) or "")
    assert "one step asks" in ((read[-1] and read[-1].error) or "")
    read_all(values, binary)
    assert sorted(registry.asked) == list(range(QUESTIONS_MAX + 5))
    registry.schemas[0] = RegisteredSchema("JSON", "{}", ())
    clock.advance(registered_values.UNKNOWN_KEPT_S * 1000)
    (found,) = read_all(values, [framed(0, b"1")])
    assert found is not None
    assert found.text == "1"


def test_registry_that_fails_is_left_alone_for_a_while(
    registry: Registry, values: RegisteredValues, clock: SimClock
) -> None:
    registry.is_gone = True
    read = read_all(values, [framed(n, b"x") for n in range(3)])
    assert [each and each.error for each in read] == ["the schema registry fails"] * 3
    assert registry.asked == [0]
    registry.is_gone = False
    clock.advance(registered_values.FAILURE_KEPT_S * 1000)
    read_all(values, [framed(0, b"x")])
    assert registry.asked == [0, 0]


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


@pytest.mark.parametrize("depth", [20_000, 1_000_000])
@pytest.mark.parametrize(
    "schema",
    [
        NODE,
        {"type": "array", "items": NODE},
        {"type": "record", "name": "A", "fields": [{"name": "b", "type": {
            "type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", "A"]}]}}]},
        {"type": "record", "name": "T", "fields": [
            {"name": "t", "type": {"type": "array", "items": "T"}}]},
        {"type": "record", "name": "M", "fields": [
            {"name": "m", "type": {"type": "map", "values": "M"}}]},
    ],
    ids=["record", "array of records", "two records", "array", "map"],
)  # fmt: skip
def test_value_of_any_depth_is_an_error_and_not_the_end_of_the_process(
    registry: Registry, values: RegisteredValues, schema: Any, depth: int
) -> None:
    """The compiled reader recurses without a bound.

    Each byte opens a level here, as a branch or a count.
    """
    registry.schemas[1] = RegisteredSchema("AVRO", json.dumps(schema), ())
    (found,) = read_all(values, [framed(1, b"\x02" * depth + b"\x00")])
    assert found is not None
    assert found.text is None
    assert "it is not Avro of its schema" in (found.error or "")


def test_value_of_a_recursive_schema_is_read(registry: Registry, values: RegisteredValues) -> None:
    registry.schemas[1] = RegisteredSchema("AVRO", json.dumps(NODE), ())
    (found,) = read_all(values, [framed(1, b"\x02" * 50 + b"\x00")])
    assert found is not None
    assert found.text is not None
    assert found.text.count("next") == 51


def test_schema_that_is_nested_deeply_is_an_error(
    registry: Registry, values: RegisteredValues
) -> None:
    text = '{"type": "array", "items": ' * 900 + '"int"' + "}" * 900
    registry.schemas[1] = RegisteredSchema("AVRO", text, ())
    (found,) = read_all(values, [framed(1, b"\x00")])
    assert found is not None
    assert found.text is None or found.text == "[]"


def test_names_that_are_used_twice_each_are_looked_at_once(
    registry: Registry, values: RegisteredValues
) -> None:
    """A look at each use would be 2^60 of them."""
    schema: Any = "int"
    for level in range(60):
        schema = {
            "type": "record",
            "name": f"R{level}",
            "fields": [
                {"name": "a", "type": schema},
                {"name": "b", "type": ["null", f"R{level - 1}" if level else "int"]},
            ],
        }
    registry.schemas[1] = RegisteredSchema("AVRO", json.dumps(schema), ())
    (found,) = read_all(values, [framed(1, b"\x00" * 100)])
    assert found is not None
