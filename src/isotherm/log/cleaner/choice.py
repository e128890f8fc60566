"""Chooses the part of a log that can be cleaned. Pure; source: Kafka LogCleanerManager, LogToClean.

    log start          first dirty                 first uncleanable            log end
        |  clean section   |  dirty and cleanable        |  uncleanable            |

Cleaning works on whole segments, so sizes are of whole segments. A segment that contains
`first dirty` counts both as clean and as cleanable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.config.topic import TopicConfig
from isotherm.log.log_read import LogView, floor_index
from isotherm.log.log_segment import LogSegment
from isotherm.types import Offset, TimestampMs


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The part of a log that a round of cleaning may process.

    Keys from `first_dirty_offset` up to `first_uncleanable_offset`, which is a segment's base, go
    into the offset map. Every segment below the latter may be rewritten. `compaction_delay_ms`
    is the time by which max.compaction.lag.ms is exceeded, 0 if it is not.
    """

    first_dirty_offset: Offset
    first_uncleanable_offset: Offset
    clean_size: int
    cleanable_size: int
    compaction_delay_ms: int

    @property
    def total_size(self) -> int:
        return self.clean_size + self.cleanable_size

    @property
    def cleanable_ratio(self) -> float:
        return self.cleanable_size / self.total_size if self.total_size else 0.0

    def must_be_cleaned(self, min_cleanable_dirty_ratio: float) -> bool:
        """Whether the dirty ratio is exceeded, or the lag is and there is something to clean."""
        # `>`, as in Kafka: with min.cleanable.dirty.ratio=0 a clean log is not due.
        return self.cleanable_ratio > min_cleanable_dirty_ratio or (
            self.compaction_delay_ms > 0 and self.cleanable_size > 0
        )


def first_dirty_offset(log: LogView, checkpoint: Offset | None) -> Offset:
    """The checkpoint; the log start if there is none or it lies outside the log."""
    if checkpoint is None or not log.log_start_offset <= checkpoint <= log.log_end_offset:
        return log.log_start_offset
    return checkpoint


def plan_log_to_clean(
    log: LogView, first_dirty: Offset, config: TopicConfig, now_ms: TimestampMs
) -> LogToClean:
    """The part that a round of cleaning would process if it started now."""
    uncleanable = _first_uncleanable_offset(log, first_dirty, config, now_ms)
    beyond = _closed_segments_from(log, uncleanable)
    # Whole segments: the bound is rounded up to the next segment, at most to the active one.
    end = (beyond or log.segments[-1:])[0].base_offset
    return LogToClean(
        first_dirty,
        end,
        _size_between(log, log.segments[0].base_offset, first_dirty),
        _size_between(log, min(first_dirty, end), end),
        _compaction_delay_ms(log, first_dirty, config, now_ms),
    )


def _first_uncleanable_offset(
    log: LogView, first_dirty: Offset, config: TopicConfig, now_ms: TimestampMs
) -> Offset:
    """The first of: active segment, open transaction, record within min.compaction.lag.ms."""
    # An open transaction may still be aborted, and then its records must not replace others.
    bounds = [log.last_stable_offset, log.segments[-1].base_offset]
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        for segment in _closed_segments_from(log, first_dirty):
            if segment.largest_timestamp_ms > youngest_ms:
                bounds.append(segment.base_offset)
                break
    return max(first_dirty, min(bounds))


def _compaction_delay_ms(
    log: LogView, first_dirty: Offset, config: TopicConfig, now_ms: TimestampMs
) -> int:
    """The time by which the oldest dirty record exceeds max.compaction.lag.ms.

    Segments without a timestamp do not count.
    """
    oldest_ms = min(
        (
            segment.first_batch_timestamp_ms
            for segment in _closed_segments_from(log, first_dirty)
            if segment.first_batch_timestamp_ms is not None and segment.first_batch_timestamp_ms > 0
        ),
        default=None,
    )
    if oldest_ms is None:
        return 0
    return max(0, now_ms - config.max_compaction_lag_ms - oldest_ms)


def _closed_segments_from(log: LogView, offset: Offset) -> Sequence[LogSegment]:
    """The segment that contains `offset` and the later ones, without the active segment."""
    return log.segments[max(0, floor_index(log.segments, offset)) : -1]


def _size_between(log: LogView, start: Offset, end: Offset) -> int:
    """Size of the segment that contains `start` and of the later ones that begin below `end`."""
    first = max(0, floor_index(log.segments, start))
    return sum(s.size_in_bytes for s in log.segments[first:] if s.base_offset < end)
