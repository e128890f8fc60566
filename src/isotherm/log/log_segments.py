"""The segments of one log, in order. Source: Kafka LogSegments.java, LocalLog.java.

Owned and serialized by the log. `all` is an immutable tuple that every change replaces, so readers
need no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isotherm.config.topic import TopicConfig
from isotherm.errors import LogCleaningAbortedError
from isotherm.log.environment import LogEnvironment
from isotherm.log.log_read import floor_index
from isotherm.log.log_segment import LogSegment
from isotherm.log.roll import roll_jitter_ms
from isotherm.log.transaction_index_checkpoint import TransactionIndexCheckpoint
from isotherm.types import Offset, TimestampMs


class LogSegments:
    """The segments of a log: at least one, ascending without overlap. The last one is active."""

    def __init__(
        self,
        environment: LogEnvironment,
        directory: Path,
        segments: Sequence[LogSegment],
        config: TopicConfig,
        transaction_indexes: TransactionIndexCheckpoint,
    ) -> None:
        self.all: tuple[LogSegment, ...] = tuple(segments)
        self.transaction_indexes = transaction_indexes
        """The indexes of closed segments. It follows every change, and the log stores it."""
        self._environment = environment
        self._directory = directory
        self.jitter_ms = roll_jitter_ms(config, environment.rng)
        """Time by which the active segment is rolled earlier than segment.ms."""

    @property
    def first_base_offset(self) -> Offset:
        return self.all[0].base_offset

    @property
    def active(self) -> LogSegment:
        return self.all[-1]

    @property
    def size_in_bytes(self) -> int:
        return sum(segment.size_in_bytes for segment in self.all)

    def from_offset(self, offset: Offset) -> tuple[LogSegment, ...]:
        """The segment that contains `offset`, and the later ones."""
        return self.all[max(0, floor_index(self.all, offset)) :]

    def roll(self, base_offset: Offset, config: TopicConfig, now_ms: TimestampMs) -> None:
        """Close the active segment and start one at `base_offset`, the log end or above."""
        self.active.deactivate()
        self.all = (*self.all, self._begin(base_offset, config, now_ms))
        self.transaction_indexes.follow(self.all[:-1])

    def remove_first(self, count: int) -> tuple[LogSegment, ...]:
        removed, self.all = self.all[:count], self.all[count:]
        self.transaction_indexes.follow(self.all[:-1])
        return removed

    def check_replaceable(self, segments: Sequence[LogSegment]) -> None:
        """Raise LogCleaningAbortedError unless these are adjacent, closed segments of the log."""
        # By identity: another segment may have the base offset by now.
        first = next((i for i, segment in enumerate(self.all) if segment is segments[0]), 0)
        if tuple(segments) != self.all[first:-1][: len(segments)]:
            raise LogCleaningAbortedError(
                f"segments to be replaced are not in the log any more dir={self._directory}"
                f" base_offset={segments[0].base_offset} count={len(segments)}"
            )

    def replace(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> None:
        """Replace `old`, adjacent closed segments, by `new`."""
        first = self.all.index(old[0])
        self.all = (*self.all[:first], *new, *self.all[first + len(old) :])
        self.transaction_indexes.follow(self.all[:-1])

    def beyond(self, offset: Offset) -> tuple[LogSegment, ...]:
        """The segments after the one that contains `offset`."""
        return self.all[floor_index(self.all, offset) + 1 :]

    def truncate_to(self, offset: Offset, config: TopicConfig, now_ms: TimestampMs) -> None:
        """Truncate the segment that contains `offset` and make it active; the files of those beyond
        have been renamed."""
        self.all = self.all[: floor_index(self.all, offset) + 1]
        if not self.active.is_active:
            self.active.activate(config.segment_index_bytes)
        self.active.truncate_to(offset, now_ms)
        self.transaction_indexes.follow(self.all[:-1])

    def begin_anew(self, base_offset: Offset, config: TopicConfig, now_ms: TimestampMs) -> None:
        """Replace all segments, whose files have been renamed, by an empty one."""
        self.all = (self._begin(base_offset, config, now_ms),)
        self.transaction_indexes.follow(())

    def _begin(self, base_offset: Offset, config: TopicConfig, now_ms: TimestampMs) -> LogSegment:
        segment = LogSegment(self._environment.cache, self._directory, base_offset, now_ms=now_ms)
        segment.activate(config.segment_index_bytes)
        # Drawn for each segment, as in Kafka.
        self.jitter_ms = roll_jitter_ms(config, self._environment.rng)
        return segment
