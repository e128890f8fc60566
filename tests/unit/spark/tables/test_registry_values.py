"""Batches of several schemas as one column. The oracle is fastavro, which reads each value with a
schema that has all fields of the table."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.tables.avro_values import AvroCodec
from isotherm.spark.tables.framed_values import SchemaName
from isotherm.spark.tables.json_schema_values import declared_type
from isotherm.spark.tables.json_values import DeadValue
from isotherm.spark.tables.registry_values import RegistryDecoder
from isotherm.spark.tables.schema_registry import RegisteredSchema, UnknownSchemaError
from isotherm.spark.tables.value_types import ValueType

INNER = [("x", "long"), ("y", {"type": "map", "values": "long"})]
FIELDS: list[tuple[str, Any]] = [
    ("a", "int"),
    ("b", "string"),
    ("c", {"type": "array", "items": "boolean"}),
    ("d", "float"),
]


def record(name: str, fields: list[tuple[str, Any]]) -> Any:
    made = [{"name": field, "type": ["null", kind], "default": None} for field, kind in fields]
    return {"type": "record", "name": name, "fields": made}


WHOLE = record("R", [*FIELDS, ("in", record("I", INNER))])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": st.integers(-9, 9),
    "b": st.text(max_size=3),
    "c": st.lists(st.booleans(), max_size=2),
    "d": st.floats(width=32, allow_nan=False),
    "x": st.integers(-9, 9),
    "y": st.dictionaries(st.text(max_size=2), st.integers(-9, 9), max_size=2),
}


@st.composite
def evolved(draw: st.DrawFn) -> Any:
    """A schema with some of the fields, in any order."""
    inner = draw(st.lists(st.sampled_from(INNER), min_size=1, unique_by=lambda each: each[0]))
    chosen = draw(st.lists(st.sampled_from(FIELDS), unique_by=lambda each: each[0]))
    return record("R", draw(st.permutations([*chosen, ("in", record("I", inner))])))


def value_of(draw: Any, schema: Any) -> dict[str, Any]:
    found = {}
    for field in schema["fields"]:
        name, kind = field["name"], field["type"][1]
        inner = value_of(draw, kind) if name == "in" else draw(VALUES[name])
        found[name] = None if draw(st.integers(0, 4)) == 0 else inner
    return found


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    target = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    target.seek(5)
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def decoder_for(schemas: list[Any], fixed: ValueType, known: ValueType) -> RegistryDecoder:
    def open_codec(name: SchemaName) -> AvroCodec:
        if name.id >= len(schemas):
            raise UnknownSchemaError("no such schema")
        return AvroCodec(RegisteredSchema("AVRO", json.dumps(schemas[name.id]), ()))

    return RegistryDecoder(open_codec, fixed, known)


def settled(schemas: list[Any], payloads: Any) -> RegistryDecoder:
    """The decoder with the column types that these payloads give, as a job makes it."""
    grown = decoder_for(schemas, None, None)
    grown.decode(payloads)
    return decoder_for(schemas, grown.value_type, grown.value_type)


def row_of(schema: Any, written: Any) -> Any:
    """The row expected for what fastavro reads with the table's schema. Maps are lists of pairs."""
    if written is None:
        return None
    row = dict(written)
    for field in schema["fields"]:
        value = row[field["name"]]
        if field["name"] == "in":
            row["in"] = row_of(field["type"][1], value)
        elif field["name"] == "y" and value is not None:
            row["y"] = list(value.items())
    return row


@pytest.mark.slow
@given(st.lists(evolved(), min_size=1, max_size=3), st.data())
def test_rows_of_several_schemas_have_all_fields(schemas: list[Any], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(schemas)), max_size=30))
    values: list[bytes | None] = []
    rows: list[Any] = []
    for place in places:
        if place == len(schemas):
            values.append(None)
            rows.append(None)
            continue
        schema = schemas[place]
        value = framed(place, schema, value_of(data.draw, schema))
        values.append(value)
        read: Any = fastavro.schemaless_reader(
            io.BytesIO(value[5:]), fastavro.parse_schema(schema), fastavro.parse_schema(WHOLE)
        )
        rows.append(row_of(WHOLE, read))
    payloads = pa.array(values, pa.binary())
    decoder = settled(schemas, payloads)
    column, dead = decoder.decode(payloads)
    column.validate(full=True)
    assert not dead
    assert not decoder.has_grown
    assert [with_all(WHOLE, row) for row in column.to_pylist()] == rows


def with_all(schema: Any, row: Any) -> Any:
    """The row, with None for fields that none of the schemas has."""
    if row is None:
        return None
    found = {field["name"]: row.get(field["name"]) for field in schema["fields"]}
    if "in" in found:
        inner = next(f["type"][1] for f in schema["fields"] if f["name"] == "in")
        found["in"] = with_all(inner, found["in"])
    return found


