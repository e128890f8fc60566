"""JSON values as columns. The oracle is Python's json, which keeps the texts of numbers here."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import reduce
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types

from isotherm.spark.tables import json_values
from isotherm.spark.tables.json_values import NESTING_MAX, DecodedValues, JsonDecoder
from isotherm.spark.tables.value_formats import ValueFormat, settled_decoders
from isotherm.spark.tables.value_types import (
    KeyValue,
    ValueType,
    column_type,
    merged,
    too_deep,
    unmarked,
)


class Number(str):
    """The text of a JSON number."""

    @property
    def is_whole(self) -> bool:
        return self.lstrip("-").isdigit()


SIGNS = st.sampled_from(["", "-"])
WHOLE = st.integers(0, 10**40).map(str) | st.sampled_from(
    [str(2**n + more) for n in (52, 53, 54, 62, 63, 64, 70) for more in (-1, 0, 1)]
)
DIGITS = st.from_regex(r"[0-9]{1,40}", fullmatch=True)
POWERS = st.from_regex(r"[eE][+-]?[0-9]{1,3}", fullmatch=True)
NUMBERS = (
    st.builds("{}{}".format, SIGNS, WHOLE)
    | st.builds("{}{}.{}".format, SIGNS, WHOLE, DIGITS)
    | st.builds("{}{}.{}{}".format, SIGNS, st.sampled_from("0123"), DIGITS, POWERS)
    | st.builds("{}{}{}".format, SIGNS, WHOLE, POWERS)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
).map(Number)
# Arrow refuses 0e999.
NUMBERS = NUMBERS.filter(lambda number: "e" not in number.lower() or Decimal(number) != 0)
NAMES = st.sampled_from(["a", "b", "c", "ä"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1).map(str).map(Number)
    | st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr).map(Number)
    | NUMBERS
    | st.text('az{[]}:,"\\\n ä€😀', max_size=4)
)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner), max_leaves=8
)
VALUES = st.one_of(
    st.none(),
    st.dictionaries(NAMES, DOCUMENTS).map(lambda value: written(value).encode()),
    st.sampled_from(
        [
            *(b"", b"null", b"17", b"[]", b"\xff", b'{"a":"\xff"}', b'{"a":"\\ud800"}'),
            *(b'{"a":1', b',"b":2}', b'1}{"v":2', b'1},"v":{"a":2}', b'1,"w":2', b'{"a":1}{}'),
            *(b'{"a":1,"a":2}', b' {"a" :\n1}\n', b'{"a":1e400}', b'{"":1}', b'{"x.y":1}'),
            *(b'{"a":18446744073709551616}', b'{"a":1.0}', b'{"\\udc00":1}', b'{"b":[{"x.y":1}]}'),
            *(
                b'{"A":1}',
                b'{"a":1,"A":2}',
                b'{"A":null}',
                b'{"c":[{"x":1},{"X":2}]}',
                b'{"Z":{},"z":1}',
            ),
            *(b'{"a":NaN}', b'{"a":[-Infinity]}', b'{"a":Inf}', b'{"b":{"c":-NaN}}', b'{"a":01}'),
            *(b'{"a":+1}', b'{"a":1.}', b'{"a":.5}', b'{"a":1e}', b'{"a":0x1}', b"{'a':1}"),
            *(b'{"a":[1,]}', b'{"a":1,}', b'{"a":1}//', b'{"a":/**/1}', b'{"a":"\t"}'),
            *(b'{"a":"\\x"}', b'\xef\xbb\xbf{"a":1}', b'{"a":tRUE}', b'{"a":"NaN"}'),
            *(b'{"a":1,"\\u0061":2}', b'{"a":"\\udc00\\ud800"}', b'{"a":[null,null]}'),
            *(b'{"a":-0}', b'{"a":-0.0}', b'{"a":0e99}', b'{"a":1e-400}', b'{"a":1E2}'),
            *(b'{"a":[9007199254740993,1.5]}', b'{"a":[1.5,9007199254740993]}'),
            *(b'{"x.y":null}', b'{"":[{}]}', b'{"c":{"a":1,"a":null}}', b'{"a":"\\ud83d\\ude00"}'),
        ]
    ),
)


def settled(values: list[bytes | None], fixed: ValueType = None) -> ValueType:
    """The column type of these values, as a job infers it in one task."""
    decoder = JsonDecoder(fixed, fixed)
    column = decoder.decode(pa.array(values, pa.binary())).column
    assert len(column) == 0 or not decoder.has_grown
    return decoder.value_type


def decode(values: list[bytes | None], known: ValueType) -> DecodedValues:
    decoder = JsonDecoder(known, known)
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert not decoder.has_grown
    decoded.column.validate(full=True)
    return decoded


def written(value: Any) -> str:
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}: {written(inner)}" for name, inner in value.items())
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return value if isinstance(value, Number) else json.dumps(value)


def no_number(name: str) -> NoReturn:
    raise AssertionError(name)


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def model(value: bytes | None, kind: ValueType) -> object:
    """The value in a column of this type, by Python's json. AssertionError if it does not fit."""
    if value is None:
        return None
    try:
        parsed = json.loads(
            value.decode(),
            object_pairs_hook=unique,
            parse_int=Number,
            parse_float=Number,
            parse_constant=no_number,
        )
        json.dumps(parsed, ensure_ascii=False).encode()
    except ValueError as error:
        raise AssertionError from error
    assert parsed is None or isinstance(parsed, dict)
    shape(parsed)
    return fitted(parsed, kind)


