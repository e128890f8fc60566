"""The result of an append, and the checks that depend on the producer state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from isotherm.config.topic import TopicConfig
from isotherm.errors import RecordListTooLargeError
from isotherm.log.producer_state import ProducerBatch, ProducerStateManager
from isotherm.record.batch import BatchHeader
from isotherm.record.batch_header import CONTROL_FLAG
from isotherm.record.control import read_control_record
from isotherm.record.validation import AppendOrigin, ValidatedRecords
from isotherm.types import (
    NO_TIMESTAMP,
    Offset,
    Position,
    TimestampMs,
    TopicPartition,
)


class AppendInfo(NamedTuple):
    """The result of an append; for a duplicate, the result of the first one.

    log_append_time_ms is -1 unless the topic uses LogAppendTime. If `needs_flush` is set,
    flush.messages requires a flush that has not happened: the caller flushes before it answers.
    """

    first_offset: Offset
    last_offset: Offset
    max_timestamp_ms: TimestampMs
    log_append_time_ms: TimestampMs
    log_start_offset: Offset
    duplicate: bool
    needs_flush: bool = False

    @classmethod
    def of_duplicate(
        cls,
        batch: ProducerBatch,
        log_start_offset: Offset,
        *,
        stamps_records: bool,
        needs_flush: bool,
    ) -> AppendInfo:
        return cls(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp_ms,
            batch.timestamp_ms if stamps_records else NO_TIMESTAMP,
            log_start_offset,
            duplicate=True,
            needs_flush=needs_flush,
        )


def too_large_for_a_segment(
    topic_partition: TopicPartition, validated: ValidatedRecords, config: TopicConfig
) -> RecordListTooLargeError:
    """The error of records that do not fit into an empty segment."""
    return RecordListTooLargeError(
        f"records are larger than a segment partition={topic_partition}"
        f" size={len(validated.records)} segment_bytes={config.effective_segment_bytes}"
    )


def check_producers(
    producers: ProducerStateManager,
    batches: Iterable[tuple[Position, BatchHeader]],
    records: memoryview,
    origin: AppendOrigin,
) -> ProducerBatch | None:
    """Check the batches of producers; returns the earlier batch if a client has sent a duplicate.

    Raises what `ProducerStateManager.check` and `check_marker` raise.
    """
    for position, header in batches:
        if header.attributes & CONTROL_FLAG:
            marker = read_control_record(records, position, header)
            if marker is not None:
                producers.check_marker(header, marker)
        # A coordinator's own records have no sequences to check.
        elif origin is not AppendOrigin.COORDINATOR:
            duplicate = producers.find_duplicate(header)
            if duplicate is not None:
                return duplicate
            producers.check(header)
    return None
