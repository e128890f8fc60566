"""One round of cleaning of one log. Source: Kafka Cleaner.java.

Two passes. The first reads the dirty section and finds the newest offset of each key. The second
reads the log from its start to the end of the offset map and rewrites it, group by group. A group
replaces its segments before the next one starts, so an interrupted round leaves a partly cleaned
log.

Memory: the offset map (log.cleaner.dedupe.buffer.size over all threads, allocated only during a
round, and at most an eighth of it again for its bits), and a few times the read size
(log.cleaner.io.buffer.size over all threads, or the size of a larger batch, or of its decompressed
records).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from isotherm.clock import Clock
from isotherm.config.cleaner import CleanerConfig
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.chunk_reader import CheckAbort, ChunkReader, Throttle
from isotherm.log.cleaner.cleaned_log import CleanedLog, CleanerStats
from isotherm.log.cleaner.map_build import build_offset_map
from isotherm.log.cleaner.offset_map import OffsetMap
from isotherm.log.cleaner.rewrite import GroupRewriter, Round
from isotherm.log.cleaner.segment_writer import SEGMENT_SIZE_MAX
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.types import Offset


class Cleaner:
    """Used by one thread. `rng` keys the hashes of the offset maps: it must be unpredictable if the
    clients that choose record keys are not trusted."""

    def __init__(
        self,
        config: CleanerConfig,
        clock: Clock,
        rng: random.Random,
        *,
        map_size: int | None = None,
        segment_size_max: int = SEGMENT_SIZE_MAX,
    ) -> None:
        """`map_size` is the size of the offset map in bytes; it may be below the minimum of the
        configuration. `segment_size_max` is the largest size of a new segment."""
        self._segment_size_max = segment_size_max
        self._map_size = config.dedupe_buffer_size_per_thread if map_size is None else map_size
        self._map_load_factor = config.log_cleaner_io_buffer_load_factor
        # Half of the buffer for reading, half for writing, as in Kafka.
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
        """Clean as much of the log as fits into the offset map.

        No other thread may remove segments of the log meanwhile. Raises LogCleaningAbortedError
        from `check_abort` and `throttle`, and CorruptRecordError for a batch that cannot be read:
        groups that were cleaned before stay so. Raises LogDirFailedError if the disk fails, and
        NotLeaderOrFollowerError if the log is closed.
        """
        stats = CleanerStats(start_s=self._clock.monotonic_s())
        reader = ChunkReader(self._read_size, throttle, check_abort)
        offset_map = OffsetMap(
            self._map_size,
            self._map_load_factor,
            self._rng,
            first_offset=to_clean.first_dirty_offset,
            end_offset=to_clean.first_uncleanable_offset,
        )
        cleaning = Round(
            offset_map,
            self._clock.now_ms(),
            log.config.delete_retention_ms,
            to_clean.first_uncleanable_offset,
        )
        # Rewriting may remove the last batch of a leader epoch. The flush stores the epochs first.
        log.flush(closed_segments_only=True)
        with log.log_dir.errors_fail_it(f"clean {log.topic_partition}"):
            build_offset_map(
                offset_map,
                log.segments(),
                to_clean.first_uncleanable_offset,
                reader,
                stats,
            )
            stats.map_complete_s = self._clock.monotonic_s()
            end_offset = offset_map.latest_offset + 1
            # All groups share it: a transaction may span several of them.
            transactions = CleanedTransactions()
            # Groups are cut at the end of the map: later segments have keys that it does not know.
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
        # In an offline directory the swap may be half done. The files stay: loading completes the
        # swap or undoes it, depending on which files exist.
        if not is_swapped and log.log_dir.is_online:
            rewriter.remove_output()


def group_segments(
    segments: Sequence[LogSegment],
    *,
    segment_size_max: int,
    index_size_max: int,
    first_uncleanable_offset: Offset,
) -> list[list[LogSegment]]:
    """Adjacent segments that fit into one segment even if cleaning removes nothing. Pure.

    The total sizes of logs, offset indexes and time indexes are limited, and so are offsets
    relative to the first base. A segment ends at the next one's base, the last one at
    `first_uncleanable_offset`. For an empty segment the end is ignored: otherwise one empty
    segment would remain for every 2^31 offsets. Source: Kafka Cleaner.groupSegmentsBySize.
    """
    groups: list[list[LogSegment]] = []
    for index, segment in enumerate(segments):
        following = index + 1
        end_offset = (
            segments[following].base_offset
            if following < len(segments)
            else first_uncleanable_offset
        )
        if groups and _fits(groups[-1], segment, end_offset, segment_size_max, index_size_max):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(
    group: Sequence[LogSegment],
    segment: LogSegment,
    end_offset: Offset,
    segment_size_max: int,
    index_size_max: int,
) -> bool:
    together = [*group, segment]
    return (
        sum(segment.size_in_bytes for segment in together) <= segment_size_max
        and sum(segment.offset_index_size for segment in together) <= index_size_max
        and sum(segment.time_index_size for segment in together) <= index_size_max
        and (
            # As in Kafka: an empty segment adds no offset to the new one.
            segment.size_in_bytes == 0
            or end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
        )
    )
