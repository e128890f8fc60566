"""Protobuf messages as columns. The oracle is google.protobuf: the rows have what it reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.protobuf import _create_index_array
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.spark.tables.schema_registry import RegisteredSchema, UnknownSchemaError

pytest.importorskip("ptars")
pytest.importorskip("grpc_tools")
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from isotherm.spark.tables.framed_values import SchemaName
from isotherm.spark.tables.protobuf_schema import message_of
from isotherm.spark.tables.protobuf_values import ProtobufCodec
from isotherm.spark.tables.registry_values import RegistryDecoder

PROTO3 = """
syntax = "proto3";
package shop.v3;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "parts/other.proto";
message Before { int32 x = 1; }
message All {
  map<string, Inner> first = 50;
  enum Color { RED = 0; BLUE = 1; SOME = -7; }
  message Inner {
    int32 x = 1; optional int32 y = 2; repeated string texts = 3; parts.Other other = 4;
  }
  message Empty {}
  double f1 = 1; float f2 = 2; int32 f3 = 3; int64 f4 = 4; uint32 f5 = 5; uint64 f6 = 6;
  sint32 f7 = 7; sint64 f8 = 8; fixed32 f9 = 9; fixed64 f10 = 10; sfixed32 f11 = 11;
  sfixed64 f12 = 12; bool f13 = 13; string f14 = 14; bytes f15 = 15; Color f16 = 16;
  optional uint64 o1 = 17; optional string o2 = 18; optional Color o3 = 19;
  Inner inner = 20; repeated Inner inners = 21; Empty nothing = 22;
  repeated int64 r1 = 23; repeated uint64 r2 = 24; repeated Color r3 = 25; repeated bytes r4 = 26;
  repeated sint32 r5 = 27 [packed = false];
  map<int32, string> m1 = 28; map<bool, Color> m2 = 29;
  map<uint64, google.protobuf.Timestamp> m3 = 30;
  oneof choice { int32 c1 = 31; string c2 = 32; Inner c3 = 33; Empty c4 = 34; }
  google.protobuf.Timestamp at = 35; repeated google.protobuf.Timestamp ats = 36;
  google.protobuf.Duration took = 37; google.type.Date day = 38;
  google.protobuf.Int64Value w1 = 39; google.protobuf.StringValue w2 = 40;
  google.protobuf.BoolValue w3 = 41; repeated google.protobuf.UInt64Value w4 = 42;
}
"""
OTHER = 'syntax = "proto3"; package parts; message Other { string name = 1; }'
PROTO2 = """
syntax = "proto2";
enum Size { option allow_alias = true; NONE = 0; SMALL = 1; LARGE = 5; GREAT = 5; }
message All {
  message Inner {
    required int32 x = 1; optional string y = 2 [default = "z"]; extensions 100 to 200;
  }
  required string name = 1; optional int32 count = 2 [default = 7]; optional Size size = 3;
  repeated Inner inners = 4; optional Inner inner = 5; repeated Size sizes = 6 [packed = true];
  map<string, Size> by_name = 7;
  oneof choice { int32 c1 = 8; bool c2 = 9; }
}
"""  # fmt: skip
SEEDS = st.integers(0, 2**32)
OWN_REASON = "several fields of one choice are there oneof=choice"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# As timestamp.proto has it.
YEARS_S = (-62_135_596_800, 253_402_300_799)
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@cache
def message(syntax: str) -> Descriptor:
    if syntax == "proto2":
        return message_of(RegisteredSchema("PROTOBUF", PROTO2, ()), (0,))
    schema = RegisteredSchema("PROTOBUF", PROTO3, (("parts/other.proto", OTHER),))
    return message_of(schema, (1,))


@cache
def message_without_maps() -> Descriptor:
    """PROTO3's message with each map as what it is on the wire, a repeated message.

    Read as a map, google.protobuf drops entries that contain unknown fields.
    """
    pool = DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        described = FileDescriptorProto.FromString(file.serialized_pb)
        for kind in described.message_type:
            for nested in kind.nested_type:
                nested.options.ClearField("map_entry")
        pool.Add(described)

    whole = message("proto3")
    add(whole.file)
    found: Descriptor = pool.FindMessageTypeByName(whole.full_name)
    return found


@cache
def codec(syntax: str) -> ProtobufCodec:
    return ProtobufCodec(message(syntax))


def scalar(rng: Random, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind in INTEGERS:
        lowest, highest = INTEGERS[kind]
        return rng.choice([lowest, highest, rng.randint(max(lowest, -2), 2)])
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [value.number for value in field.enum_type.values]
        return rng.choice(numbers if field.enum_type.is_closed else [*numbers, 99])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.randint(0, 3))
    if field.type == FieldDescriptor.TYPE_STRING:
        return "".join(rng.choices("a\0é€😀", k=rng.randint(0, 3)))
    return rng.choice([0.0, -0.0, 0.5, 2.0**60, 1e-45, 0.1, float("inf"), float("nan")])


def fill(rng: Random, target: Any) -> None:
    """Set some of the fields."""
    kind = target.DESCRIPTOR
    if kind.full_name == "google.protobuf.Timestamp":
        lowest, highest = YEARS_S
        ends = [-(2**63), 2**63 - 1, lowest - 1, lowest, highest, highest + 1]
        target.seconds = rng.choice([*ends, *[rng.randint(lowest, highest) for _ in range(20)]])
        target.nanos = rng.choice([-1, 0, 10**9 - 1, 10**9, *[rng.randrange(10**9)] * 12])
        return
    for field in kind.fields:
        if field.is_required or rng.random() < 0.4:
            fill_field(rng, target, field)


def fill_field(rng: Random, target: Any, field: FieldDescriptor) -> None:
    entry, found = field.message_type, getattr(target, field.name)
    if entry is not None and entry.GetOptions().map_entry:
        keys, items = entry.fields
        for key in [scalar(rng, keys) for _ in range(rng.randint(0, 2))]:
            if items.message_type is None:
                found[key] = scalar(rng, items)
            else:
                fill(rng, found[key])
    elif field.is_repeated:
        for _ in range(rng.randint(0, 2)):
            if entry is None:
                found.append(scalar(rng, field))
            else:
                fill(rng, found.add())
    elif entry is None:
        setattr(target, field.name, scalar(rng, field))
    else:
        found.SetInParent()
        fill(rng, found)


def expected(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return row(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal(value)
    return repr(value) if isinstance(value, float) else value


def is_entry(kind: Descriptor) -> bool:
    """Whether the message is an entry of a map, or was one before `message_without_maps`."""
    is_map: bool = kind.GetOptions().map_entry
    return is_map or (
        kind.containing_type is message_without_maps() and kind.name.endswith("Entry")
    )


def row(value: Any) -> Any:
    """The row expected for a message that google.protobuf has read.

    Raises OverflowError if no row can have it.
    """
    name = value.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        if not 0 <= value.nanos < 10**9:
            raise OverflowError
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return expected(value.DESCRIPTOR.fields[0], value.value)
    found = {}
    for field in value.DESCRIPTOR.fields:
        inner = getattr(value, field.name)
        if field.message_type is not None and not field.message_type.fields:
            continue
        if field.message_type is not None and is_entry(field.message_type):
            keys, items = field.message_type.fields
            is_map = field.message_type.GetOptions().map_entry
            entries = inner if is_map else {record.key: record.value for record in inner}
            pairs = [(expected(keys, key), expected(items, each)) for key, each in entries.items()]
            found[field.name] = sorted(pairs, key=lambda pair: repr(pair[0]))
        elif field.is_repeated:
            found[field.name] = [expected(field, each) for each in inner]
        else:
            is_there = not field.has_presence or value.HasField(field.name)
            found[field.name] = expected(field, inner) if is_there else None
    return found


def plain(value: Any) -> Any:
    """The row with entries of maps ordered by key, and with floats as texts, which tell -0.0 from
    0.0 and let NaN equal itself."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        inner = [plain(each) for each in value]
        is_map = any(isinstance(each, tuple) for each in inner)
        return sorted(inner, key=lambda pair: repr(pair[0])) if is_map else inner
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    return repr(value) if isinstance(value, float) else value


