"""Decides when to roll the active segment. Pure; source: Kafka LogSegment.shouldRoll."""

from __future__ import annotations

import enum
import random
from typing import Protocol

from isotherm.config.topic import TopicConfig
from isotherm.types import Offset, TimestampMs


class RollReason(enum.Enum):
    SIZE = "the segment would exceed segment.bytes"
    TIME = "the segment is older than segment.ms"
    INDEX_FULL = "an index has no room for another entry"
    OFFSET_OVERFLOW = "an offset is too far from the base offset for the indexes"


class IncomingBatches(Protocol):
    """Batches that are to be appended."""

    @property
    def records(self) -> memoryview: ...
    @property
    def last_offset(self) -> Offset: ...
    @property
    def max_timestamp(self) -> TimestampMs: ...


def roll_reason(
    config: TopicConfig,
    now_ms: TimestampMs,
    *,
    size: int,
    created_ms: TimestampMs,
    first_batch_timestamp_ms: TimestampMs | None,
    jitter_ms: int,
    indexes_are_full: bool,
    incoming_size: int,
    max_timestamp_ms: TimestampMs,
    last_offset_fits: bool,
) -> RollReason | None:
    """The reason to roll a segment of `size` bytes before `incoming_size` bytes are appended; None
    if there is none.

    `first_batch_timestamp_ms` is None for an empty segment, -1 if the batch has no timestamp.
    `max_timestamp_ms` is that of the incoming batches. `last_offset_fits` says whether their last
    offset, relative to the segment's base, fits into 31 bits.
    """
    if size > 0 and size > config.effective_segment_bytes - incoming_size:
        # An empty segment takes even a batch that is larger: a leader refuses it, but a follower
        # may get one that was appended when segment.bytes was larger.
        return RollReason.SIZE
    if first_batch_timestamp_ms is not None and first_batch_timestamp_ms >= 0:
        age_ms = max_timestamp_ms - first_batch_timestamp_ms
    else:
        age_ms = now_ms - created_ms
    if size > 0 and age_ms > config.effective_segment_ms - jitter_ms:
        return RollReason.TIME
    if size > 0 and indexes_are_full:
        # An empty segment is not rolled: a second segment with the same base offset would share its
        # files. Its index may be full from the start, if it has no room for an entry at all.
        return RollReason.INDEX_FULL
    if not last_offset_fits:
        return RollReason.OFFSET_OVERFLOW
    return None


def roll_jitter_ms(config: TopicConfig, rng: random.Random) -> int:
    """The time by which a segment rolls earlier than segment.ms, so that not all roll at once."""
    bound = min(config.segment_jitter_ms, config.segment_ms)
    return rng.randrange(bound) if bound > 0 else 0
