"""The output of the cleaner: `.cleaned` segments, durable before they may replace anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner import cleaner_kernels as kernels
from isotherm.log.file_cache import FileCache
from isotherm.log.log_segment import LogSegment
from isotherm.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from isotherm.segment.offset_index import OFFSET_INDEX_ENTRY_SIZE, RELATIVE_OFFSET_MAX
from isotherm.segment.time_index import TIME_INDEX_ENTRY_SIZE
from isotherm.segment.transaction_index import AbortedTransaction, encode_transaction_index
from isotherm.types import NO_TIMESTAMP, Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.filter import FilteredBatches, WrittenTable

# Positions in an offset index are of 31 bits.
SEGMENT_SIZE_MAX = 2**31 - 1

_OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

assert _OFFSET_ENTRY.itemsize == OFFSET_INDEX_ENTRY_SIZE
assert _TIME_ENTRY.itemsize == TIME_INDEX_ENTRY_SIZE


class SegmentWriter:
    """One `.cleaned` segment. Its indexes are kept in memory, and written by `finish`."""

    def __init__(
        self, cache: FileCache, directory: Path, base_offset: Offset, config: TopicConfig
    ) -> None:
        """Replaces what an earlier round may have left under the name."""
        self.base_offset = base_offset
        self._cache = cache
        self._fs = cache.fs
        self._directory = directory
        self._index_interval = config.index_interval_bytes
        self._index_size_max = config.segment_index_bytes
        self._indexing = np.zeros(1, dtype=kernels.INDEXING)
        self._indexing["base_offset"] = base_offset
        self._indexing["largest_timestamp"] = NO_TIMESTAMP
        self._indexing["last_indexed_timestamp"] = NO_TIMESTAMP
        self._offset_entries = bytearray()
        self._time_entries = bytearray()
        self._aborted: list[AbortedTransaction] = []
        self.remove()
        self._file = self._fs.open_writable(self._path(LOG_SUFFIX))

    @property
    def size(self) -> int:
        return int(self._indexing["position"][0])

    def count_fitting(self, batches: WrittenTable, size_max: int) -> int:
        """How many of a run of batches can be appended; the first one always to an empty segment."""
        ends = self.size + np.cumsum(batches["size"])
        fits = (ends <= size_max) & (
            batches["last_offset"] - self.base_offset <= RELATIVE_OFFSET_MAX
        )
        count = len(batches) if fits.all() else int(np.argmin(fits))
        return max(count, 1) if self.size == 0 else count

    def append(self, filtered: FilteredBatches) -> None:
        batches = filtered.batches
        offsets = np.empty((len(batches), 2), dtype=np.int64)
        times = np.empty((len(batches), 2), dtype=np.int64)
        self._file.write_at(self.size, filtered.records)
        offset_count, time_count = kernels.index_batches(
            batches, self._indexing, self._index_interval, offsets, times
        )
        self._offset_entries += _encode(offsets[:offset_count], _OFFSET_ENTRY)
        self._time_entries += _encode(times[:time_count], _TIME_ENTRY)

    def append_aborted(self, transactions: Sequence[AbortedTransaction]) -> None:
        """Transactions whose abort markers are in the segment, in the order of the markers."""
        self._aborted += transactions

    def finish(self, modified_ms: TimestampMs) -> LogSegment:
        """Make the segment durable, still as `.cleaned`."""
        state = self._indexing[0]
        if state["largest_timestamp"] > state["last_indexed_timestamp"]:
            last = [[state["largest_timestamp"], state["offset_of_largest"]]]
            self._time_entries += _encode(np.array(last, dtype=np.int64), _TIME_ENTRY)
        # An index may come out larger than those it replaces. Lookups then end at its last entry
        # and scan from there.
        self._write(OFFSET_INDEX_SUFFIX, self._offset_entries, OFFSET_INDEX_ENTRY_SIZE)
        self._write(TIME_INDEX_SUFFIX, self._time_entries, TIME_INDEX_ENTRY_SIZE)
        if self._aborted:
            data = encode_transaction_index(self._aborted)
            self._fs.write_bytes(self._path(TRANSACTION_INDEX_SUFFIX), data)
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
        """Remove the files, finished or not."""
        for suffix in (LOG_SUFFIX, *_INDEX_SUFFIXES):
            self._fs.remove(self._path(suffix))

    def _write(self, suffix: str, entries: bytearray, entry_size: int) -> None:
        size_max = self._index_size_max - self._index_size_max % entry_size
        self._fs.write_bytes(self._path(suffix), memoryview(entries)[:size_max])

    def _path(self, suffix: str) -> Path:
        return self._directory / segment_file_name(self.base_offset, suffix, CLEANED_SUFFIX)


def _encode(
    entries: np.ndarray[tuple[int, int], np.dtype[np.int64]], entry_type: np.dtype[np.void]
) -> bytes:
    encoded = np.empty(len(entries), dtype=entry_type)
    for column, name in enumerate(entry_type.names or ()):
        encoded[name] = entries[:, column]
    return encoded.tobytes()
