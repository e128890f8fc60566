"""Converts remote segments to rows of a DataFrame, and back in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from isotherm.remote.metadata.state.segment_columns import COLUMNS
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.spark.table_frame import table_frame
from isotherm.types import TopicIdPartition, uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY: list[tuple[str, pa.DataType]] = [
    ("topic", pa.string()),
    ("topic_id", pa.string()),
    ("partition", pa.int32()),
    ("segment_id", pa.string()),
]
SEGMENT_ARROW = pa.schema([pa.field(name, kind) for name, kind in IDENTITY] + list(COLUMNS))


def segment_row(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    owner = segment.topic_id_partition
    return {
        "topic": owner.topic,
        "topic_id": uuid_to_text(owner.topic_id),
        "partition": owner.partition,
        "segment_id": uuid_to_text(segment.segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset_inclusive,
        "state": segment.state.name,
        "leader_epochs": [
            {"epoch": epoch, "start_offset": start}
            for epoch, start in segment.segment_leader_epochs.items()
        ],
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "broker_id": segment.broker_id,
        "size_in_bytes": segment.segment_size_in_bytes,
        "custom_metadata": segment.custom_metadata,
        "txn_index_empty": segment.txn_index_empty,
        "broker_leader_epoch": segment.broker_leader_epoch,
    }


def segment_frame(spark: SparkSession, segments: Iterable[RemoteLogSegmentMetadata]) -> DataFrame:
    """The segments as rows, in a DataFrame that the driver holds."""
    table = pa.Table.from_pylist([segment_row(segment) for segment in segments], SEGMENT_ARROW)
    return table_frame(spark, table)


def segments_of(batch: pa.RecordBatch) -> Iterator[RemoteLogSegmentMetadata]:
    """Inverse of `segment_row`, for every row. Other columns are ignored."""
    for row in batch.select(SEGMENT_ARROW.names).to_pylist():
        yield segment_of_row(row)


def segment_of_row(row: dict[str, Any]) -> RemoteLogSegmentMetadata:
    owner = TopicIdPartition(uuid_from_text(row["topic_id"]), row["topic"], row["partition"])
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid_from_text(row["segment_id"])),
        start_offset=row["start_offset"],
        end_offset_inclusive=row["end_offset"],
        max_timestamp_ms=row["max_timestamp_ms"],
        broker_id=row["broker_id"],
        event_timestamp_ms=row["event_timestamp_ms"],
        segment_size_in_bytes=row["size_in_bytes"],
        segment_leader_epochs={
            entry["epoch"]: entry["start_offset"] for entry in row["leader_epochs"]
        },
        state=RemoteLogSegmentState[row["state"]],
        custom_metadata=row["custom_metadata"],
        txn_index_empty=row["txn_index_empty"],
        broker_leader_epoch=row["broker_leader_epoch"],
    )