def test_whole_numbers_become_doubles_until_the_column_is_settled() -> None:
    schemas = [record("R", [("a", "long")]), record("R", [("a", "double")])]
    values = [framed(0, schemas[0], {"a": 1}), framed(1, schemas[1], {"a": 0.5})]
    payloads = pa.array(values, pa.binary())
    assert settled(schemas, payloads).decode(payloads).column.to_pylist() == [{"a": 1}, {"a": 0.5}]
    longs = pa.struct([("a", pa.int64())])
    decoded = decoder_for(schemas, longs, longs).decode(payloads)
    assert decoded.column.to_pylist() == [{"a": 1}]
    assert decoded.dead == [DeadValue(1, "field a changed from int64 to double schema_id=1")]


def test_whole_numbers_that_no_double_is_are_dead() -> None:
    inner = record("I", [("x", "long"), ("y", {"type": "array", "items": "long"})])
    doubles = pa.struct(
        [
            ("in", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float64()))])),
            ("m", pa.map_(pa.string(), pa.float64())),
        ]
    )
    schema = record("R", [("in", inner), ("m", {"type": "map", "values": "long"})])
    odd = 2**53 + 1
    rows: list[dict[str, Any]] = [
        {"in": {"x": 2**62, "y": [1, -odd + 1]}, "m": {"k": 2}},
        {"in": {"x": odd, "y": []}, "m": {}},
        {"in": None, "m": None},
        {"in": {"x": None, "y": [1, odd]}, "m": {}},
        {"in": {"x": 1, "y": None}, "m": {"j": 1, "k": odd}},
        {"in": {"x": 3, "y": [4]}, "m": {}},
    ]
    payloads = pa.array([framed(0, schema, row) for row in rows] + [b"\0\0\0\0\0\1"])
    column, dead = decoder_for([schema], doubles, doubles).decode(payloads)
    assert [row["in"] for row in column.to_pylist()] == [rows[n]["in"] for n in (0, 2, 5)]
    places = {1: "in/x", 3: "in/y/[]", 4: "m/{}"}
    assert dead[:3] == [
        DeadValue(
            place,
            "it does not fit its column: a whole number is not exact as a double"
            f" field={path} number={odd} schema_id=0",
        )
        for place, path in places.items()
    ]
    assert [dead_value.place for dead_value in dead] == [1, 3, 4, 6]


@pytest.mark.parametrize(("fields", "fits"), [(9_998, True), (10_000, False)])
def test_the_most_columns_of_a_schema(fields: int, fits: bool) -> None:
    kinds = [{"name": f"f{n}", "type": "long"} for n in range(fields)]
    text = json.dumps({"type": "record", "name": "R", "fields": kinds})
    if fits:
        assert AvroCodec(RegisteredSchema("AVRO", text, ())).column is not None
    else:
        with pytest.raises(UnknownSchemaError, match="more than 10000 columns"):
            AvroCodec(RegisteredSchema("AVRO", text, ()))


def test_records_that_use_each_other_many_times_do_not_grow_without_bound() -> None:
    kind: Any = "long"
    for level in range(12):
        fields = [{"name": f"f{n}", "type": kind if n == 0 else f"R{level - 1}"} for n in range(10)]
        fields = [{**field, "type": "long"} for field in fields] if level == 0 else fields
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(UnknownSchemaError, match="more than 10000 columns"):
        AvroCodec(RegisteredSchema("AVRO", json.dumps(kind), ()))


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"name": "a.b", "type": "long"}, "a column cannot have this name field='a.b'"),
        ({"name": "", "type": "long"}, "a column cannot have this name field=''"),
        ({"name": "a\0b", "type": "long"}, r"a column cannot have this name field='a\\x00b'"),
        ({"name": "a\ud800", "type": "long"}, "a column cannot have this name"),
        ({"name": "a", "type": {"type": "fixed", "name": "F", "size": 0}}, "no bytes type=F"),
    ],
)
def test_schemas_that_no_table_has_make_dead_letters(field: dict[str, Any], reason: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [field]}
    with pytest.raises(UnknownSchemaError, match=reason):
        AvroCodec(RegisteredSchema("AVRO", json.dumps(schema), ()))


def test_schemas_with_names_that_differ_in_case_only_make_dead_letters() -> None:
    fields = [{"name": name, "type": "long"} for name in ("a", "A")]
    schemas = [
        {"type": "record", "name": f"R{n}", "fields": some}
        for n, some in enumerate((fields[:1], fields[1:], fields))
    ]
    rows = [{"a": 1}, {"A": 2}, {"a": 3, "A": 4}]
    payloads = pa.array([framed(n, schemas[n], row) for n, row in enumerate(rows)])
    decoder = settled(schemas, payloads)
    assert str(decoder.value_type) == "struct<a: int64>"
    decoded = decoder.decode(payloads)
    assert decoded.column.to_pylist() == [{"a": 1}]
    assert decoded.dead == [
        DeadValue(n, f"field A differs in case only from a schema_id={n}") for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "record", "name": "R", "fields": [{"name": "in", "type": ["null", "R"]}]},
            "part",
        ),
        ({"type": "array", "items": "null"}, "have no bytes"),
        ("nothing", "cannot be a column|not one of Avro"),
        ({"type": "record"}, "cannot be a column|not one of Avro"),
    ],
)
def test_schemas_that_no_column_has_make_dead_letters(schema: Any, reason: str) -> None:
    with pytest.raises(UnknownSchemaError, match=reason):
        AvroCodec(RegisteredSchema("AVRO", json.dumps(schema), ()))