@pytest.mark.slow
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@given(SEEDS)
def test_rows_are_what_google_reads(syntax: str, seed: int) -> None:
    rng = Random(seed)
    check_messages(codec(syntax), GetMessageClass(message(syntax)), rng)


def check_messages(tried: ProtobufCodec, make: Any, rng: Random) -> None:
    """Compare some messages with their rows. Those that no row can have are dead."""
    made = [make() for _ in range(rng.randint(0, 4))]
    for each in made:
        fill(rng, each)
    values = pa.array([each.SerializeToString() for each in made], pa.binary())
    column, dead = tried.decode(values)
    column.validate(full=True)
    rows, unfit = [], []
    for place, each in enumerate(made):
        try:
            rows.append(row(each))
        except OverflowError:
            unfit.append(place)
    assert [dead_value.place for dead_value in dead] == unfit
    assert all(
        dead_value.reason.startswith("it does not fit its column: a ") for dead_value in dead
    )
    assert plain(column.to_pylist()) == rows


_KINDS = dict(FieldDescriptorProto.Type.items())
SCALARS = [
    kind for name, kind in _KINDS.items() if name not in ("TYPE_MESSAGE", "TYPE_GROUP", "TYPE_ENUM")
]
KEYS = [
    kind
    for name, kind in _KINDS.items()
    if kind in SCALARS and name not in ("TYPE_DOUBLE", "TYPE_FLOAT", "TYPE_BYTES")
]
KNOWN_FILES = (timestamp_pb2, duration_pb2, wrappers_pb2)


