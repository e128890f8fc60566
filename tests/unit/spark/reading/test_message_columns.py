"""Consumed messages as columns. The oracle is a row for each message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
)
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import InvalidTimestampError
from isotherm.spark.reading.consumed_tail import message_batch
from isotherm.spark.row_schema import arrow_schema, full_schema
from isotherm.spark.tables.table_rows import SOURCE_SCHEMA
from isotherm.types import TopicPartition

PLACE = TopicPartition("tä", 3)
ROWS = arrow_schema(full_schema(include_headers=True))
OF_TABLES = arrow_schema(SOURCE_SCHEMA)
KINDS = {TIMESTAMP_CREATE_TIME: 0, TIMESTAMP_LOG_APPEND_TIME: 1, TIMESTAMP_NOT_AVAILABLE: -1}

texts = st.none() | st.binary(max_size=9)
messages = st.builds(
    lambda **fields: Message(topic=PLACE.topic, partition=PLACE.partition, **fields),
    key=texts,
    value=texts,
    headers=st.none() | st.lists(st.tuples(st.text(max_size=4), texts), max_size=3),
    timestamp=st.tuples(st.sampled_from(list(KINDS)), st.integers(-1, 2**45)),
    offset=st.integers(0, 2**62),
)


def row(message: Message) -> dict[str, Any]:
    kind, milliseconds = message.timestamp()
    headers = [{"key": key, "value": value} for key, value in message.headers() or ()]
    return {
        "key": message.key(),
        "value": message.value(),
        "topic": PLACE.topic,
        "partition": PLACE.partition,
        "offset": message.offset(),
        "timestamp": milliseconds,
        "timestampType": KINDS[kind],
        "headers": headers or None,
    }


@pytest.mark.slow
@given(st.lists(messages, max_size=20))
def test_columns_are_those_of_rows_made_one_by_one(made: list[Message]) -> None:
    rows = [row(each) for each in made]
    batch = message_batch(made, PLACE, OF_TABLES)
    batch.validate(full=True)
    assert batch.equals(pa.RecordBatch.from_pylist(rows, schema=OF_TABLES))
    in_spark = message_batch(made, PLACE, ROWS)
    in_spark.validate(full=True)
    times = np.asarray(in_spark.column(ROWS.get_field_index("timestamp")).cast(pa.int64()))
    assert times.tolist() == [each["timestamp"] * 1000 for each in rows]


def test_time_that_a_row_cannot_hold_names_the_record() -> None:
    far = Message(topic="a", partition=3, offset=9, timestamp=(TIMESTAMP_CREATE_TIME, 2**62))
    with pytest.raises(InvalidTimestampError, match=r"partition 3 offset 9 has timestamp value"):
        message_batch([far], PLACE, ROWS)
    # A table's timestamp column holds the milliseconds themselves, so it has room for this one.
    message_batch([far], PLACE, OF_TABLES)