def of_one_field(kind: Any, **more: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind, **more}]}


@pytest.mark.parametrize(
    ("kind", "default", "written"),
    [("string", None, "x"), ("int", "x", 7), (["null", "string"], "x", None), ("int", 1.5, 7)],
)
def test_a_default_of_another_type_is_no_part_of_a_value(
    kind: Any, default: Any, written: Any
) -> None:
    """Registries have accepted such schemas, and Java's deserializer reads their values."""
    value = framed(0, of_one_field(kind), {"f": written})
    payloads = pa.array([value], pa.binary())
    schema = of_one_field(kind, default=default)
    decoded = settled([schema], payloads).decode(payloads)
    assert (decoded.column.to_pylist(), decoded.dead) == ([{"f": written}], [])


@pytest.mark.parametrize(
    "logical",
    [
        {},
        {"precision": 0},
        {"precision": "4"},
        {"precision": True},
        {"precision": 4, "scale": 5},
        {"precision": 4, "scale": -1},
        {"type": "fixed", "name": "F", "size": 2, "precision": 10},
        {"type": "fixed", "name": "F", "size": 2, "precision": 5},
    ],
)
def test_an_invalid_decimal_is_bytes_as_avro_has_it(logical: dict[str, Any]) -> None:
    kind = {"type": "bytes", **logical}
    value = framed(0, of_one_field(kind), {"f": b"\x01\x02"})
    schema = of_one_field({**kind, "logicalType": "decimal"})
    payloads = pa.array([value], pa.binary())
    decoded = settled([schema], payloads).decode(payloads)
    assert (decoded.column.to_pylist(), decoded.dead) == ([{"f": b"\x01\x02"}], [])


@pytest.mark.parametrize(("precision", "is_decimal"), [(4, True), (5, False)])
def test_a_fixed_decimal_has_the_digits_of_its_bytes(precision: int, is_decimal: bool) -> None:
    kind = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal"}
    schema = {**kind, "precision": precision}
    codec = AvroCodec(RegisteredSchema("AVRO", json.dumps(schema), ()))
    assert codec.column == (pa.decimal128(4, 0) if is_decimal else pa.binary())


def test_references_are_types_of_other_schemas() -> None:
    other = json.dumps(record("I", INNER))
    schema = {"type": "record", "name": "R", "fields": [{"name": "in", "type": "I"}]}
    codec = AvroCodec(RegisteredSchema("AVRO", json.dumps(schema), (("I", other),)))
    assert str(codec.column) == "struct<in: struct<x: int64, y: map<string, int64>>>"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["null", "number"]}, pa.float64()),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, pa.string()),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, None),
        ({"$ref": "#/$defs/a"}, pa.struct([("b", pa.bool_())])),
        ({"$ref": "#/$defs/self"}, None),
        ({"$ref": "https://elsewhere/x"}, None),
        ({"type": "object", "properties": {"x.y": {"type": "string"}}}, None),
    ],
)
def test_types_that_json_schemas_declare(schema: Any, expected: ValueType) -> None:
    root = {
        "$defs": {
            "a": {"type": "object", "properties": {"b": {"type": "boolean"}, "c": True}},
            "self": {"$ref": "#/$defs/self"},
        }
    }
    assert declared_type(schema, root) == expected


def nested(levels: int, *, repeated: int) -> Any:
    """A record with so many levels, of which so many are arrays or maps."""
    kind: Any = "long"
    for level in range(levels - 1):
        kind = {"type": "record", "name": f"R{level}", "fields": [{"name": "x", "type": kind}]}
        if level < repeated:
            word = "items" if level % 2 else "values"
            kind = {"type": "array" if level % 2 else "map", word: kind["fields"][0]["type"]}
    return {"type": "record", "name": "Whole", "fields": [{"name": "x", "type": kind}]}


@pytest.mark.parametrize(
    ("levels", "repeated", "reason"),
    [
        (32, 0, None),
        (32, 16, None),
        (33, 0, "fields are nested deeper than 32"),
        (18, 17, "lists and maps are nested deeper than 16"),
        (200, 0, "fields are nested deeper than 32"),
        (100, 99, "lists and maps are nested deeper than 16"),
    ],
)
def test_schemas_with_too_many_levels_make_dead_letters(
    levels: int, repeated: int, reason: str | None
) -> None:
    schema = nested(levels, repeated=repeated)
    # Empty arrays and maps, or the number.
    payloads = pa.array([b"\0\0\0\0\0\0"], pa.binary())
    decoder = decoder_for([schema], None, None)
    decoder.decode(payloads)
    assert decoder.has_grown == (reason is None)
    column, dead = decoder_for([schema], decoder.value_type, decoder.value_type).decode(payloads)
    if reason is None:
        assert (len(column), dead) == (1, [])
    else:
        told = f"the schema cannot be a column: {reason} schema_id=0"
        assert (len(column), dead) == (0, [DeadValue(0, told)])
