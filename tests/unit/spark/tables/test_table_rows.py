"""Keys and values of records as columns of their own. Each record becomes a row, or a dead letter
that keeps it whole.

The oracle is Python's UTF-8 and JSON, record by record.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.spark.row_schema import arrow_schema
from isotherm.spark.tables.table_rows import SOURCE_SCHEMA, decoded_rows
from isotherm.spark.tables.value_formats import decoders_of, first_types, formats
from isotherm.spark.tables.value_types import KeyValue, merged_types

PARTS: dict[str, list[bytes | None]] = {
    "raw": [None, b"", b"\xff"],
    "string": [None, b"", "ü".encode(), b"\xff", b"\xc3"],
    "json": [None, b"{}", b'{"n": 1}', b'{"n": null, "s": "x"}', b"{", b"17", b"\xff"],
}
YEAR_1_MS, YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000
TIMES = {
    0: True,
    -1: True,
    YEAR_1_MS: True,
    YEAR_10000_MS - 1: True,
    YEAR_1_MS - 1: False,
    YEAR_10000_MS: False,
    2**62: False,
    -(2**63): False,
}
"""Timestamps, and whether a table can have them."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
names = st.sampled_from(sorted(PARTS))


def expected(name: str, value: bytes | None) -> tuple[bool, Any]:
    """Whether the value can be decoded, and the result."""
    if value is None or name == "raw":
        return True, value
    try:
        text = value.decode()
        found = text if name == "string" else json.loads(text)
    except ValueError:
        return False, None
    return name == "string" or isinstance(found, dict), found


def without_nulls(value: Any) -> Any:
    return {n: v for n, v in value.items() if v is not None} if isinstance(value, dict) else value


def batch_of(records: list[tuple[int, bytes | None, bytes | None]]) -> pa.RecordBatch:
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "timestamp": at, "timestampType": 0}
        | {"key": key, "value": value}
        for n, (at, key, value) in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(SOURCE_SCHEMA))


@pytest.mark.slow
@given(names, names, st.data())
def test_each_record_is_a_row_or_a_dead_letter(key: str, value: str, data: st.DataObject) -> None:
    records = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(TIMES)),
                st.sampled_from(PARTS[key]),
                st.sampled_from(PARTS[value]),
            ),
            max_size=12,
        )
    )
    batch = batch_of(records)
    wanted = formats(key, value, None)
    fixed = first_types(key, value)
    decoders = decoders_of(wanted, fixed, fixed)
    decoded_rows(batch, decoders)
    known = merged_types(fixed, KeyValue(*(decoder.value_type for decoder in decoders)), fixed)
    rows, dead, tombstones = decoded_rows(batch, decoders_of(wanted, known, known))
    rows.validate(full=True)

    good = []
    lost = []
    milliseconds: dict[int, int] = {}
    for offset, (at, *parts) in enumerate(records):
        found = [expected(*each) for each in zip((key, value), parts, strict=True)]
        fits = [fit for fit, _ in found]
        if TIMES[at] and all(fits):
            good.append((offset, *(without_nulls(each) for _, each in found)))
        else:
            to_blame = "the timestamp" if not TIMES[at] else "value:" if fits[0] else "key:"
            lost.append((offset, *parts, to_blame))
        milliseconds[offset] = at
    assert [
        (row["offset"], *(
            without_nulls(row.get(name)) or {} if is_json else row[name]
            for name, is_json in (("key", key == "json"), ("value", value == "json"))
        ))
        for row in rows.to_pylist()
    ] == [
        (offset, *(each or {} if is_json else each
                   for each, is_json in ((k, key == "json"), (v, value == "json"))))
        for offset, k, v in good
    ]  # fmt: skip
    assert [(row["offset"], row["key"], row["value"]) for row in dead.to_pylist()] == [
        each[:3] for each in lost
    ]
    without = {n for n, (_, _, each) in enumerate(records) if each is None}
    assert tombstones.tolist() == [offset in without for offset, *_ in good]
    for row, (*_, to_blame) in zip(dead.to_pylist(), lost, strict=True):
        assert row["reason"].startswith(to_blame)
    for row in [*rows.to_pylist(), *dead.to_pylist()]:
        at = milliseconds[row["offset"]]
        if TIMES[at]:
            assert (row["timestamp"] - EPOCH) // timedelta(milliseconds=1) == at
        else:
            # Other reasons are about the key or the value.
            assert row["timestamp"] is None
            told = f"the timestamp is not in the years 1 to 9999 timestamp_ms={at}"
            assert row["reason"] == told


@pytest.mark.slow
def test_wide_and_large_values_are_rows() -> None:
    """2000 fields, most of which an object lacks, and a text of 10 MB."""
    names = [f"f{n}" for n in range(2000)]
    objects: list[dict[str, Any]] = [
        dict.fromkeys(names, 1),
        {names[7]: 2},
        {"text": "x" * 10_000_000},
    ]
    batch = batch_of([(n, b"k", json.dumps(each).encode()) for n, each in enumerate(objects)])
    wanted = formats("raw", "json", None)
    fixed = first_types("raw", "json")
    decoders = decoders_of(wanted, fixed, fixed)
    decoded_rows(batch, decoders)
    known = KeyValue(*(decoder.value_type for decoder in decoders))
    rows, dead, _ = decoded_rows(batch, decoders_of(wanted, known, known))
    assert dead.num_rows == 0
    assert [without_nulls(row["value"]) for row in rows.to_pylist()] == objects
