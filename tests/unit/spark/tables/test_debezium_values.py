"""Change events of Debezium as rows: which events are rows, deletions or dead letters, and which
fields count."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from isotherm.errors import ConfigError
from isotherm.spark.tables.debezium_values import EnvelopeDecoder
from isotherm.spark.tables.json_schema_values import JsonSchemaDecoder
from isotherm.spark.tables.table_rows import decoded_rows
from isotherm.spark.tables.topic_table import check_unwrap
from isotherm.spark.tables.value_formats import ValueFormat, decoders_of, formats
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue, ValueType
from tests.unit.spark.tables.test_registry_values import decoder_for, framed
from tests.unit.spark.tables.test_table_rows import batch_of

ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])


def event(op: str, before: Any = None, after: Any = None, **more: Any) -> bytes:
    """A value as Debezium's PostgreSQL connector writes it with schemas.enable=false."""
    source = {"connector": "postgresql", "lsn": 24023128, "snapshot": "false", **more}
    made = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1700000000000}
    return json.dumps(made).encode()


def decoder(known: ValueType = ROW, fixed: ValueType = None) -> Any:
    wanted = KeyValue(ValueFormat("raw"), ValueFormat("json", unwraps=True))
    raw = pa.binary()
    return decoders_of(wanted, KeyValue(raw, fixed), KeyValue(raw, known)).value


def decode(*values: bytes | None, known: ValueType = ROW) -> tuple[list[Any], dict[int, str]]:
    column, dead = decoder(known, known).decode(pa.array(values, pa.binary()))
    return column.to_pylist(), dict(dead)


def test_row_is_after_and_a_deletion_has_none() -> None:
    ann = {"id": 1, "name": "Ann"}
    found, dead = decode(
        event("c", after=ann),
        event("u", ann, {"id": 1, "name": "Anna"}),
        event("d", ann),
        None,
        event("r", after=ann),
    )
    assert found == [ann, {"id": 1, "name": "Anna"}, None, None, ann]
    assert not dead


def test_what_is_no_change_of_a_row_is_dead() -> None:
    found, dead = decode(
        event("t"),
        event("c", after={"id": 1, "name": "Ann"}),
        event("m", message={"prefix": "x"}),
        event("u"),
        b'{"id": 1, "name": "Ann"}',
        b"{",
        b'{"op": 7}',
    )
    assert found == [{"id": 1, "name": "Ann"}]
    assert sorted(dead) == [0, 2, 3, 4, 5, 6]
    assert dead[0] == "the event is no change of a row op=t"
    assert dead[3] == "the change event has no row in after op=u"
    assert "schemas.enable=false" in dead[4]


def test_only_fields_of_rows_become_columns() -> None:
    events = decoder()
    for more in ({}, {"table": "people"}, {"xmin": 7}):
        column, dead = events.decode(
            pa.array([event("c", {"old": 1}, {"id": 1}, **more)], pa.binary())
        )
        assert not events.has_grown
        assert column.to_pylist() == [{"id": 1, "name": None}]
        assert not dead
    events.decode(pa.array([event("c", after={"id": 1, "mail": "x"})], pa.binary()))
    assert events.has_grown
    assert events.value_type == pa.struct([*ROW, ("mail", pa.string())])


def test_first_row_tells_the_columns() -> None:
    events = decoder(None)
    assert events.value_type is None
    events.decode(pa.array([event("d", {"id": 1})], pa.binary()))
    assert not events.has_grown
    events.decode(pa.array([event("c", after={"id": 1, "name": "Ann"})], pa.binary()))
    assert events.value_type == ROW


def test_deletions_are_tombstones() -> None:
    types: DecodedTypes = KeyValue(pa.binary(), ROW)
    wanted = KeyValue(ValueFormat("raw"), ValueFormat("json", unwraps=True))
    values = [
        event("c", after={"id": 1}),
        event("t"),
        event("d", {"id": 1}),
        None,
        event("u", after={"id": 2}),
    ]
    found = decoded_rows(
        batch_of([(0, b"k", value) for value in values]), decoders_of(wanted, types, types)
    )
    assert found.tombstones.tolist() == [False, True, True, False]
    assert found.rows.column("offset").to_pylist() == [0, 2, 3, 4]
    assert found.dead.column("value").to_pylist() == [values[1]]
    assert isinstance(found.tombstones, np.ndarray)


def test_deletions_are_tombstones_before_any_row() -> None:
    types: DecodedTypes = KeyValue(pa.binary(), None)
    wanted = KeyValue(ValueFormat("raw"), ValueFormat("json", unwraps=True))
    found = decoded_rows(
        batch_of([(0, b"k", each) for each in (event("d", {"id": 1}), None)]),
        decoders_of(wanted, types, types),
    )
    assert found.tombstones.tolist() == [True, True]


@pytest.mark.parametrize(
    ("unwrap", "mode", "message"),
    [
        ("avro", "latest", r"option=--unwrap value=avro known=none,debezium"),
        ("debezium", "append", r"only a table of newest values"),
    ],
)
def test_wrong_options_are_named(unwrap: str, mode: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_unwrap(unwrap, mode)


@pytest.mark.parametrize("value", ["raw", "string"])
def test_formats_without_fields_are_refused(value: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"another format value={value} known=json,avro,json-schema"
    ):
        formats("raw", value, None, unwraps=True)


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
    ],
}


def test_events_in_avro() -> None:
    """The schema names its types as Debezium's Avro envelope does: `after` refers to the type of
    `before`."""
    ann = {"id": 1, "name": "Ann"}
    made = [
        {"before": None, "after": ann, "source": {"lsn": 5}, "op": "r"},
        {"before": ann, "after": None, "source": {"lsn": 6}, "op": "d"},
    ]
    values = pa.array([framed(0, ENVELOPE, each) for each in made], pa.binary())
    events = EnvelopeDecoder(partial(decoder_for, [ENVELOPE]), None, None)
    events.decode(values)
    assert events.value_type == ROW
    settled = EnvelopeDecoder(partial(decoder_for, [ENVELOPE]), ROW, ROW)
    column, dead = settled.decode(values)
    assert not settled.has_grown
    assert column.to_pylist() == [ann, None]
    assert not dead


def test_events_by_a_json_schema() -> None:
    row = pa.struct([("id", pa.int64()), ("price", pa.float64())])
    declared = pa.struct([("after", row), ("op", pa.string()), ("ts_ms", pa.int64())])

    def opened(fixed: ValueType, known: ValueType) -> JsonSchemaDecoder:
        return JsonSchemaDecoder(lambda _: declared, fixed, known)

    values = pa.array([b"\0\0\0\0\7" + event("c", after={"id": 1, "price": 2})], pa.binary())
    events = EnvelopeDecoder(opened, None, None)
    events.decode(values)
    assert events.value_type == row, "the price is a number, not a whole one"
    column, dead = EnvelopeDecoder(opened, row, row).decode(values)
    assert column.to_pylist() == [{"id": 1, "price": 2.0}]
    assert not dead
