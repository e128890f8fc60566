"""Arrow rows: timestamps that they cannot hold, and no dependency on pandas."""

from __future__ import annotations

import subprocess
import sys

import pytest

from isotherm.errors import InvalidTimestampError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.columns import decode_columns
from isotherm.spark.arrow_rows import TIMESTAMP_MS_MAX, record_batch
from isotherm.spark.row_schema import arrow_schema, schema_of
from isotherm.types import TopicPartition

A3 = TopicPartition("a", 3)


def decoded(*timestamps_ms: int):
    records = [NewRecord(timestamp_ms, None, b"v") for timestamp_ms in timestamps_ms]
    return decode_columns(build_batch(records, base_offset=70), columns=frozenset({"timestamp"}))


@pytest.mark.parametrize("timestamp_ms", [TIMESTAMP_MS_MAX + 1, 2**63 - 1, -TIMESTAMP_MS_MAX - 1])
def test_timestamp_beyond_what_a_row_can_hold_names_the_record(timestamp_ms: int) -> None:
    words = f"topic a partition 3 offset 72 has timestamp value {timestamp_ms} that overflows"
    with pytest.raises(InvalidTimestampError, match=words):
        record_batch(decoded(5, 6, timestamp_ms), A3, arrow_schema(schema_of(["timestamp"])))
    without = record_batch(decoded(5, 6, timestamp_ms), A3, arrow_schema(schema_of(["offset"])))
    assert without.num_rows == 3


def test_largest_timestamps_are_rows() -> None:
    schema = arrow_schema(schema_of(["timestamp"]))
    rows = record_batch(decoded(TIMESTAMP_MS_MAX, -TIMESTAMP_MS_MAX, -1), A3, schema)
    assert rows.column(0).cast("int64").to_pylist() == [
        TIMESTAMP_MS_MAX * 1000,
        -TIMESTAMP_MS_MAX * 1000,
        -1000,
    ]


def test_no_rows_have_no_largest_timestamp() -> None:
    columns = decode_columns(b"", columns=frozenset({"timestamp"}))
    assert record_batch(columns, A3, arrow_schema(schema_of(["timestamp"]))).num_rows == 0


ROWS = """
import sys
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.columns import decode_columns
from isotherm.spark.arrow_rows import record_batch
from isotherm.spark.row_schema import arrow_schema, full_schema
from isotherm.types import TopicPartition

decoded = decode_columns(build_batch([NewRecord(5, b"k", b"v")] * 3))
schema = arrow_schema(full_schema(include_headers=False))
rows = record_batch(decoded, TopicPartition("a", 3), schema)
print("pandas" in sys.modules, "pyarrow" in sys.modules)
print(*rows.column_names, rows.to_pylist()[2])
"""


@pytest.mark.slow
def test_rows_are_made_without_pandas() -> None:
    ran = subprocess.run([sys.executable, "-c", ROWS], capture_output=True, text=True, check=True)
    loaded, row = ran.stdout.splitlines()
    assert loaded == "False True"
    assert row.startswith("key value topic partition offset timestamp timestampType {'key': b'k'")
    assert "'topic': 'a', 'partition': 3, 'offset': 2" in row