class RandomSchema:
    """A file with some messages, each of which may contain those before it. The last one contains
    all kinds of fields that a seed gives it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._types = [
            f".{type_.full_name}"
            for file in KNOWN_FILES
            for type_ in file.DESCRIPTOR.message_types_by_name.values()
        ]
        self._file = FileDescriptorProto(name="random.proto", package="random")
        self._file.syntax = rng.choice(["proto2", "proto3"])
        self._file.dependency.extend(each.DESCRIPTOR.name for each in KNOWN_FILES)
        enum = self._file.enum_type.add(name="E")
        for number in [0, *rng.sample(range(-(2**31), 2**31), 3)]:
            enum.value.add(name=f"V{number}".replace("-", "_"), number=number)
        for _ in range(rng.randint(1, 3)):
            self._add_message()

    def message(self) -> Descriptor:
        pool = DescriptorPool()
        for each in KNOWN_FILES:
            pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
        pool.Add(self._file)
        found: Descriptor = pool.FindMessageTypeByName(self._types[-1][1:])
        return found

    def _add_message(self) -> None:
        made = self._file.message_type.add(name=f"M{len(self._types)}")
        made.oneof_decl.add(name="choice")
        for number in range(1, self._rng.randint(2, 7)):
            kind = self._rng.choice(["single", "repeated", "map", "choice"])
            field = made.field.add(name=f"x{number}", number=number)
            field.label = (
                field.LABEL_REPEATED if kind in ("repeated", "map") else field.LABEL_OPTIONAL
            )
            if kind == "map":
                entry = made.nested_type.add(name=f"X{number}Entry")
                entry.options.map_entry = True
                key = entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL)
                key.type = self._rng.choice(KEYS)
                self._set_type(entry.field.add(name="value", number=2, label=field.LABEL_OPTIONAL))
                field.type, field.type_name = (
                    field.TYPE_MESSAGE,
                    f".random.{made.name}.{entry.name}",
                )
                continue
            self._set_type(field)
            if kind == "choice":
                field.oneof_index = 0
        if not any(each.HasField("oneof_index") for each in made.field):
            del made.oneof_decl[:]
        self._types.append(f".random.{made.name}")

    def _set_type(self, field: FieldDescriptorProto) -> None:
        kind = self._rng.choice(["scalar", "scalar", "enum", "message"])
        if kind == "scalar":
            field.type = self._rng.choice(SCALARS)
        elif kind == "enum":
            field.type, field.type_name = field.TYPE_ENUM, ".random.E"
        else:
            field.type, field.type_name = field.TYPE_MESSAGE, self._rng.choice(self._types)


@pytest.mark.slow
@given(SEEDS)
def test_rows_of_random_schemas_are_what_google_reads(seed: int) -> None:
    rng = Random(seed)
    kind = RandomSchema(rng).message()
    check_messages(ProtobufCodec(kind), GetMessageClass(kind), rng)


@pytest.mark.slow
@given(SEEDS)
def test_cut_bytes_are_read_as_google_does_or_dead(seed: int) -> None:
    rng = Random(seed)
    texts = [text[: rng.randint(0, len(text))] for text in written(rng, 20)]
    refused = check_texts(texts)
    assert not refused


@pytest.mark.slow
@given(SEEDS)
@example(3834004)  # an entry of a map has an unknown field, and a timestamp that no row can have
def test_altered_bytes_are_read_as_google_does(seed: int) -> None:
    """The reader accepts more than google.protobuf: it does not check the width of unknown numbers,
    nor which group an end marker belongs to."""
    rng = Random(seed)
    texts = []
    for text in map(bytearray, written(rng, 20)):
        for _ in range(rng.randint(0, 2)):
            at = rng.randint(0, len(text))
            text[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        texts.append(bytes(text))
    check_texts(texts)


def written(rng: Random, count: int) -> list[bytes]:
    made = [GetMessageClass(message("proto3"))() for _ in range(count)]
    for each in made:
        fill(rng, each)
    return [each.SerializeToString() for each in made]


def check_texts(texts: list[bytes]) -> list[bytes]:
    """Compare the rows with google.protobuf's. Returns the texts that only google.protobuf refuses.

    The codec may also make a dead letter of a text that no serializer writes.
    """
    make = GetMessageClass(message_without_maps())
    column, dead = codec("proto3").decode(pa.array(texts, pa.binary()))
    column.validate(full=True)
    reasons = {dead_value.place: dead_value.reason for dead_value in dead}
    rows = iter(column)
    refused = []
    for place, text in enumerate(texts):
        found = None if place in reasons else next(rows)
        try:
            read = make.FromString(text)
            wanted = row(read)
        except (DecodeError, UnicodeDecodeError):
            if found is not None:
                refused.append(text)
        except OverflowError:
            assert found is None  # a timestamp that no row can have
        else:
            if found is None:
                assert reasons[place].rpartition(": ")[2] == OWN_REASON
            else:
                assert plain(found.as_py()) == wanted
    assert next(rows, None) is None
    return refused


def test_values_that_are_not_of_the_schema_are_dead() -> None:
    good = b"\x0a\x01x"
    texts = [
        good,
        b"\x0a\x02x",
        b"",
        b"\x0a\x01\xff",
        good + b"\x22\x00",
        good + b"\x40\x01\x48\x01",
        b"\x0a" + b"\xff" * 9 + b"\x01x",
    ]
    column, dead = codec("proto2").decode(pa.array(texts, pa.binary()))
    assert [each["name"] for each in column.to_pylist()] == ["x"]
    assert [(dead_value.place, dead_value.reason.rpartition(": ")[2]) for dead_value in dead] == [
        (1, "unexpected EOF"),
        (2, "a required field is missing field=name"),
        (3, "invalid UTF-8"),
        (4, "a required field is missing field=x"),
        (5, "several fields of one choice are there oneof=choice"),
        (6, "slice index starts at 10 but ends at 9"),
    ]


def test_of_entries_with_the_same_key_the_last_counts() -> None:
    entry = [
        b"\x3a\x05\x0a\x01a\x10\x01",
        b"\x3a\x05\x0a\x01b\x10\x05",
        b"\x3a\x05\x0a\x01a\x10\x05",
    ]
    texts = [b"\x0a\x01x" + b"".join(entry), b"\x0a\x01y" + entry[0]]
    column, dead = codec("proto2").decode(pa.array(texts, pa.binary()))
    assert not dead
    assert [dict(each["by_name"]) for each in column.to_pylist()] == [
        {"a": "LARGE", "b": "LARGE"},
        {"a": "SMALL"},
    ]


def test_of_entries_without_a_value_the_default_counts() -> None:
    """prost, of Rust, writes neither keys nor values that are the default.

    The oracle is google.protobuf.
    """
    text = """
    enum E { B = 0; A = 3; }
    message In {
      optional int32 x = 1; optional string y = 2; repeated string z = 3; map<int32, string> w = 4;
    }
    message M { map<string, In> messages = 1; map<int64, E> enums = 2; map<bool, bytes> texts = 3; }
    """
    kind = message_of(RegisteredSchema("PROTOBUF", f'syntax = "proto2";{text}', ()), (1,))
    values = [b"\x0a\x03\x0a\x01a", b"\x0a\x00", b"\x12\x00\x1a\x00", b"", b"\x12\x02\x10\x00"]
    column, dead = ProtobufCodec(kind).decode(pa.array(values, pa.binary()))
    assert not dead
    read = [GetMessageClass(kind).FromString(value) for value in values]
    assert plain(column.to_pylist()) == [row(each) for each in read]
    assert column[0].as_py()["messages"] == [("a", {"x": None, "y": None, "z": [], "w": []})]


@pytest.mark.parametrize(("nanos", "is_dead"), [(0, False), (999_999_000, False), (1, True)])
def test_keys_that_differ_in_nanoseconds_do_not_become_one(nanos: int, is_dead: bool) -> None:
    made = timestamp_pb2.Timestamp(seconds=YEARS_S[0], nanos=nanos)
    values = pa.array([b"", made.SerializeToString()], pa.binary())
    whole = timestamp_pb2.Timestamp.DESCRIPTOR
    assert len(ProtobufCodec(whole).decode(values).column) == 2
    column, dead = ProtobufCodec(whole, is_compared=True).decode(values)
    assert len(column) == 2 - is_dead
    assert [dead_value.reason for dead_value in dead] == [
        "it does not fit its column: a key's timestamp has nanoseconds nanos=1"
    ] * is_dead


@pytest.mark.parametrize("nanos", [-1, 10**9, -(2**31), 2**31 - 1])
def test_timestamps_with_nanos_beyond_a_second_are_dead(nanos: int) -> None:
    made = timestamp_pb2.Timestamp(seconds=5, nanos=nanos).SerializeToString()
    dead = ProtobufCodec(timestamp_pb2.Timestamp.DESCRIPTOR).decode(pa.array([made])).dead
    assert [dead_value.reason for dead_value in dead] == [
        f"it does not fit its column: a timestamp's nanos are not in a second nanos={nanos}"
    ]


NESTED_BEHIND_MAPS = """
syntax = "proto3";
message Before { map<string, int32> m = 1; message Inner { int32 y = 1; } }
message M {
  map<string, int32> m1 = 1;
  message First { int32 x = 1; map<string, int32> m = 2; message Deep { int32 z = 1; } }
  map<string, int32> m2 = 2;
  message Second { int32 y = 1; }
  message Third { int32 z = 1; }
}
"""
BY_TEXT = {
    (1, 0): "M.First", (1, 1): "M.Second", (1, 2): "M.Third", (1, 0, 0): "M.First.Deep",
    (0, 0): "Before.Inner",
}  # fmt: skip
# As confluent-kafka-python counts, where that is no message of the text.
BY_DESCRIPTOR = {
    (1, 3): "M.Second", (1, 4): "M.Third", (0, 1): "Before.Inner", (1, 1, 1): "M.First.Deep",
}  # fmt: skip


@pytest.mark.parametrize("path", [*BY_TEXT, *BY_DESCRIPTOR])
def test_indexes_lead_to_a_nested_message_behind_maps(path):
    message = message_of(RegisteredSchema("PROTOBUF", NESTED_BEHIND_MAPS, ()), path)
    assert message.full_name == {**BY_TEXT, **BY_DESCRIPTOR}[path]
    assert (tuple(_create_index_array(message)) == path) == (path in BY_DESCRIPTOR)


@pytest.mark.parametrize("path", [(1, 5), (1, 0, 2), (0, 2)])
def test_indexes_behind_maps_that_lead_to_no_message_are_refused(path):
    with pytest.raises(UnknownSchemaError, match="no such message"):
        message_of(RegisteredSchema("PROTOBUF", NESTED_BEHIND_MAPS, ()), path)


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ('syntax = "proto3"; message M { M m = 1; }', (0,), "a part of itself message=M"),
        ("message {", (0,), "not one of Protobuf: schema.proto:1:9"),
        ('syntax = "proto3"; import "no.proto"; message M {}', (0,), "no.proto: File not found"),
        ('syntax = "proto3"; message M {}', (1,), r"no such message indexes=\[1\]"),
        ('syntax = "proto3"; message M {}', (0, -1), r"no such message indexes=\[0, -1\]"),
        ('syntax = "proto3"; message M { message E {} repeated E e = 1; }', (0,),
         "no fields field=M.e"),
        ('syntax = "proto2"; message M { optional group G = 1 { } }', (0,), "a group .*field=M.g"),
        (
            'syntax = "proto3"; message M { A a = 1; A b = 2; }'
            + "".join(
                f"message {a} {{ {b} a = 1; {b} b = 2; {b} c = 3; {b} d = 4; }}"
                for a, b in zip("ABCDEFGH", "BCDEFGHI", strict=True)
            )
            + "message I { int32 x = 1; }",
            (0,),
            "more than 10000 columns",
        ),
    ],
)  # fmt: skip
def test_schemas_that_no_column_has_make_dead_letters(
    text: str, path: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(UnknownSchemaError, match=reason):
        ProtobufCodec(message_of(RegisteredSchema("PROTOBUF", text, ()), path))


def test_references_stay_in_the_folder() -> None:
    schema = RegisteredSchema("PROTOBUF", 'syntax = "proto3";', (("../x.proto", ""),))
    with pytest.raises(UnknownSchemaError, match=r"name='../x\.proto'"):
        message_of(schema, (0,))


OF_CONNECT = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
message Price {
  confluent.type.Decimal amount = 1 [(confluent.field_meta) = {
    params: [{ key: "precision", value: "10" }, { key: "scale", value: "2" }]
  }];
}
"""