def shape(parsed: Any) -> Any:
    """The kinds in a value. AssertionError if an array mixes kinds, also in nested empty arrays."""
    if isinstance(parsed, dict):
        return {name: shape(inner) for name, inner in parsed.items()}
    if isinstance(parsed, list):
        return [reduce(joined, map(shape, parsed), None)]
    return None if parsed is None else type(parsed).__name__


def joined(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        return {n: joined(one.get(n), other.get(n)) for n in one | other}
    if isinstance(one, list) and isinstance(other, list):
        return [joined(one[0], other[0])]
    assert one == other
    return one


def fitted(parsed: Any, kind: ValueType) -> object:
    """The parsed value as the column type has it. AssertionError if it does not fit."""
    if parsed is None or kind is None:
        assert kind is not None or not has_content(parsed)
        return None
    if isinstance(kind, pa.StructType):
        assert isinstance(parsed, dict)
        known = {field.name: field.type for field in kind}
        rest = [inner for name, inner in parsed.items() if name not in known]
        assert not any(map(has_content, rest))
        return {name: fitted(parsed.get(name), inner) for name, inner in known.items()}
    if isinstance(kind, pa.ListType):
        assert isinstance(parsed, list)
        return [fitted(inner, kind.value_type) for inner in parsed]
    expected: dict[Any, Any] = {types.is_boolean: bool, types.is_string: str}
    for test, python_type in expected.items():
        if test(kind):
            assert type(parsed) is python_type
            return parsed
    assert isinstance(parsed, Number)
    if types.is_int64(kind):
        assert parsed.is_whole
        assert -(2**63) <= int(parsed) < 2**63
        return int(parsed)
    return exact_double(parsed)


def exact_double(number: Number) -> float:
    """The double that is the number. AssertionError if there is none."""
    found = float(number)
    assert abs(found) != float("inf")
    if Decimal(number) != Decimal(found):
        # This double prints as the number.
        assert not number.is_whole
        assert Decimal(number) == Decimal(repr(found))
    return found


def has_content(parsed: Any) -> bool:
    """Whether the value has a leaf that gives it a type."""
    if isinstance(parsed, dict | list):
        return any(map(has_content, parsed.values() if isinstance(parsed, dict) else parsed))
    return parsed is not None


# Hypothesis draws slowly on a busy machine.
@pytest.mark.slow
@settings(max_examples=40, derandomize=True)
@given(st.lists(VALUES, max_size=12), st.lists(VALUES, max_size=6))
def test_each_value_is_what_pythons_json_reads_or_dead_with_a_reason(
    values: list[bytes | None], later: list[bytes | None]
) -> None:
    known = settled(later, settled(values))
    decoded = decode(values + later, known)
    dead = {dead_value.place: dead_value.reason for dead_value in decoded.dead}
    assert all(dead.values())
    good = [value for place, value in enumerate(values + later) if place not in dead]
    assert decoded.column.to_pylist() == [model(value, known) for value in good]
    for place in dead:
        with pytest.raises(AssertionError):
            model((values + later)[place], known)


@pytest.mark.parametrize(
    ("values", "kind", "dead"),
    [
        # Ids and a stray fraction: whatever comes first determines the column, and the other number
        # is dead.
        (["1201234567890123457", "1201234567890123458", "1.5"], pa.int64(), [2]),
        (["7", "1201234567890123458", "1.5"], pa.int64(), [2]),
        (["1.5", "1201234567890123457", "2", "1201234567890123458"], pa.float64(), [1, 3]),
        (["7", "1.5", "1201234567890123457"], pa.float64(), [2]),
        (["[7,1201234567890123457]", "[1.5]"], pa.list_(pa.int64()), [1]),
        # No type holds all numbers of this value.
        (["[1201234567890123457,1.5]", "[1.5,1201234567890123457]"], None, [0, 1]),
        (["7", "[1.5]", "1.5"], pa.float64(), [1]),
        # Whole numbers beyond 64 bits.
        (["9223372036854775807", "18446744073709551615"], pa.int64(), [1]),
        (["5", "100000000000000000000", "6"], pa.float64(), []),
        (["123456789012345678901234567890"], None, [0]),
        (["-9223372036854775808", "-9223372036854775809"], pa.int64(), [1]),
        # Fractions with more digits than a double prints.
        (["0.1", "0.30000000000000004", "0.12345678901234567", "0.1234567890123456789"],
         pa.float64(), [2, 3]),
        (["0.50000000000000000000", "1.50E1", "1e-3", "5e-324", "1e-400", "1e400"],
         pa.float64(), [4, 5]),
        (["0.1000000000000000055511151231257827021181583404541015625"], pa.float64(), []),
        (["0.10000000000000001", "9007199254740993.0", "1e23", "123456789012345680000"],
         pa.float64(), [0, 1, 3]),
        (["-0", "1"], pa.int64(), []),
        (["-0.0", "1"], pa.float64(), []),
    ],
)  # fmt: skip
def test_a_number_is_what_was_sent_or_its_value_is_dead(
    values: list[str], kind: ValueType, dead: list[int]
) -> None:
    sent: list[bytes | None] = [f'{{"n":{value}}}'.encode() for value in values]
    known = settled(sent)
    assert (known.field("n").type if isinstance(known, pa.StructType) else None) == kind
    decoded = decode(sent, known)
    assert [dead_value.place for dead_value in decoded.dead] == dead
    assert decoded.column.to_pylist() == [
        model(each, known) for place, each in enumerate(sent) if place not in dead
    ]


def test_a_large_number_that_a_double_has_does_not_keep_it_from_the_column() -> None:
    values = [b'{"id":9007199254740993,"n":9007199254740994}', b'{"n":1.5}']
    assert str(settled(values)) == "struct<id: int64, n: double>"
    assert not decode(values, settled(values)).dead


def test_whole_numbers_of_one_task_are_not_lost_to_a_fraction_of_another() -> None:
    ids, small = (
        settled([b'{"n":1201234567890123457,"o":[1201234567890123457]}']),
        settled([b'{"n":1,"o":[1]}']),
    )
    other = settled([b'{"n":1.5,"o":[1.5]}'])
    schema = pa.schema([("value", ids)]).serialize()
    sent = pa.ipc.read_schema(pa.py_buffer(schema.to_pybytes())).field("value").type
    assert merged(sent, other) == merged(merged(small, sent), other) == ids
    assert merged(merged(small, other), sent) == other
    # In the table the column has no marks.
    assert unmarked(ids) == ids
    assert unmarked(ids).equals(small, check_metadata=True)


@pytest.mark.slow
def test_numbers_that_are_exact_cost_no_python_for_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examined = []
    monkeypatch.setattr(json_values, "refusal", lambda value, *_, **__: examined.append(value))
    values: list[bytes | None] = [
        (
            f'{{"id":{1201234567890123457 + n},"price":{n / 7},"large":1e15,'
            f'"power":{2.0**-44},"a":[{n},null]}}'
        ).encode()
        for n in range(1000)
    ]
    assert decode(values, settled(values)).column.to_pylist() == [
        json.loads(v or b"") for v in values
    ]
    assert not examined


def test_the_bytes_of_a_null_are_not_looked_at() -> None:
    bytes_of = b"[" * (NESTING_MAX + 1) + b'{"n":1}'
    offsets = pa.array([0, NESTING_MAX + 1, len(bytes_of)], pa.int32()).buffers()[1]
    values: Any = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, pa.py_buffer(bytes_of)]
    )
    known = settled([b'{"n":1}'])
    decoded = JsonDecoder(known, known).decode(values)
    assert (decoded.column.to_pylist(), decoded.dead) == ([None, {"n": 1}], [])


