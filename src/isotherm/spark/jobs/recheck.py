"""Checks again, just before a deletion, whether a sweep's deletable objects are still deletable.

Minutes pass between the listing and the deletion, while brokers copy and delete. The check:

    kind of finding                               is deletable only while the metadata
    failed copy                                   says COPY_SEGMENT_STARTED, or nothing
    unfinished deletion                           says DELETE_SEGMENT_STARTED or _FINISHED, or
                                                  nothing
    deleted, unknown, partial, unknown topic      says DELETE_SEGMENT_FINISHED, or nothing

An object also stays while the last event of an audit partition finishes its copy. A broker that
crashed between its two appends applies that event at its next start.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from isotherm.errors import CorruptMetadataError, UnknownTopicOrPartitionError
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.deletion_rules import (
    FAILED_COPY_STATES,
    GONE_STATES,
    UNFINISHED_DELETION_STATES,
)
from isotherm.types import uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from isotherm.spark.metadata.remote_metadata_log import MetadataLog

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class MetadataNow:
    """`segments` has `segment_id` (as text) and `state` of every live segment. `finished_last` is
    the result of `segments_finished_last`."""

    segments: DataFrame
    finished_last: Collection[str] = ()


def still_deletable(doomed: DataFrame, now: MetadataNow) -> DataFrame:
    """`doomed` (findings of a sweep) with the column `is_due`: whether the object may be deleted
    now."""
    kind, state = sql.col("kind"), sql.col("state_now")
    allowed = (
        sql.when(kind == FindingKind.FAILED_COPY.value, state.isin(_names(FAILED_COPY_STATES)))
        .when(
            kind == FindingKind.UNFINISHED_DELETION.value,
            state.isin(_names(UNFINISHED_DELETION_STATES)),
        )
        .otherwise(state.isin(_names(GONE_STATES)))
    )
    is_finished = sql.coalesce(sql.col("segment_id").isin(list(now.finished_last)), sql.lit(False))
    states = now.segments.select("segment_id", sql.col("state").alias("state_now"))
    joined = doomed.join(states, "segment_id", "left")
    return joined.withColumn("is_due", (state.isNull() | allowed) & ~is_finished)


def _names(states: Collection[RemoteLogSegmentState]) -> list[str]:
    return sorted(state.name for state in states)


def segments_finished_last(audit: MetadataLog) -> frozenset[str]:
    """The ids (as text) of segments whose COPY_SEGMENT_FINISHED is the last event of a partition of
    the audit topic. Empty if there is no such topic."""
    try:
        slices = audit.slices()
    except UnknownTopicOrPartitionError:
        return frozenset()
    segment_ids = set()
    for log_slice in slices:
        # Of a dump only the last file is read.
        tail = log_slice.since(
            max((file.base_offset for file in log_slice.files), default=log_slice.start_offset)
        )
        # Only the last record: a broker writes one event after the other, so a crash interrupts one
        # event at most, the last.
        if log_slice.end_offset is not None:
            tail = log_slice.since(max(log_slice.start_offset, log_slice.end_offset - 1))
        value = None
        for run in audit.read(tail, lambda offset, reason: None):
            if len(run.columns.value):
                value = run.columns.value[-1].as_py()
        segment_id = _finished_segment(value) if value else None
        if segment_id is not None:
            segment_ids.add(segment_id)
    return frozenset(segment_ids)


def _finished_segment(value: bytes) -> str | None:
    try:
        event = decode_event(value)
    except CorruptMetadataError:
        return None  # a broker skips it too
    if isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
        return uuid_to_text(event.segment_id.id) if event.state is _FINISHED else None
    return None
