"""Writes the cleaner's output: `.cleaned` segments, durable before they replace others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isotherm.config.topic import TopicConfig
from isotherm.log.file_cache import FileCache
from isotherm.log.log_segment import LogSegment
from isotherm.segment.cleaning.written_indexes import WrittenIndexes
from isotherm.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.filter import FilteredBatches, WrittenTable

# Positions in an offset index have 31 bits.
SEGMENT_SIZE_MAX = 2**31 - 1

_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class SegmentWriter:
    """One `.cleaned` segment. Its indexes are in memory until `finish` writes them."""

    def __init__(
        self, cache: FileCache, directory: Path, base_offset: Offset, config: TopicConfig
    ) -> None:
        """Overwrites files that an earlier round left under this name."""
        self.base_offset = base_offset
        self._cache = cache
        self._fs = cache.fs
        self._directory = directory
        self._indexes = WrittenIndexes(
            base_offset,
            interval_bytes=config.index_interval_bytes,
            # Rewritten batches may need more entries than the old indexes had.
            size_max=config.segment_index_bytes,
        )
        self.remove()
        self._file = self._fs.open_writable(self._path(LOG_SUFFIX))

    @property
    def size(self) -> int:
        return self._indexes.position

    def count_fitting(self, batches: WrittenTable, size_max: int) -> int:
        """The number of batches that can be appended. An empty segment takes at least the first."""
        ends = self.size + np.cumsum(batches["size"])
        fits = (ends <= size_max) & (
            batches["last_offset"] - self.base_offset <= RELATIVE_OFFSET_MAX
        )
        count = len(batches) if fits.all() else int(np.argmin(fits))
        return max(count, 1) if self.size == 0 else count

    def append(self, filtered: FilteredBatches) -> None:
        self._file.write_at(self.size, filtered.records)
        self._indexes.append(filtered.batches)

    def append_aborted(self, transactions: Sequence[AbortedTransaction]) -> None:
        """Add transactions whose abort markers are in the segment, in the order of the markers."""
        self._indexes.append_aborted(transactions)

    def finish(self, modified_ms: TimestampMs) -> LogSegment:
        """Make the segment durable. Its files keep the suffix `.cleaned`."""
        self._fs.write_bytes(self._path(OFFSET_INDEX_SUFFIX), self._indexes.offset_index())
        self._fs.write_bytes(self._path(TIME_INDEX_SUFFIX), self._indexes.time_index())
        transaction_index = self._indexes.transaction_index()
        if transaction_index:
            self._fs.write_bytes(self._path(TRANSACTION_INDEX_SUFFIX), transaction_index)
        # Everything is durable before the swap: at a crash, a `.swap` file counts as complete.
        self._file.sync()
        self._file.close()
        for suffix in _INDEX_SUFFIXES:
            self._fs.sync_file(self._path(suffix))
        self._fs.set_modified_ms(self._path(LOG_SUFFIX), modified_ms)
        return LogSegment(
            self._cache,
            self._directory,
            self.base_offset,
            now_ms=modified_ms,
            temporary_suffix=CLEANED_SUFFIX,
        )

    def remove(self) -> None:
        """Remove the files, whether finished or not."""
        for suffix in (LOG_SUFFIX, *_INDEX_SUFFIXES):
            self._fs.remove(self._path(suffix))

    def _path(self, suffix: str) -> Path:
        return self._directory / segment_file_name(self.base_offset, suffix, CLEANED_SUFFIX)