def test_names_and_texts_with_words_and_numbers_are_no_numbers() -> None:
    value = b'{"NaN":"Infinity","12345678901234567890.5":null,"t":"\\" -1e999 \\\\","e":"\\\\"}'
    decoded = decode([value], settled([value]))
    assert decoded.column.to_pylist() == [{"NaN": "Infinity", "t": '" -1e999 \\', "e": "\\"}]


def test_types_of_a_table_stay_and_new_fields_follow() -> None:
    first = settled([b'{"n":1,"t":"2024-01-01","o":{"x":[{"y":true}]},"later":null,"none":{}}'])
    assert str(first) == "struct<n: int64, t: string, o: struct<x: list<item: struct<y: bool>>>>"
    second = settled([b'{"n":1.5,"o":{"x":[{"z":2}]},"later":1}', b'{"later":2.5}'], first)
    assert str(second) == (
        "struct<n: int64, t: string, o: struct<x: list<item: struct<y: bool, z: int64>>>,"
        " later: double>"
    )


def test_of_names_that_differ_in_case_only_the_first_is_a_column() -> None:
    both = b'{"id":1,"ID":2,"Id":3}'
    assert str(settled([b'{"id":1}', b'{"ID":2}', both])) == "struct<id: int64>"
    assert str(settled([both, b'{"ID":2}'])) == "struct<id: int64>"
    known = settled([b'{"ID":2,"o":[{"B":1}]}', b'{"id":1}', b'{"new":1,"o":[{"b":1,"c":1}]}'])
    assert str(known) == "struct<ID: int64, o: list<item: struct<B: int64, c: int64>>, new: int64>"
    decoded = decode([b'{"ID":2}', b'{"id":1}', b'{"id":null}', b'{"o":[{"b":1}]}', both], known)
    assert [dead_value.place for dead_value in decoded.dead] == [1, 3, 4]
    assert [row["ID"] for row in decoded.column.to_pylist()] == [2, None]