def test_files_of_confluent_need_no_reference() -> None:
    """Its serializers register none to files of their own."""
    price = message_of(RegisteredSchema("PROTOBUF", OF_CONNECT, ()), (0,))
    sent = GetMessageClass(price)(amount={"value": b"\x04\xd2", "precision": 10, "scale": 2})
    payloads = pa.array([sent.SerializeToString()], pa.binary())
    decoded = ProtobufCodec(price).decode(payloads)
    amount = {"value": b"\x04\xd2", "precision": 10, "scale": 2}
    assert (decoded.column.to_pylist(), decoded.dead) == ([{"amount": amount}], [])


def test_a_registered_file_is_before_the_one_of_that_name() -> None:
    other = 'syntax = "proto3"; package confluent.type; message Decimal { string text = 1; }'
    text = 'syntax = "proto3"; import "confluent/type/decimal.proto";'
    text += "message Price { confluent.type.Decimal amount = 1; }"
    references = (("confluent/type/decimal.proto", other),)
    price = message_of(RegisteredSchema("PROTOBUF", text, references), (0,))
    assert str(ProtobufCodec(price).column) == "struct<amount: struct<text: string>>"


def test_indexes_lead_to_messages_that_lie_in_others() -> None:
    """The counting of Confluent's serializers: the message of a map does not count."""
    schema = RegisteredSchema("PROTOBUF", PROTO3, (("parts/other.proto", OTHER),))
    assert message_of(schema, (0,)).full_name == "shop.v3.Before"
    assert message_of(schema, (1, 0)).full_name == "shop.v3.All.Inner"


