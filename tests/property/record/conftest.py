"""Strategies for record batches, and kafka-python's classes that read and write them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from isotherm.record.batch import CompressionType, NewRecord, TimestampType, build_batch

TIMESTAMPS = st.integers(0, 2**42)
KEYS_AND_VALUES = st.none() | st.binary(max_size=40) | st.just(bytes(200))
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3)
RECORDS = st.builds(NewRecord, TIMESTAMPS, KEYS_AND_VALUES, KEYS_AND_VALUES, HEADERS)


@st.composite
def batch_runs(draw, codecs=tuple(CompressionType)) -> bytearray:
    """Up to four batches with rising offsets and gaps between them. Some are control batches."""
    run = bytearray()
    base_offset = draw(st.integers(0, 2**40))
    for records in draw(st.lists(st.lists(RECORDS, min_size=1, max_size=6), max_size=4)):
        timestamp_type = draw(st.sampled_from(TimestampType))
        is_appended = timestamp_type is TimestampType.LOG_APPEND_TIME
        run += build_batch(
            records,
            base_offset=base_offset,
            compression=draw(st.sampled_from(codecs)),
            timestamp_type=timestamp_type,
            max_timestamp=draw(TIMESTAMPS) if is_appended else None,
            base_sequence=draw(st.sampled_from([-1, 0, 2**31 - 3])),
            is_control=draw(st.integers(0, 4)) == 4,
        )
        base_offset += len(records) + draw(st.integers(0, 3))
    return run


@pytest.fixture(scope="session")
def strategies() -> SimpleNamespace:
    return SimpleNamespace(records=RECORDS, batch_runs=batch_runs)


@pytest.fixture(scope="session")
def kafka_python() -> SimpleNamespace:
    """kafka-python's classes that read and write batches."""
    with warnings.catch_warnings():
        # kafka-python reads its schemas with a function that Python 3.11 deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import codec
        from kafka.record import MemoryRecords
        from kafka.record.default_records import DefaultRecordBatchBuilder
        from kafka.record.util import decode_varint, encode_varint
    return SimpleNamespace(
        codec=codec,
        MemoryRecords=MemoryRecords,
        DefaultRecordBatchBuilder=DefaultRecordBatchBuilder,
        encode_varint=encode_varint,
        decode_varint=decode_varint,
    )
