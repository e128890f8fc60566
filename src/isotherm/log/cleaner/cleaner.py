"""One round of cleaning of one log. Source: Kafka Cleaner.java.

Two passes: over the dirty part, to learn the newest offset of each key; and over the log from its
start to the end of what the map knows, to write it again, group by group. A group is swapped in
before the next one is begun, so a round that is cut off leaves a log that is partly cleaner.

Memory: the offset map (bounded by log.cleaner.dedupe.buffer.size over all threads, and only there
during a round), and a few times the size of a read (log.cleaner.io.buffer.size over all threads, or
a batch that is larger, or what a compressed one unfolds to).
"""

from __future__ import annotations

import random

from isotherm.clock import Clock
from isotherm.config.cleaner import CleanerConfig
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.cleaned_log import CleanedLog, CleanerStats
from isotherm.log.cleaner.map_build import build_offset_map
from isotherm.log.cleaner.offset_map import OffsetMap
from isotherm.log.cleaner.plan import group_segments
from isotherm.log.cleaner.rewrite import GroupRewriter, Round
from isotherm.log.cleaner.segment_reader import CheckAbort, SegmentReader, Throttle
from isotherm.log.cleaner.segment_writer import SEGMENT_SIZE_MAX
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.types import Offset


class Cleaner:
    """Works for one thread. `rng` keys the hashes of the offset maps, so it wants to be
    unpredictable where those who choose record keys are not trusted."""

    def __init__(
        self,
        config: CleanerConfig,
        clock: Clock,
        rng: random.Random,
        *,
        map_size: int | None = None,
        segment_size_max: int = SEGMENT_SIZE_MAX,
    ) -> None:
        """`map_size` bytes of offset map, which may be less than the configuration accepts;
        `segment_size_max` is what a segment may become."""
        self._segment_size_max = segment_size_max
        self._map_size = config.dedupe_buffer_size_per_thread if map_size is None else map_size
        self._map_load_factor = config.log_cleaner_io_buffer_load_factor
        # Half for reading, half for writing, as in Kafka.
        self._read_size = config.log_cleaner_io_buffer_size // config.log_cleaner_threads // 2
        self._clock = clock
        self._rng = rng

    def clean(
        self,
        log: PartitionLog,
        to_clean: LogToClean,
        *,
        throttle: Throttle,
        check_abort: CheckAbort,
    ) -> CleanedLog:
        """Clean as much of the log as the offset map can take in.

        Nothing but this may remove segments of the log meanwhile. Raises LogCleaningAbortedError
        from `check_abort` and `throttle`, CorruptRecordError for a batch that cannot be read: the
        log is as clean then as the groups before made it. LogDirFailedError when the disk fails,
        NotLeaderOrFollowerError when the log is closed.
        """
        stats = CleanerStats(start_s=self._clock.monotonic_s())
        reader = SegmentReader(self._read_size, throttle, check_abort)
        offset_map = OffsetMap(
            self._map_size,
            self._map_load_factor,
            self._rng,
            # No two records have one offset.
            records_max=to_clean.first_uncleanable_offset - to_clean.first_dirty_offset,
        )
        cleaning = Round(
            offset_map,
            self._clock.now_ms(),
            log.config.delete_retention_ms,
            to_clean.first_dirty_offset,
            to_clean.first_uncleanable_offset,
        )
        # What is rewritten must not be all that is known of an epoch: it is stored by a flush.
        log.flush(closed_segments_only=True)
        with log.log_dir.errors_fail_it(f"clean {log.topic_partition}"):
            build_offset_map(
                offset_map,
                log.segments(),
                to_clean.first_dirty_offset,
                to_clean.first_uncleanable_offset,
                reader,
                stats,
            )
            stats.map_complete_s = self._clock.monotonic_s()
            end_offset = offset_map.latest_offset + 1
            transactions = CleanedTransactions()
            for group in _groups(log, end_offset, to_clean.first_uncleanable_offset):
                rewriter = GroupRewriter(
                    log.environment.cache,
                    log.directory,
                    log.config,
                    reader,
                    throttle,
                    size_max=self._segment_size_max,
                )
                _clean_group(log, group, rewriter, cleaning, transactions, stats)
        stats.buffer_utilization = offset_map.utilization
        stats.end_s = self._clock.monotonic_s()
        return CleanedLog(end_offset, stats)


def _groups(
    log: PartitionLog, end_offset: Offset, first_uncleanable_offset: Offset
) -> list[list[LogSegment]]:
    return group_segments(
        [segment for segment in log.segments() if segment.base_offset < end_offset],
        segment_size_max=log.config.effective_segment_bytes,
        index_size_max=log.config.segment_index_bytes,
        first_uncleanable_offset=first_uncleanable_offset,
    )


def _clean_group(
    log: PartitionLog,
    group: list[LogSegment],
    rewriter: GroupRewriter,
    cleaning: Round,
    transactions: CleanedTransactions,
    stats: CleanerStats,
) -> None:
    is_swapped = False
    try:
        cleaned = rewriter.rewrite(
            group, log.segments(), cleaning, transactions, log.last_records_of_producers(), stats
        )
        log.replace_segments(group, cleaned)
        is_swapped = True
    finally:
        # Files of an offline directory stay as they are: the swap may be half done, and loading
        # goes by what is there.
        if not is_swapped and log.log_dir.is_online:
            rewriter.remove_output()