def test_tasks_that_met_different_cases_give_one_column() -> None:
    one, other = settled([b'{"id":1,"o":{"x":1}}']), settled([b'{"ID":"a","o":{"X":1,"y":1}}'])
    assert str(merged(one, other)) == "struct<id: int64, o: struct<x: int64, y: int64>>"
    # A table that has both columns keeps both.
    both = pa.struct([("id", pa.int64()), ("ID", pa.int64())])
    assert decode([b'{"id":1,"ID":2}'], both).column.to_pylist() == [{"id": 1, "ID": 2}]


@pytest.mark.slow
def test_many_values_with_the_wrong_case_cost_no_start_of_arrow_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = counted_starts(monkeypatch)
    values: list[bytes | None] = [b'{"id":1}', b'{"ID":2}', b'{"id":1,"ID":2}'] * 2000
    known = settled(values)
    # Values are parsed one by one until the column's type is known.
    assert len(started) < len(values) / 10
    started.clear()
    assert len(decode(values, known).dead) == 4000
    assert len(started) < len(values) / 20


def test_reason_names_the_field() -> None:
    known = settled([b'{"price":{"eur":1}}'])
    (dead,) = decode([b'{"price":{"eur":1}}', b'{"price":{"eur":"free"}}'], known).dead
    assert (dead.place, dead.reason) == (1, "field price/eur changed from number to string")


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"a":[', '"]]]]":{'])
def test_deep_nesting_is_dead_and_does_not_end_the_process(opening: str) -> None:
    deep = opening * 200_000
    inside = '{"a":"' + "[" * 2 * NESTING_MAX + '"}'
    decoded = decode([f'{{"a":{deep}'.encode(), inside.encode()], settled([inside.encode()]))
    assert [dead_value.place for dead_value in decoded.dead] == [0]
    assert decoded.column.to_pylist() == [json.loads(inside)]


def chain(arrays: int, objects: int, inside: str) -> bytes:
    """A value of so many arrays inside of an object, and of so many more objects inside of
    these.
    """
    opening, closing = "[" * arrays + '{"a":' * objects, "}" * objects + "]" * arrays
    return f'{{"deep":{opening}{inside}{closing}}}'.encode()


@pytest.mark.parametrize(
    ("arrays", "objects", "is_column"),
    [(16, 0, True), (17, 0, False), (0, 31, True), (0, 32, False), (16, 15, True), (16, 16, False)],
)
def test_a_column_has_at_most_32_levels_and_16_of_arrays(
    arrays: int, objects: int, is_column: bool
) -> None:
    for inside in ("7", '"text"', "true"):
        values = [chain(arrays, objects, inside), b'{"n":1}']
        known = settled(values)
        assert too_deep(known) is None
        assert [dead_value.place for dead_value in decode(values, known).dead] == (
            [] if is_column else [0]
        )
    # Levels with nothing in them are no part of a column.
    for inside in ("null", "[[[]]]", "{}"):
        values = [chain(arrays, objects, inside), b'{"n":1}']
        assert str(settled(values)) == "struct<n: int64>"
        assert not decode(values, settled(values)).dead


@pytest.mark.parametrize("place", range(5))
def test_deep_value_is_found_beside_empty_ones_and_in_a_slice(place: int) -> None:
    deep = b'{"a":' * (NESTING_MAX + 1) + b"1" + b"}" * (NESTING_MAX + 1)
    values: list[bytes | None] = [b"", None, b"", b'{"a":1}', b""]
    values[place] = deep
    sliced = pa.array([deep, *values, deep], pa.binary()).slice(1, len(values))
    dead = JsonDecoder(None, None).decode(sliced).dead
    assert [dead_value.place for dead_value in dead] == sorted({0, 2, 4} | {place})
    (reason,) = (dead_value.reason for dead_value in dead if dead_value.place == place)
    assert "nested deeper" in reason


def test_arrow_names_the_field_of_a_new_conflict() -> None:
    values = [b'{"a":[1,"x"]}', b'{"n":1}']
    (dead,) = decode(values, settled(values)).dead
    assert (dead.place, dead.reason) == (0, "field a/[] changed from number to string")


def test_fields_with_nothing_in_them_may_have_any_name() -> None:
    values = [b'{"":[{}],"n":1}', b'{"x.y":[null,[]],"n":2}', b'{"n":3,"N":[null,null]}', b"{"]
    decoded = decode(values, settled(values))
    assert decoded.column.to_pylist() == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_one_bad_value_of_many_is_found() -> None:
    values: list[bytes | None] = [json.dumps({"n": n}).encode() for n in range(5000)]
    values[4321] = b"{"
    decoded = decode(values, settled(values))
    assert [dead_value.place for dead_value in decoded.dead] == [4321]
    assert decoded.column.to_pylist() == [{"n": n} for n in range(5000) if n != 4321]


def test_values_of_ten_megabytes_are_read() -> None:
    value = json.dumps({"text": "x" * 10_000_000}).encode()
    assert decode([value, value], settled([value])).column.to_pylist() == [json.loads(value)] * 2


def test_merging_keeps_the_first_type_of_a_conflict() -> None:
    text, number = pa.struct([("a", pa.string())]), pa.struct([("a", pa.int64())])
    assert merged(text, number) == text
    assert merged(number, text) == number
    assert column_type(pa.struct([("a", pa.null())])) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "it is not JSON: Expecting property name"),
        (b"\xff", "it is not UTF-8"),
        (b"17", "it is not a JSON object"),
        (b'{"price":{"eur":"free"}}', "field price/eur changed from number to string"),
        (b'{"price":{"eur":99999999999999999999}}', "field price/eur is not a whole number of 64"),
        (b'{"price":{"eur":1.0}}', "field price/eur is not a whole number of 64"),
        (b'{"price":{"eur":NaN}}', "it is not JSON: NaN is no number"),
        (b'{"more":[-Infinity]}', "it is not JSON: -Infinity is no number"),
        (
            b'{"more":[0.1234567890123456789]}',
            "field more/[] has a number that no double is exactly",
        ),
        (b'{"price":{"us":1e400}}', "field price/us has a number that no double is exactly"),
        (
            b'{"more":[9007199254740993,0.5]}',
            "field more/[] has a number that no double is exactly",
        ),
        (b'{"price":{"eur":1,"eur":2}}', "field eur was specified twice"),
        (b'{"Price":5}', "field Price differs in case only from price"),
        (b'{"price":{"EUR":1}}', "field price/EUR differs in case only from eur"),
        (b'{"more":{"a.b":1}}', "a column cannot have this name field='a.b'"),
        (b'{"more":{"a\\u0000b":1}}', "a column cannot have this name field='a\\x00b'"),
        (b'{"more":' + b"[" * 17 + b"7" + b"]" * 17 + b"}", "arrays are nested deeper than 16"),
        (
            b'{"more":' + b'{"a":' * 32 + b"7" + b"}" * 33,
            "objects and arrays are nested deeper than 32",
        ),
        (b'{"more":"\\ud800"}', "half of a surrogate pair is no text"),
        (b'{"\\udc00":null}', "half of a surrogate pair is no text"),
    ],
)
def test_a_bad_value_has_the_same_reason_among_any_others(value: bytes, reason: str) -> None:
    known = settled([b'{"price":{"eur":1}}'])
    good = b'{"price":{"eur":1}}'
    reasons = set()
    for batch in ([value], [good, value], [good] * 300 + [value] * 300, [value, b"{"]):
        decoded = decode(batch, known)
        assert len(decoded.column) == batch.count(good)
        reasons |= {
            dead_value.reason for dead_value in decoded.dead if batch[dead_value.place] == value
        }
        assert [dead_value.place for dead_value in decoded.dead] == [
            place for place, each in enumerate(batch) if each != good
        ]
    assert len(reasons) == 1
    assert reasons.pop().startswith(reason)


