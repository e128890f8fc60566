"""JSON values with a JSON Schema.

The oracle is Python's json, which keeps the texts of numbers here.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.spark.tables import json_schema_values
from isotherm.spark.tables.json_schema_values import JsonSchemaDecoder, declared_type
from isotherm.spark.tables.json_values import DecodedValues
from isotherm.spark.tables.schema_registry import (
    RegisteredSchema,
    RegistrySettings,
    UnknownSchemaError,
)
from isotherm.spark.tables.value_types import ValueType, merged, too_deep
from tests.unit.spark.tables.test_json_values import NUMBERS, Number, exact_double, written

LONGS = range(-(2**63), 2**63)
SCHEMAS: dict[int, Any] = {
    1: {"id": {"type": "integer"}, "price": {"type": "number"}},
    2: {"id": {"type": "number"}},
    3: {
        "list": {"type": "array", "items": {"type": "integer"}},
        "inner": {"type": "object", "properties": {"n": {"type": ["null", "integer"]}}},
    },
}
SCHEMAS[4] = SCHEMAS[1] | SCHEMAS[3]
# Other ways to write whole numbers.
FORMS = st.builds(
    "{}{}.{}".format, st.sampled_from(["", "-"]), st.integers(0, 2**64), st.just("000")
)
POWERS = st.builds("{}.{}E+{}".format, st.integers(0, 9), st.integers(0, 2**60), st.integers(0, 20))
ANY = NUMBERS | FORMS.map(Number) | POWERS.map(Number)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "id": ANY | st.none(),
        "price": ANY,
        "list": st.lists(ANY | st.none(), max_size=3),
        "inner": st.fixed_dictionaries({"n": ANY}),
        "other": ANY,
        "text 3.0 \\": st.just('3.0 "1e2"'),
    },
)


def value(schema: int, text: str) -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + text.encode()


def decoder(fixed: ValueType, known: ValueType) -> JsonSchemaDecoder:
    def type_of_schema(schema: int) -> ValueType:
        if schema not in SCHEMAS:
            raise UnknownSchemaError("the registry does not know it")
        root = {"type": "object", "properties": SCHEMAS[schema]}
        return declared_type(root, root)

    return JsonSchemaDecoder(type_of_schema, fixed, known)


def settled(values: list[bytes], fixed: ValueType = None) -> ValueType:
    """The column type of these values, as a job infers it in one task."""
    found = decoder(fixed, fixed)
    found.decode(pa.array(values, pa.binary()))
    return found.value_type


def decode(values: list[bytes], known: ValueType) -> DecodedValues:
    found = decoder(known, known)
    decoded = found.decode(pa.array(values, pa.binary()))
    assert not found.has_grown
    decoded.column.validate(full=True)
    return decoded


def fitted(number: Any, kind: pa.DataType) -> object:
    """The number as a column has it. AssertionError if it does not fit."""
    if number is None or (isinstance(number, str) and not isinstance(number, Number)):
        return number
    if isinstance(number, list):
        assert isinstance(kind, pa.ListType)
        return [fitted(each, kind.value_type) for each in number]
    if isinstance(number, dict):
        assert isinstance(kind, pa.StructType)
        return {name: fitted(inner, kind.field(name).type) for name, inner in number.items()}
    if kind == pa.float64():
        return exact_double(number)
    exact = Decimal(number)
    assert -50 < exact.adjusted() < 50 or exact == 0
    assert exact == int(exact)
    assert int(exact) in LONGS
    return int(exact)


# Hypothesis draws slowly on a busy machine.
@pytest.mark.slow
@settings(max_examples=40, derandomize=True)
@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_each_number_is_exact_in_its_declared_column_or_its_value_is_dead(
    records: list[Any],
) -> None:
    values = [value(4, written(record)) for record in records]
    known = settled(values)
    assert isinstance(known, pa.StructType)
    kinds = {field.name: field.type for field in known}
    assert (kinds["id"], kinds["price"]) == (pa.int64(), pa.float64())
    decoded = decode(values, known)
    dead = {dead_value.place for dead_value in decoded.dead}
    rows = iter(decoded.column.to_pylist())
    for place, record in enumerate(records):
        typed = {name: each for name, each in record.items() if name in kinds}
        if place not in dead:
            row = next(rows)
            assert fitted(typed, known) == {name: row[name] for name in typed}
            assert not record.keys() - kinds.keys()
        elif typed == record:
            # A field without a column has only numbers that no column has.
            with pytest.raises(AssertionError):
                fitted(record, known)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("3.0", 3),
        ("42.000", 42),
        ("1e2", 100),
        ("-1.50E1", -15),
        ("9e18", 9 * 10**18),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993.0", 2**53 + 1),
        ("1.2345678901234567891e18", None),
        ("1.234567890123456789e18", 1234567890123456789),
        ("9223372036854775807.0", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", None),
        ("9223372036854775808.0", None),
        ("-9223372036854775809", None),
        ("1e400", None),
        ("3.5", None),
        ("0.0", 0),
        ("-0.0", 0),
        ("0e5", 0),
        ("1e-400", None),
        ("1.0.0", None),
        ("01.0", None),
        ("1.", None),
        ("1.0e", None),
        ("1e2.5", None),
        ("-.0", None),
        ("3.0e+", None),
    ],
)
def test_a_declared_integer_is_a_whole_number_in_any_form(sent: str, stored: int | None) -> None:
    plain = value(1, '{"id":7,"price":2.0,"text":"3.0"}')
    odd = value(1, f'{{"id":{sent},"price":1e2}}')
    for values in ([odd, plain], [plain, odd], [plain] * 300 + [odd]):
        known = settled(values)
        assert str(known) == "struct<id: int64, price: double, text: string>"
        # Also if the column is in the table.
        assert settled(values, known) == known
        decoded = decode(values, known)
        rows = decoded.column.to_pylist()
        assert {"id": 7, "price": 2.0, "text": "3.0"} in rows
        assert [dead_value.place for dead_value in decoded.dead] == (
            [values.index(odd)] if stored is None else []
        )
        assert stored is None or {"id": stored, "price": 100.0, "text": None} in rows


def test_a_field_without_a_schema_has_the_type_that_is_found() -> None:
    values = [value(1, '{"id":3.0,"other":3.0}'), value(1, '{"id":4.0,"other":4}')]
    assert str(settled(values)) == "struct<id: int64, price: double, other: double>"
    assert str(settled(values[::-1])) == "struct<id: int64, price: double, other: double>"
    known = settled(values[1:])
    assert str(known) == "struct<id: int64, price: double, other: int64>"
    assert [row["other"] for row in decode(values, known).column.to_pylist()] == [3, 4]
    assert str(settled([value(1, '{"id":5.0,"new":5.0}')], known)) == (
        "struct<id: int64, price: double, other: int64, new: double>"
    )


def test_a_later_schema_may_declare_a_double() -> None:
    values = [value(1, '{"id":1}'), value(2, '{"id":1.5}')]
    assert str(settled(values)) == "struct<id: double, price: double>"
    assert len(decode(values, settled(values)).column) == 2
    # But not if a whole number would be lost, and not for a column of the table.
    large = [value(1, '{"id":9007199254740993}')]
    assert str(settled(large)) == "struct<id: int64, price: double>"
    known = settled(values[:1])
    assert settled(values, known) == known
    assert [dead_value.place for dead_value in decode(values, known).dead] == [1]


def test_found_numbers_do_not_change_a_declared_one() -> None:
    values = [value(1, '{"id":3}')] * 300 + [value(1, '{"id":3.5}')]
    assert str(settled(values)) == "struct<id: int64, price: double>"
    assert [dead_value.place for dead_value in decode(values, settled(values)).dead] == [300]


def test_a_task_tells_the_others_what_a_schema_has_declared() -> None:
    whole, found = settled([value(1, '{"id":1}')]), settled([value(3, '{"id":1.5}')])
    declared = settled([value(3, '{"id":1}'), value(2, '{"id":1}')])
    assert str(merged(whole, found)).startswith("struct<id: int64,")
    assert str(merged(whole, declared)).startswith("struct<id: double,")


def test_values_of_an_unknown_schema_are_dead_and_others_are_not() -> None:
    values = [
        value(1, '{"id":1}'),
        value(9, '{"id":2}'),
        value(1, '{"id":3}'),
        b"{}",
        value(9, "{"),
    ]
    decoded = decode(values, settled(values))
    assert [row["id"] for row in decoded.column.to_pylist()] == [1, 3]
    assert decoded.dead == [
        (1, "the registry does not know it schema_id=9"),
        (3, "it does not begin with a schema id"),
        (4, "the registry does not know it schema_id=9"),
    ]


def test_numbers_in_the_parts_of_a_value() -> None:
    text = '{"list":[1.0,null,9007199254740993],"inner":{"n":2e0}}'
    values = [value(3, text), value(3, '{"list":[1.5]}'), value(3, '{"inner":{"n":0.1}}')]
    known = settled(values)
    assert str(known) == "struct<list: list<item: int64>, inner: struct<n: int64>>"
    decoded = decode(values, known)
    assert decoded.column.to_pylist() == [{"list": [1, None, 2**53 + 1], "inner": {"n": 2}}]
    assert [dead_value.reason for dead_value in decoded.dead] == [
        "field list/[] is not a whole number of 64 bits",
        "field inner/n is not a whole number of 64 bits",
    ]


def test_a_slice_with_nulls_keeps_its_places() -> None:
    sent = [b"", value(1, '{"id":3.0}'), None, value(1, '{"id":NaN}'), value(1, '{"id":5.0}'), b""]
    values = pa.array(sent, pa.binary()).slice(1, 4)
    known = settled([value(1, json.dumps({"id": 1}))])
    found = decoder(known, known).decode(values)
    assert [row and row["id"] for row in found.column.to_pylist()] == [3, None, 5]
    assert [dead_value.place for dead_value in found.dead] == [2]


def arrays_of(levels: int) -> Any:
    kind: Any = {"type": "integer"}
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


def objects_of(levels: int) -> Any:
    kind: Any = {"type": "integer"}
    for _ in range(levels):
        kind = {"type": "object", "properties": {"a": kind, "b": {"type": "string"}}}
    return kind


@pytest.mark.parametrize(
    ("part", "is_declared"),
    [(arrays_of(16), True), (arrays_of(17), False), (objects_of(31), True)],
)
def test_parts_that_are_deeper_than_columns_are_not_declared(part: Any, is_declared: bool) -> None:
    root = {"type": "object", "properties": {"id": {"type": "integer"}, "deep": part}}
    kind = declared_type(root, root)
    assert isinstance(kind, pa.StructType)
    assert [field.name for field in kind] == ["id", "deep"][: 1 + is_declared]
    assert too_deep(kind) is None
    for deeper in (arrays_of(30), objects_of(40)):
        assert too_deep(declared_type(deeper, deeper)) is None


def leaves(kind: ValueType) -> int:
    if isinstance(kind, pa.StructType):
        return sum(leaves(field.type) for field in kind)
    return leaves(kind.value_type) if isinstance(kind, pa.ListType) else 1


def test_references_do_not_make_a_column_of_millions_of_fields() -> None:
    integer = {"type": "integer"}
    node = {"v": integer, **{name: {"$ref": "#/parts/node"} for name in ("left", "right", "up")}}
    whole = {"type": "object", "properties": node}
    tree = {"$ref": "#/parts/node", "parts": {"node": whole}}
    parts = {
        f"P{n}": {
            "type": "object",
            "properties": {f"f{m}": {"$ref": f"#/parts/P{n + 1}"} for m in range(10)},
        }
        for n in range(12)
    }
    wide = {"$ref": "#/parts/P0", "parts": {**parts, "P12": integer}}
    for root in (tree, wide):
        kind = declared_type(root, root)
        assert too_deep(kind) is None
        assert leaves(kind) < 50_000
    kind = declared_type(tree, tree)
    assert isinstance(kind, pa.StructType)
    assert [field.name for field in kind] == ["v", "left", "right", "up"]


@pytest.mark.parametrize("name", ["", "a.b", "a\0b", "a\ud800"])
def test_names_that_no_column_has_are_not_declared(name: str) -> None:
    root = {"type": "object", "properties": {name: {"type": "string"}, "n": {"type": "integer"}}}
    assert str(declared_type(root, root)) == "struct<n: int64>"


@pytest.mark.parametrize("text", ["[" * 100_000, "{"])
def test_values_of_a_schema_that_is_no_json_are_dead(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        json_schema_values, "registered_schema", lambda *_: RegisteredSchema("JSON", text, ())
    )
    with pytest.raises(UnknownSchemaError, match="the schema is no JSON"):
        json_schema_values.schema_type.__wrapped__(RegistrySettings("http://registry"), 1)