@pytest.mark.parametrize("kinds", [("int32", "string"), ("string", "uint64"), ("bool", "int64")])
def test_values_whose_maps_have_keys_of_another_type_are_dead(kinds: tuple[str, str]) -> None:
    """The first type of a column stays, and the others do not end the run."""
    schemas = [
        RegisteredSchema(
            "PROTOBUF", f'syntax = "proto3"; message M {{ map<{kind}, int32> m = 1; }}', ()
        )
        for kind in kinds
    ]
    messages = [message_of(schema, (0,)) for schema in schemas]
    keys: dict[str, Any] = {"int32": 1, "int64": 1, "uint64": 2**63, "string": "a", "bool": True}
    values = [
        b"\0\0\0\0"
        + bytes([number, 0])
        + GetMessageClass(message)(m={keys[kind]: 5}).SerializeToString()
        for number, (kind, message) in enumerate(zip(kinds, messages, strict=True))
    ]

    def open_codec(name: SchemaName) -> ProtobufCodec:
        assert isinstance(name.id, int)
        return ProtobufCodec(messages[name.id])

    first = ProtobufCodec(messages[0]).column
    decoder = RegistryDecoder(open_codec, first, first, has_path=True)
    column, dead = decoder.decode(pa.array(values, pa.binary()))
    assert not decoder.has_grown
    assert column.to_pylist() == [{"m": [(keys[kinds[0]], 5)]}]
    assert [letter.place for letter in dead] == [1]
    assert "field m/{key} changed from" in dead[0].reason
