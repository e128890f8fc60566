"""The second pass: rewrites a group of segments without superseded records.

isotherm.segment.cleaning.filtering decides which records of each batch stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.chunk_reader import ChunkReader, Throttle
from isotherm.log.cleaner.cleaned_log import CleanerStats
from isotherm.log.cleaner.offset_map import OffsetMap
from isotherm.log.cleaner.segment_writer import SegmentWriter
from isotherm.log.file_cache import FileCache
from isotherm.log.log_read import aborted_transactions, floor_index
from isotherm.log.log_segment import LogSegment
from isotherm.record.filter import FilteredBatches
from isotherm.segment.cleaning.chunk import Chunk
from isotherm.segment.cleaning.filtering import BatchRules, LastRecords, filter_chunk
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch_table import Int64Array
    from isotherm.record.filter import PlaceTable


@dataclass(frozen=True, slots=True)
class Round:
    """The parameters of a round of cleaning. `upper_bound_offset` is the first uncleanable offset.

    The first pass has verified the batches of the map.
    """

    offset_map: OffsetMap
    now_ms: TimestampMs
    delete_retention_ms: int
    upper_bound_offset: Offset


class GroupRewriter:
    """Writes one group, which is a run of the log's `segments`."""

    def __init__(
        self,
        cache: FileCache,
        directory: Path,
        config: TopicConfig,
        reader: ChunkReader,
        throttle: Throttle,
        *,
        size_max: int,
    ) -> None:
        self._cache = cache
        self._directory = directory
        self._config = config
        self._reader = reader
        self._throttle = throttle
        self._size_max = size_max
        self._writers: list[SegmentWriter] = []

    def rewrite(
        self,
        group: Sequence[LogSegment],
        segments: Sequence[LogSegment],
        cleaning: Round,
        transactions: CleanedTransactions,
        last_records: LastRecords,
        stats: CleanerStats,
    ) -> list[LogSegment]:
        """The durable `.cleaned` segments: one, or several if the records do not fit into one.

        Raises CorruptRecordError; the caller then calls `remove_output`.
        """
        self._writers = [self._writer(group[0].base_offset)]
        for index, segment in enumerate(group):
            following = index + 1
            end_offset = (
                group[following].base_offset
                if following < len(group)
                else segment.read_next_offset()
            )
            first = floor_index(segments, segment.base_offset)
            transactions.add_aborted(
                aborted_transactions(segments[first:], segment.base_offset, end_offset)
            )
            for chunk in self._reader.chunks(segment, 0, cleaning.offset_map.decide_batches):
                filtered = _filter(chunk, cleaning, transactions, last_records, stats)
                self._append(filtered, transactions)
        # The new segment keeps the time of the last old one: retention by time may depend on it.
        modified_ms = self._cache.fs.modified_ms(group[-1].log_path)
        return [writer.finish(modified_ms) for writer in self._writers]

    def remove_output(self) -> None:
        for writer in self._writers:
            writer.remove()

    def _append(self, filtered: FilteredBatches, transactions: CleanedTransactions) -> None:
        """Append `filtered` and the aborted transactions whose markers it may contain."""
        aborted = transactions.take_retained()
        for part in self._parts(filtered):
            self._throttle(len(part.records))
            self._writers[-1].append(part)
            end_offset = int(part.batches["last_offset"][-1]) + 1
            ended = [transaction for transaction in aborted if transaction.last_offset < end_offset]
            self._writers[-1].append_aborted(ended)
            aborted = aborted[len(ended) :]

    def _parts(self, filtered: FilteredBatches) -> Iterator[FilteredBatches]:
        """Runs of batches, each for one segment. Opens a new segment when one is full."""
        while len(filtered.batches):
            count = self._writers[-1].count_fitting(filtered.batches, self._size_max)
            if count == 0:
                base_offset = int(filtered.batches["base_offset"][0])
                self._writers.append(self._writer(base_offset))
                continue
            yield filtered.head(count)
            filtered = filtered.tail(count)

    def _writer(self, base_offset: Offset) -> SegmentWriter:
        return SegmentWriter(self._cache, self._directory, base_offset, self._config)


def _filter(
    chunk: Chunk,
    cleaning: Round,
    transactions: CleanedTransactions,
    last_records: LastRecords,
    stats: CleanerStats,
) -> FilteredBatches:
    offset_map = cleaning.offset_map

    def choose(chunk: Chunk, places: PlaceTable, expiry_ms: Int64Array) -> int:
        if offset_map.has_bits_for(chunk.batches):
            return offset_map.choose_newest(
                chunk.batches, places, now_ms=cleaning.now_ms, expiry_ms=expiry_ms
            )
        hashes = offset_map.hash_keys(chunk.array, chunk.unpacked, chunk.batches, places)
        return offset_map.choose_records(
            chunk.batches, places, hashes, now_ms=cleaning.now_ms, expiry_ms=expiry_ms
        )

    # Above the end of the map all records stay: it does not know the newest of their keys.
    is_in_map = chunk.last_offsets <= offset_map.latest_offset
    rules = BatchRules(
        cleaning.now_ms,
        cleaning.delete_retention_ms,
        last_records,
        # The batch with the last cleaned offset stays, even empty: it keeps the range of offsets.
        # As in Kafka 4.1 to 4.3; 4.4 asks for the high watermark (docs/decisions/0023).
        kept_when_empty=chunk.last_offsets + 1 == cleaning.upper_bound_offset,
        in_map=is_in_map,
        is_verified=is_in_map & (chunk.batches["base_offset"] >= offset_map.first_offset),
    )
    done = filter_chunk(chunk, rules, transactions, choose)
    stats.invalid_messages_read += done.keyless_count
    stats.bytes_read += chunk.size
    stats.messages_read += int(chunk.records_count[done.is_read].sum())
    stats.bytes_written += len(done.filtered.records)
    stats.messages_written += done.records_kept
    return done.filtered