def counted_starts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list that gets an element for each start of Arrow's reader from now on."""
    started: list[None] = []
    read = json_values._read_json

    def counted(*arguments: Any) -> Any:
        started.append(None)
        return read(*arguments)

    monkeypatch.setattr(json_values, "_read_json", counted)
    return started


@pytest.mark.slow
def test_arrow_is_not_started_for_each_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    started = counted_starts(monkeypatch)
    bad = [
        *(b"{", b'{"n":"text"}', b'{"n":{"more":1}}', b'{"n":1.5}', b'{"n":1,"n":1}', b'{"x.y":1}'),
        b'{"n":"\\ud800"}',
    ] * 500
    assert len(decode(bad, settled([b'{"n":1}'])).dead) == len(bad)
    assert len(started) < len(bad) / 20
    # Before the first commit a column may still become a double, and in the first part of a batch
    # no column is known.
    started.clear()
    assert str(settled([b'{"n":1}', *[b'{"n":"text"}'] * 20_000])) == "struct<n: int64>"
    assert len(started) < 20_000 / 20


def test_fields_of_a_settled_type_are_all_there_are() -> None:
    known = settled([b'{"n":1}'])
    wanted, types = KeyValue(ValueFormat("json"), ValueFormat("json")), KeyValue(known, known)
    decoder = settled_decoders(wanted, types).value
    values = [b'{"n":1,"new":1}', b'{"new":"text"}', b'{"n":"text","new":1}', None]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert decoded.column.to_pylist() == [{"n": 1}, {"n": None}, None]
    assert [dead_value.place for dead_value in decoded.dead] == [2]
    assert not decoder.has_grown
