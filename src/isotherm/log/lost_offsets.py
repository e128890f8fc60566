"""Offsets that a log has lost, seen when it is loaded: reported in the log of the broker.

After an unclean stop unflushed records are lost, at the end or in the middle; the log goes on
without them, as in Kafka. Offsets that compaction removed are no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from isotherm.log.batch_scan import SoundBatches
from isotherm.log.log_segment import LogSegment
from isotherm.log.segment_split import overflows
from isotherm.record.batch import BatchHeader
from isotherm.types import Offset, TopicPartition

logger = logging.getLogger(__name__)


class RecoveredSegment(NamedTuple):
    """A segment that was checked or recovered. `cut_size` bytes were cut off its end."""

    segment: LogSegment
    next_offset: Offset
    cut_size: int


def report_recovery(
    topic_partition: TopicPartition,
    last: RecoveredSegment,
    dropped: Sequence[LogSegment],
    *,
    recovery_point: Offset,
    high_watermark: Offset,
) -> None:
    """Log the end of the records after an unclean stop, since unflushed records may be lost without
    a trace. `dropped` are the segments behind `last`."""
    end_offset, cut_size = last.next_offset, last.cut_size
    if end_offset > 0:
        logger.info(
            "log is recovered after an unclean stop partition=%s recovery_point=%d"
            " log_end_offset=%d",
            topic_partition,
            recovery_point,
            end_offset,
        )
    if cut_size > 0:
        logger.warning(
            "records that were not flushed are dropped after an unclean stop partition=%s"
            " first_dropped_offset=%d dropped_bytes=%d dropped_segments=%d",
            topic_partition,
            end_offset,
            cut_size + sum(segment.size_in_bytes for segment in dropped),
            len(dropped),
        )
    elif end_offset < high_watermark:
        logger.warning(
            "records that were not flushed are lost after an unclean stop partition=%s"
            " first_lost_offset=%d high_watermark=%d",
            topic_partition,
            end_offset,
            high_watermark,
        )


def report_gaps(
    topic_partition: TopicPartition, ends: Sequence[RecoveredSegment], *, cleaned_to: Offset
) -> None:
    """Log which offsets are missing in the middle of the log, from `cleaned_to` on.

    The file of a new segment may reach the disk before the end of the previous one, or its name
    alone. The later records are kept, as in Kafka: they are valid, and in a log that was once
    compacted, or whose checkpoint was lost, a gap may be no loss at all (docs/decisions/0013,
    0074).
    """
    # Empty segments in a row lie in one gap.
    ends = [end for end in ends[:-1] if end.segment.size_in_bytes or end is ends[0]] + [*ends[-1:]]
    gaps = [
        (earlier, later.segment.base_offset)
        for earlier, later in pairwise(ends)
        if later.segment.base_offset > max(earlier.next_offset, cleaned_to)
        # Farther than the end of one segment can reach: a split left these two parts.
        and not overflows(earlier.segment.base_offset, later.segment.base_offset + 1)
    ]
    if not gaps or any(_is_sparse(end.segment) for end in ends):
        return
    for earlier, next_offset in gaps:
        logger.error(
            "records are missing between segments partition=%s"
            " first_missing_offset=%d next_offset=%d",
            topic_partition,
            earlier.next_offset,
            next_offset,
        )


def were_any_compacted(sound: SoundBatches, next_offset: Offset) -> bool:
    """Whether offsets are missing before or in one of these adjacent batches, of which the first
    should begin at `next_offset`."""
    batches = sound.batches
    has_gap = batches["base_offset"] > sound.expected_starts(next_offset)
    has_gap |= batches["records_count"] <= batches["last_offset_delta"]
    return bool(has_gap.any())


def _is_sparse(segment: LogSegment) -> bool:
    """Whether offsets are missing in the segment, or records in a batch: it was compacted."""
    next_offset = segment.base_offset
    for _, header in segment.read_headers(segment.base_offset):
        if _was_compacted(header, next_offset):
            return True
        next_offset = header.next_offset
    return False


def _was_compacted(header: BatchHeader, next_offset: Offset) -> bool:
    """Whether offsets are missing before a batch, or in it."""
    return header.base_offset > next_offset or header.records_count <= header.last_offset_delta
