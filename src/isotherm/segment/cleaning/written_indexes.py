"""The indexes of a rewritten segment, built in memory while its batches are appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isotherm.kernels import indexes as kernels
from isotherm.segment.offset_index import OFFSET_INDEX_ENTRY_SIZE
from isotherm.segment.time_index import TIME_INDEX_ENTRY_SIZE
from isotherm.segment.transaction_index import AbortedTransaction, encode_transaction_index
from isotherm.types import NO_TIMESTAMP, Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.filter import WrittenTable

_OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

assert _OFFSET_ENTRY.itemsize == OFFSET_INDEX_ENTRY_SIZE
assert _TIME_ENTRY.itemsize == TIME_INDEX_ENTRY_SIZE


def index_entries(
    batches: WrittenTable, indexing: np.ndarray[Any, np.dtype[np.void]], interval_bytes: int
) -> tuple[bytes, bytes]:
    """The entries of the offset index and of the time index for batches that are appended.

    `indexing` has one row, of `kernels.indexes.INDEXING`: the state before, and then after, them.
    """
    offsets = np.empty((len(batches), 2), dtype=np.int64)
    times = np.empty((len(batches), 2), dtype=np.int64)
    offset_count, time_count = kernels.index_batches(
        batches, indexing, interval_bytes, offsets, times
    )
    return _encode(offsets[:offset_count], _OFFSET_ENTRY), _encode(times[:time_count], _TIME_ENTRY)


class WrittenIndexes:
    """Entries follow KAFKA-806, like those of `LogSegment`."""

    def __init__(
        self, base_offset: Offset, *, interval_bytes: int, size_max: int | None = None
    ) -> None:
        """An index is cut off at `size_max` bytes. Lookups then scan from its last entry."""
        self.base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._size_max = size_max
        self._indexing = np.zeros(1, dtype=kernels.INDEXING)
        self._indexing["base_offset"] = base_offset
        self._indexing["largest_timestamp"] = NO_TIMESTAMP
        self._indexing["last_indexed_timestamp"] = NO_TIMESTAMP
        self._offset_entries = bytearray()
        self._time_entries = bytearray()
        self._aborted: list[AbortedTransaction] = []

    @property
    def position(self) -> int:
        """Size of the appended batches in bytes."""
        return int(self._indexing["position"][0])

    @property
    def largest_timestamp_ms(self) -> TimestampMs:
        """NO_TIMESTAMP if no batch has one."""
        return int(self._indexing["largest_timestamp"][0])

    def append(self, batches: WrittenTable) -> None:
        offset_entries, time_entries = index_entries(batches, self._indexing, self._interval_bytes)
        self._offset_entries += offset_entries
        self._time_entries += time_entries

    def append_aborted(self, transactions: Sequence[AbortedTransaction]) -> None:
        """Add transactions whose abort markers are in the segment, in the order of the markers."""
        self._aborted += transactions

    def offset_index(self) -> memoryview:
        return self._cut(self._offset_entries, OFFSET_INDEX_ENTRY_SIZE)

    def time_index(self) -> memoryview:
        """The time index, with the final entry that a closed segment has."""
        state = self._indexing[0]
        entries = self._time_entries
        if state["largest_timestamp"] > state["last_indexed_timestamp"]:
            last = [[state["largest_timestamp"], state["offset_of_largest"]]]
            entries = entries + _encode(np.array(last, dtype=np.int64), _TIME_ENTRY)
        return self._cut(entries, TIME_INDEX_ENTRY_SIZE)

    def transaction_index(self) -> bytes:
        """Empty when the segment has no aborted transaction."""
        return encode_transaction_index(self._aborted)

    def _cut(self, entries: bytearray, entry_size: int) -> memoryview:
        if self._size_max is None:
            return memoryview(entries)
        # Kafka too rounds the limit of an index down to whole entries (AbstractIndex).
        return memoryview(entries)[: self._size_max - self._size_max % entry_size]


def _encode(
    entries: np.ndarray[tuple[int, int], np.dtype[np.int64]], entry_type: np.dtype[np.void]
) -> bytes:
    encoded = np.empty(len(entries), dtype=entry_type)
    for column, name in enumerate(entry_type.names or ()):
        encoded[name] = entries[:, column]
    return encoded.tobytes()
