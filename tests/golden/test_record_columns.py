"""The column decoder against segments that Kafka wrote."""

from __future__ import annotations

from itertools import chain

import pytest

from isotherm.record.batch import Record
from isotherm.record.columns import COLUMNS, RecordColumns, decode_columns
from isotherm.segment.transaction_index import read_transaction_index


def _rows(columns: RecordColumns) -> list[Record]:
    rows = zip(
        columns.offset.tolist(),
        columns.timestamp_ms.tolist(),
        columns.key.to_pylist(),
        columns.value.to_pylist(),
        columns.headers.to_pylist(),
        strict=True,
    )
    return [
        Record(offset, timestamp_ms, key, value, _headers(headers))
        for offset, timestamp_ms, key, value, headers in rows
    ]


def _headers(headers: list[dict] | None) -> tuple:
    return tuple(tuple(header.values()) for header in headers or ())


def test_columns_are_what_the_consumer_got(golden, topic) -> None:
    expected = golden.records(topic)
    whole = b"".join(path.read_bytes() for path in golden.segments(topic))
    columns = decode_columns(
        whole, columns=COLUMNS, offset_range=(expected[0].offset, expected[-1].offset + 1)
    )
    assert columns.position_end == len(whole)
    assert _rows(columns) == expected


@pytest.mark.parametrize("name", ["transactions", "tiered"])
def test_columns_without_aborted_transactions_are_what_a_committed_read_got(golden, name) -> None:
    expected = golden.records(name, committed=True)
    assert len(expected) < len(golden.records(name))
    segments = golden.segments(name)
    aborted = chain.from_iterable(
        read_transaction_index(index.read_bytes(), 0)
        for segment in segments
        if (index := segment.with_suffix(".txnindex")).exists()
    )
    columns = decode_columns(
        b"".join(path.read_bytes() for path in segments),
        columns=COLUMNS,
        # The consumer stops at the last stable offset; what lies behind is still open.
        offset_range=(0, expected[-1].offset + 1),
        aborted=sorted(aborted),
    )
    assert _rows(columns) == expected


@pytest.mark.parametrize("start", [0, 1, 33, 70, 89, 90])
def test_columns_of_an_offset_range_are_the_consumers_slice(golden, start) -> None:
    whole = b"".join(path.read_bytes() for path in golden.segments("client-none"))
    columns = decode_columns(whole, columns=COLUMNS, offset_range=(start, start + 5))
    expected = [r for r in golden.records("client-none") if start <= r.offset < start + 5]
    assert _rows(columns) == expected
