"""Reads the records of a metadata topic as a DataFrame, one row each, decoded by the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isotherm.kernels.event_table import ADD, ODD, PUT, TOMBSTONE, UPDATE
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, decode_run
from isotherm.spark.metadata.remote_metadata_log import MetadataLog, RecordRun, as_events
from isotherm.spark.numbered_tasks import each_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KINDS = (
    "added", "updated", "partition deletion", "state", "tombstone", "partition tombstone",
    "damaged", "damaged",
)  # fmt: skip
# Those of records with a key, which only a compacted topic has.
KEYED_KINDS = ("state", "tombstone", "partition tombstone")
_FIELDS: list[Any] = [
    ("metadata_partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp_ms", pa.int64()),
    ("size_of_record", pa.int64()),
    ("kind", pa.string()),
    ("topic", pa.string()),
    ("topic_id", pa.binary()),
    ("partition", pa.int32()),
    ("segment_id", pa.binary()),
    ("state", pa.int32()),
    ("start_offset", pa.int64()),
    ("end_offset", pa.int64()),
    ("size_in_bytes", pa.int64()),
    ("event_timestamp_ms", pa.int64()),
]
_EVENTS = pa.schema(_FIELDS)
_HEADER_SIZE = 61
"""Bytes of a batch around its record. Brokers append each metadata event in a batch of its own."""
_ROWS_MAX = 50_000


def metadata_events(spark: SparkSession, log: MetadataLog) -> DataFrame:
    """One row per record. Columns that its type of event lacks are null. `state` is the id of the
    segment's or partition's state."""
    from pyspark.sql import functions as sql

    slices = log.slices()

    def read(number: int) -> Iterator[pa.RecordBatch]:
        for run in log.read(slices[number], lambda *_: None):
            if len(run.columns.offset):
                table = _decoded(slices[number].number, as_events(log.topic, run))
                yield from table.to_batches(max_chunksize=_ROWS_MAX)

    frame = each_of(spark, len(slices), read, _EVENTS)
    return frame.withColumns(
        {name: _text_of_id(sql.col(name)) for name in ("topic_id", "segment_id")}
    )


def _text_of_id(column: Column) -> Column:
    """Kafka's text form: base64url without padding."""
    from pyspark.sql import functions as sql

    return sql.translate(sql.rtrim(sql.base64(column), sql.lit("=")), "+/", "-_")


def _decoded(number: int, run: RecordRun) -> pa.Table:
    columns = run.columns
    decoded = decode_run(columns)
    events, count = decoded.events, len(columns.offset)
    kind = events["kind"]
    is_event = kind < TOMBSTONE
    is_whole = (kind == ADD) | (kind == PUT)
    is_of_segment = is_whole | (kind == UPDATE)
    is_placed = kind < ODD
    sizes = _byte_counts(columns.key) + _byte_counts(columns.value) + _HEADER_SIZE
    arrays: dict[str, Any] = {
        "metadata_partition": pa.repeat(pa.scalar(number, pa.int32()), count),
        "offset": pa.array(columns.offset),
        "timestamp_ms": pa.array(run.timestamp_ms),
        "size_of_record": pa.array(sizes),
        "kind": pa.array(KINDS).take(pa.array(kind)),
        "topic": _topics(decoded, is_event),
        "topic_id": _ids(events["topic_high"], events["topic_low"], is_placed),
        "partition": _numbers(events["partition"], is_placed, pa.int32()),
        "segment_id": _ids(events["id_high"], events["id_low"], is_of_segment),
        "state": _numbers(events["state"], is_event, pa.int32()),
        "start_offset": _numbers(events["start"], is_whole, pa.int64()),
        "end_offset": _numbers(events["end"], is_whole | (kind == TOMBSTONE), pa.int64()),
        "size_in_bytes": _numbers(events["size"], is_whole, pa.int64()),
        "event_timestamp_ms": _numbers(events["event_timestamp"], is_event, pa.int64()),
    }
    return pa.table(arrays, schema=_EVENTS)


def _byte_counts(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _topics(decoded: DecodedRun, is_event: Any) -> Any:
    """The topic of each row. Each name is decoded once per run, not once per row."""
    rows = np.flatnonzero(is_event)
    names = np.full(len(is_event), -1, dtype=np.int64)
    _, firsts, numbers = np.unique(
        decoded.events["name_hash"][rows], return_index=True, return_inverse=True
    )
    topics = [decoded.partition(int(rows[first])).topic for first in firsts]
    names[rows] = numbers
    numbered: Any = pa.array(names, mask=names < 0)
    return pa.array(topics, pa.string()).take(numbered)


def _ids(high: Any, low: Any, is_known: Any) -> Any:
    halves = np.stack([high, low], axis=1).astype(">i8")
    ids = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(halves), [None, pa.py_buffer(halves.tobytes())]
    )
    nothing = pa.scalar(None, pa.binary())
    return pc.if_else(pa.array(is_known), ids.cast(pa.binary()), nothing)


def _numbers(values: Any, is_known: Any, kind: Any) -> Any:
    return pa.array(values, mask=~is_known).cast(kind)
