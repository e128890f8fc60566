"""Columns as messages, without Spark. The oracle is google.protobuf, which reads the messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("ptars")
pytest.importorskip("grpc_tools")
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from isotherm.errors import ConfigError
from isotherm.spark.tables.protobuf_schema import message_of
from isotherm.spark.tables.schema_registry import RegisteredSchema
from isotherm.spark.value_encoding import ProtobufEncoder

SCHEMA = RegisteredSchema(
    "PROTOBUF",
    """
syntax = "proto3";
package shop;
message Order {
  Kind kind = 1;
  repeated Kind kinds = 2;
  map<string, Kind> named = 3;
  repeated Place places = 4;
  map<string, Place> visited = 5;
  Place home = 6;
  repeated string tags = 7;
  oneof paid { int64 cents = 8; string voucher = 9; Place at = 10; }
  optional float share = 11;
  repeated float shares = 12;
}
message Place { optional int64 x = 1; string name = 2; Kind kind = 3; repeated int32 sizes = 4; }
enum Kind { option allow_alias = true; OLD = 0; NEW = 1; FRESH = 1; LOST = -1; }
""",
    (),
)
PLACE = pa.struct(
    [
        ("x", pa.int64()),
        ("name", pa.string()),
        ("kind", pa.string()),
        ("sizes", pa.list_(pa.int64())),
    ]
)


def encoded(name: str, kind: Any, values: list[Any]) -> list[Any]:
    """What google.protobuf reads of messages with one field."""
    rows = pa.array([{name: value} for value in values], pa.struct([(name, kind)]))
    read = GetMessageClass(message_of(SCHEMA, (0,)))
    return [
        read.FromString(message.as_py()) for message in ProtobufEncoder(SCHEMA).encode(rows, b"")
    ]


def test_enums_are_their_numbers_by_name_and_by_digits() -> None:
    names = ["OLD", "NEW", "FRESH", "LOST", "7", "-1", None]
    assert [message.kind for message in encoded("kind", pa.string(), names)] == [
        0, 1, 1, -1, 7, -1, 0,
    ]  # fmt: skip
    assert [message.kind for message in encoded("kind", pa.int64(), [1, 7, None])] == [1, 7, 0]
    lists = encoded("kinds", pa.list_(pa.string()), [["NEW", "7"], [], None, ["LOST"]])
    assert [list(message.kinds) for message in lists] == [[1, 7], [], [], [-1]]
    maps = encoded("named", pa.map_(pa.string(), pa.string()), [[("a", "NEW")], None, [("b", "7")]])
    assert [dict(message.named) for message in maps] == [{"a": 1}, {}, {"b": 7}]


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("kind", pa.string(), "new"),
        ("kind", pa.string(), ""),
        ("kinds", pa.list_(pa.string()), ["NEW", "NONE"]),
        ("named", pa.map_(pa.string(), pa.string()), [("a", "NONE")]),
        ("home", PLACE, {"kind": "NONE"}),
        ("places", pa.list_(PLACE), [{"kind": "NONE"}]),
    ],
)
def test_a_name_that_an_enum_lacks_is_refused(name: str, kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"an enum has no such name field=shop\.\S+ name="):
        encoded(name, kind, [None, value])


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("tags", pa.list_(pa.string()), ["a", None, "b"]),
        ("kinds", pa.list_(pa.string()), [None]),
        ("places", pa.list_(PLACE), [{"x": 1}, None]),
        ("visited", pa.map_(pa.string(), PLACE), [("a", None)]),
        ("named", pa.map_(pa.string(), pa.string()), [("a", None)]),
        ("home", PLACE, {"sizes": [1, None]}),
    ],
)
def test_a_null_in_a_list_or_map_is_refused(name: str, kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot have null field=shop\."):
        encoded(name, kind, [None, value])


def test_lists_and_maps_of_messages_are_whole_in_a_slice_too() -> None:
    places = [[{"x": 1, "sizes": [1]}], None, [], [{"x": 2, "name": "b"}, {"sizes": [2, 3]}]]
    kind = pa.struct([("places", pa.list_(PLACE)), ("visited", pa.map_(pa.string(), PLACE))])
    rows = pa.array(
        [
            {"places": one, "visited": [(str(n), p) for n, p in enumerate(one or ())]}
            for one in places
        ],
        kind,
    )
    read = GetMessageClass(message_of(SCHEMA, (0,)))
    encoder = ProtobufEncoder(SCHEMA)
    whole = [read.FromString(message.as_py()) for message in encoder.encode(rows, b"")]
    last = whole[3]
    assert [place.x for place in last.places] == [2, 0]
    assert [list(place.sizes) for place in last.places] == [[], [2, 3]]
    assert last.places[0].name == last.visited["0"].name == "b"
    assert not last.places[1].HasField("x")
    assert list(last.visited["1"].sizes) == [2, 3]
    for start in range(1, 4):
        part = [read.FromString(message.as_py()) for message in encoder.encode(rows[start:], b"")]
        assert part == whole[start:]


def test_a_field_inside_a_field_that_the_message_lacks_is_refused() -> None:
    inner = StructType([StructField("name", StringType()), StructField("city", StringType())])
    kind = StructType([StructField("home", inner), StructField("extra", StringType())])
    with pytest.raises(ConfigError, match=r"no such fields .*fields=\['extra', 'home\.city'\]"):
        ProtobufEncoder(SCHEMA).check(kind, "orders-value")


def test_fields_of_all_kinds_are_accepted_before_there_are_rows() -> None:
    inner = StructType(
        [StructField("kind", StringType()), StructField("sizes", ArrayType(LongType()))]
    )
    kinds = {
        "kind": StringType(),
        "kinds": ArrayType(StringType()),
        "named": MapType(StringType(), StringType()),
        "places": ArrayType(inner),
        "visited": MapType(StringType(), inner),
        "home": inner,
        "tags": ArrayType(StringType()),
    }
    fields = [StructField(name, kind) for name, kind in kinds.items()]
    ProtobufEncoder(SCHEMA).check(StructType(fields), "orders-value")


def test_several_fields_of_one_choice_are_refused() -> None:
    kind = pa.struct([("cents", pa.int64()), ("voucher", pa.string()), ("at", PLACE)])
    encoder, read = ProtobufEncoder(SCHEMA), GetMessageClass(message_of(SCHEMA, (0,)))
    rows: list[Any] = [{"cents": 0}, {"voucher": ""}, {"at": {"x": 1}}, {}, None]
    messages = encoder.encode(pa.array(rows, kind), b"").drop_null()
    chosen = [read.FromString(message.as_py()).WhichOneof("paid") for message in messages]
    assert chosen == ["cents", "voucher", "at", None]
    for both in ({"cents": 1, "voucher": "a"}, {"voucher": "", "at": {}}):
        with pytest.raises(
            ConfigError, match=r"several fields of one choice oneof=shop\.Order\.paid"
        ):
            encoder.encode(pa.array([*rows, both], kind), b"")


def test_a_double_beyond_a_float_is_refused() -> None:
    inf = float("inf")
    read = encoded("share", pa.float64(), [0.5, -inf, 3e38, None])
    assert [message.share for message in read[:2]] == [0.5, -inf]
    assert read[2].share == pytest.approx(3e38)
    assert not read[3].HasField("share")
    for name, kind, value in (
        ("share", pa.float64(), 1e39),
        ("shares", pa.list_(pa.float64()), [1.0, -1e300]),
    ):
        with pytest.raises(ConfigError, match=r"too large for a float field=shop\.Order\.share"):
            encoded(name, kind, [None, value])
