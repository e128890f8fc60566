"""One segment of a log: a `.log` file and its indexes.

Only the last segment of a log is active: its indexes are open and it takes appends. The owner
(`PartitionLog`) serializes all changes of a segment. Reads, lookups and syncs may run at the same
time from any thread. Source: Kafka LogSegment.java.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.log.batch_scan import (
    BatchSpan,
    SoundBatches,
    begins_with_batch,
    find_batch,
    scan_headers,
    scan_sound_batches,
)
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import File
from isotherm.log.index_file import IndexFile
from isotherm.log.read_ends import ReadEnds
from isotherm.log.roll import (
    IncomingBatches,
    RollReason,
    roll_reason,
)
from isotherm.log.segment_files import SegmentFiles
from isotherm.record.batch import BatchHeader
from isotherm.record.batch_header import HEADER_SIZE, LOG_OVERHEAD
from isotherm.record.record_search import find_record
from isotherm.segment.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from isotherm.segment.offset_index import (
    OFFSET_INDEX_ENTRY_SIZE,
    RELATIVE_OFFSET_MAX,
    Buffer,
    OffsetPosition,
    encode_offset_index_entry,
    fetch_upper_bound,
    last_offset_index_entry,
    lookup_offset,
    lookup_range,
    offset_index_entry_count,
    position_before,
    truncated_offset_index_size,
)
from isotherm.segment.time_index import (
    TIME_INDEX_ENTRY_SIZE,
    TimestampOffset,
    encode_time_index_entry,
    last_time_index_entry,
    last_timestamp_ms,
    lookup_timestamp,
    time_index_entry_count,
    truncated_time_index_size,
)
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    encode_transaction_index,
    read_transaction_index,
    truncated_transaction_index_size,
)
from isotherm.types import LeaderEpoch, Offset, Position, TimestampMs

if TYPE_CHECKING:
    from isotherm.config.topic import TopicConfig
    from isotherm.record.filter import WrittenTable

_NOT_NOTED = (0, sys.maxsize)


class SegmentRead(NamedTuple):
    records: memoryview
    position: Position
    """Position of the records in the `.log` file."""
    upper_bound_offset: Offset | None
    """Above every offset in `records`; None if only the end of the segment is known to be."""


class TimestampAndOffset(NamedTuple):
    timestamp_ms: TimestampMs
    offset: Offset
    leader_epoch: LeaderEpoch


class LogSegment:
    def __init__(
        self,
        cache: FileCache,
        directory: Path,
        base_offset: Offset,
        *,
        now_ms: TimestampMs,
        temporary_suffix: str = "",
    ) -> None:
        """A segment, with or without an existing `.log` file. Inactive until `activate`."""
        self.base_offset = base_offset
        self.directory = directory
        self.created_ms = now_ms
        self._fs = cache.fs
        self._files = SegmentFiles(cache, directory, base_offset, temporary_suffix)
        self._file: File | None = None
        self._offset_index: IndexFile | None = None
        self._time_index: IndexFile | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self._bytes_since_index_entry = 0
        # Base offset and position of the batches that were appended last: most readers of the tail
        # ask for them.
        self._newest: tuple[Offset, Position] | None = None
        # Replaced when the log is truncated: a read under way adds to one that nobody uses then.
        self._read_ends = ReadEnds()
        # Whether anything was written since the last sync.
        self._is_dirty = False
        self._largest: TimestampOffset | None = None
        self._first_batch_timestamp_ms: TimestampMs | None = None
        self.size_in_bytes = 0
        with contextlib.suppress(FileNotFoundError):
            self.size_in_bytes = self._fs.file_size(self.log_path)

    def __repr__(self) -> str:
        return f"LogSegment({self.log_path}, size={self.size_in_bytes})"

    # ---- activation

    @property
    def is_active(self) -> bool:
        return self._offset_index is not None

    def activate(
        self,
        index_size_max: int,
        *,
        discard_indexes: bool = False,
        has_transaction_index: bool = True,
    ) -> None:
        """Open for appending. Missing files are created.

        `discard_indexes` starts with empty indexes, for a rebuild. Without `has_transaction_index`
        its file is known to be missing.
        """
        # Created before its indexes: a start takes an index without a log file as a lost log
        # (docs/decisions/0074).
        self._file = self._fs.open_writable(self.log_path)
        if discard_indexes:
            for path in (self.offset_index_path, self.time_index_path, self.transaction_index_path):
                self._fs.remove(path)
            self._files.forget()
            self._is_dirty = True
        offset_index = IndexFile(
            self._fs,
            self.offset_index_path,
            OFFSET_INDEX_ENTRY_SIZE,
            index_size_max,
            offset_index_entry_count,
            self._files.kept_index(OFFSET_INDEX_SUFFIX),
        )
        time_index = IndexFile(
            self._fs,
            self.time_index_path,
            TIME_INDEX_ENTRY_SIZE,
            index_size_max,
            time_index_entry_count,
            self._files.kept_index(TIME_INDEX_SUFFIX),
        )
        self._files.forget()
        self._aborted = self.aborted_transactions() if has_transaction_index else []
        self._largest = last_time_index_entry(time_index.entries, self.base_offset)
        self._offset_index, self._time_index = offset_index, time_index
        self._bytes_since_index_entry = 0

    def deactivate(self) -> None:
        """Write the rest of the indexes and the final time index entry. Called on roll and close.

        The files are not closed: another thread may be syncing them in a flush.
        """
        assert self._offset_index is not None
        assert self._time_index is not None
        self._append_time_index_entry()
        self._offset_index.write_out()
        self._time_index.write_out()
        self._offset_index = self._time_index = self._file = self._aborted = None
        self._files.forget()

    # ---- appending

    def append(
        self, records: Buffer, headers: Sequence[BatchHeader], index_interval_bytes: int
    ) -> None:
        """Write batches at the end. `headers` are those of `records`, in order.

        The offsets must fit the indexes (`roll_reason`). After an OSError the end of the segment is
        undefined, and the log must be closed.
        """
        assert self._file is not None
        start = position = self.size_in_bytes
        self._file.write_at(position, records)
        # Set after the write: a sync that runs in between would reset it too early.
        self._is_dirty = True
        for header in headers:
            self.index_batch(header, position, index_interval_bytes)
            position += header.length + LOG_OVERHEAD
        self._newest = headers[0].base_offset, start
        # Last: readers without the lock take it as the end of whole batches.
        self.size_in_bytes = position

    def append_batches(
        self, records: Buffer, batches: WrittenTable, index_interval_bytes: int
    ) -> None:
        """Like `append`, for many batches. `batches` are those of `records`, in order."""
        assert self._file is not None
        self._file.write_at(self.size_in_bytes, records)
        self._is_dirty = True
        self.size_in_bytes = self._index_batches(batches, self.size_in_bytes, index_interval_bytes)

    def index_sound(self, sound: SoundBatches, index_interval_bytes: int) -> None:
        """Index batches that are in the file; see `index_batch`."""
        # Imported here: the kernels are loaded with the first records (docs/decisions/0062).
        from isotherm.kernels.filter import WRITTEN

        rows = sound.batches
        batches = np.zeros(len(rows), dtype=WRITTEN)
        batches["size"], batches["max_timestamp"] = rows["size"], rows["max_timestamp"]
        batches["last_offset"] = sound.next_offsets - 1
        self._index_batches(batches, sound.position, index_interval_bytes)

    def _index_batches(
        self, batches: WrittenTable, position: Position, index_interval_bytes: int
    ) -> Position:
        """Index batches, the first of which is at `position`; returns the position after them."""
        from isotherm.kernels.indexes import INDEXING
        from isotherm.segment.cleaning.written_indexes import index_entries

        assert self._offset_index is not None
        assert self._time_index is not None
        if position == 0:
            self._first_batch_timestamp_ms = int(batches["max_timestamp"][0])
        largest = self._largest or self.largest_timestamp
        last = last_time_index_entry(self._time_index.entries, self.base_offset)
        state = (
            self.base_offset,
            position,
            self._bytes_since_index_entry,
            largest.timestamp_ms,
            largest.offset - self.base_offset,
            last.timestamp_ms,
        )
        indexing = np.array([state], dtype=INDEXING)
        offset_entries, time_entries = index_entries(batches, indexing, index_interval_bytes)
        self._offset_index.append(offset_entries)
        self._time_index.append(time_entries)
        _, end, size_since_entry, timestamp_ms, relative_offset, _ = indexing[0].tolist()
        self._largest = TimestampOffset(timestamp_ms, self.base_offset + relative_offset)
        self._bytes_since_index_entry = size_since_entry
        return int(end)

    def index_batch(
        self, header: BatchHeader, position: Position, index_interval_bytes: int
    ) -> None:
        """Index one batch by Kafka's rule (KAFKA-806), the same for an append and a rebuild."""
        last_offset = header.base_offset + header.last_offset_delta
        if position == 0:
            self._first_batch_timestamp_ms = header.max_timestamp
        if header.max_timestamp > (self._largest or self.largest_timestamp).timestamp_ms:
            self._largest = TimestampOffset(header.max_timestamp, last_offset)
        # Checked before the batch counts, so the first batch of a segment is never indexed.
        if self._bytes_since_index_entry > index_interval_bytes:
            assert self._offset_index is not None
            entry = OffsetPosition(last_offset, position)
            self._offset_index.append(encode_offset_index_entry(entry, self.base_offset))
            self._append_time_index_entry()
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.length + LOG_OVERHEAD

    def append_aborted_transaction(self, transaction: AbortedTransaction) -> None:
        assert self._aborted is not None
        file = self._fs.open_writable(self.transaction_index_path)
        file.write_at(file.size(), encode_transaction_index([transaction]))
        self._is_dirty = True
        self._aborted.append(transaction)

    def roll_reason(
        self, records: IncomingBatches, config: TopicConfig, jitter_ms: int, now_ms: TimestampMs
    ) -> RollReason | None:
        """The reason to roll before `records` are appended; None if there is none."""
        # Fields, not properties: every append comes here, and the calls of a request have a budget
        # (docs/decisions/0136).
        offset_index, time_index = self._offset_index, self._time_index
        assert offset_index is not None
        assert time_index is not None
        first_ms = self._first_batch_timestamp_ms
        return roll_reason(
            config,
            now_ms,
            size=self.size_in_bytes,
            created_ms=self.created_ms,
            first_batch_timestamp_ms=(
                self.first_batch_timestamp_ms if first_ms is None else first_ms
            ),
            jitter_ms=jitter_ms,
            # The time index keeps room for its final entry.
            indexes_are_full=len(offset_index.entries) >= offset_index.size_full
            or len(time_index.entries) + TIME_INDEX_ENTRY_SIZE >= time_index.size_full,
            incoming_size=len(records.records),
            max_timestamp_ms=records.max_timestamp,
            last_offset_fits=0 <= records.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX,
        )

    @property
    def offset_index_size(self) -> int:
        """Size of the entries in bytes; likewise `time_index_size`."""
        index = self._offset_index_bytes()
        return offset_index_entry_count(index) * OFFSET_INDEX_ENTRY_SIZE

    @property
    def time_index_size(self) -> int:
        return time_index_entry_count(self._time_index_bytes()) * TIME_INDEX_ENTRY_SIZE

    @property
    def first_batch_timestamp_ms(self) -> TimestampMs | None:
        """Largest timestamp of the first batch, where segment.ms starts; None if it is empty."""
        if self._first_batch_timestamp_ms is None and self.size_in_bytes > 0:
            first = next(scan_headers(self._log_file(), 0, self.size_in_bytes), None)
            if first is not None:
                self._first_batch_timestamp_ms = first[1].max_timestamp
        return self._first_batch_timestamp_ms

    @property
    def largest_timestamp(self) -> TimestampOffset:
        """The largest batch timestamp, and the last offset of its batch; -1 if there is none."""
        if self._largest is None:
            entries = self._files.read_index(TIME_INDEX_SUFFIX)
            self._largest = last_time_index_entry(entries, self.base_offset)
        return self._largest

    @property
    def largest_timestamp_ms(self) -> TimestampMs:
        """The time for retention.ms: the file's modification time if no record has a timestamp."""
        timestamp = self.largest_timestamp.timestamp_ms
        return timestamp if timestamp >= 0 else self._fs.modified_ms(self.log_path)

    # ---- reading

    def read(
        self,
        start_offset: Offset,
        max_bytes: int,
        end_position: Position,
        *,
        min_one_message: bool,
        needs_upper_bound: bool = True,
    ) -> SegmentRead | None:
        """Whole batches below `end_position`, where one ends, from the one that contains
        `start_offset` on.

        None if all offsets of the segment are below `start_offset`. Empty if the first batch is
        larger than `max_bytes`, unless `min_one_message`: then that batch is returned.
        `upper_bound_offset` is looked up if `needs_upper_bound`.
        """
        # As `_log_file` and `_offset_index_bytes`, but without their calls (docs/decisions/0136).
        # Both fields are read once: a roll in another thread may set them to None at any time.
        file, active_index = self._file or self._files.open_log(), self._offset_index
        index = self._offset_index_bytes() if active_index is None else active_index.entries
        newest, read_ends = self._newest, self._read_ends
        if newest is not None and newest[0] == start_offset:
            position = newest[1]
            size_min = end_position - position
        else:
            position, size_min = read_ends.batches.get(start_offset, _NOT_NOTED)
        size_left = end_position - position
        size = min(size_left, max_bytes)
        if size >= size_min and size >= HEADER_SIZE:
            # One read instead of three, and no look-up. What is not sound is left to those.
            data = file.read_at(position, size)
            if len(data) == size and begins_with_batch(data, start_offset):
                if size < size_left:
                    indexed = max(0, position_before(index, position + size) - position)
                    size = read_ends.whole_size(data, indexed, position)
                upper_bound_offset = (
                    self._upper_bound_offset(index, OffsetPosition(start_offset, position), size)
                    if needs_upper_bound
                    else None
                )
                return SegmentRead(memoryview(data)[:size], position, upper_bound_offset)
        start, near_end = lookup_range(index, self.base_offset, start_offset, max_bytes)
        first = find_batch(file, start, end_position, start_offset)
        if first is None:
            return None
        size_left = end_position - first.position
        size = min(max_bytes, size_left)
        if size < first.size:
            if not min_one_message:
                return SegmentRead(memoryview(b""), first.position, first.base_offset)
            size = first.size
        data = file.read_at(first.position, size)
        if len(data) < size_left:
            # The read may end inside of a batch. Only the batches after the last index entry in it
            # are walked; all, if the log was truncated meanwhile.
            indexed = near_end - first.position
            start = indexed if 0 < indexed <= len(data) else 0
            size = read_ends.whole_size(data, start, first.position)
        upper_bound_offset = None
        if needs_upper_bound:
            start_position = OffsetPosition(first.base_offset, first.position)
            upper_bound_offset = self._upper_bound_offset(index, start_position, size)
        return SegmentRead(memoryview(data)[:size], first.position, upper_bound_offset)

    def _upper_bound_offset(self, index: Buffer, start: OffsetPosition, size: int) -> Offset | None:
        """Limits the search for aborted transactions to the returned records."""
        bound = fetch_upper_bound(index, self.base_offset, start, size)
        return bound.offset if bound is not None else None

    def find_batch(self, offset: Offset, end_position: Position | None = None) -> BatchSpan | None:
        """The first batch that ends at `offset` or above."""
        end = self.size_in_bytes if end_position is None else end_position
        start = lookup_offset(self._offset_index_bytes(), self.base_offset, offset).position
        return find_batch(self._log_file(), start, end, offset)

    def find_offset_by_timestamp(
        self, timestamp_ms: TimestampMs, start_offset: Offset
    ) -> TimestampAndOffset | None:
        """The first record at or above `start_offset` with this timestamp or a later one."""
        index = self._time_index_bytes()
        hint = lookup_timestamp(index, self.base_offset, timestamp_ms).offset
        first = self.find_batch(max(hint, start_offset))
        if first is None:
            return None
        for position, header in scan_headers(self._log_file(), first.position, self.size_in_bytes):
            # The batch's maximum timestamp rules it out without decoding its records.
            if header.max_timestamp < timestamp_ms:
                continue
            batch = self.read_batch(position, header)
            record = find_record(batch, header, timestamp_ms, start_offset)
            if record is not None:
                return TimestampAndOffset(*record, header.partition_leader_epoch)
        return None

    def find_offset_of_largest_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the segment's largest timestamp; None if there is none."""
        largest = self.largest_timestamp
        if largest.timestamp_ms < 0:
            return None
        span = self.find_batch(largest.offset)
        if span is None:
            return None
        _, header = next(scan_headers(self._log_file(), span.position, span.end_position))
        batch = self.read_batch(span.position, header)
        record = find_record(batch, header, largest.timestamp_ms, header.base_offset)
        return record and TimestampAndOffset(*record, header.partition_leader_epoch)

    def read_next_offset(self) -> Offset:
        """The offset after the last batch, searched from the last index entry on."""
        position = last_offset_index_entry(self._offset_index_bytes(), self.base_offset).position
        next_offset = self.base_offset
        for _, header in scan_headers(self._log_file(), position, self.size_in_bytes):
            next_offset = header.next_offset
        return next_offset

    def read_headers(self, start_offset: Offset) -> Iterator[tuple[Position, BatchHeader]]:
        """Position and header of each batch that ends at `start_offset` or above."""
        first = self.find_batch(start_offset)
        if first is not None:
            yield from scan_headers(self._log_file(), first.position, self.size_in_bytes)

    def read_bytes(self, position: Position, size: int) -> bytes:
        return self._log_file().read_at(position, size)

    def read_batch(self, position: Position, header: BatchHeader) -> bytes:
        return self.read_bytes(position, header.size_in_bytes)

    def scan_sound(self, *, verify_crc: bool = True) -> Iterator[SoundBatches]:
        """Scan the whole file, for recovery (`scan_sound_batches`)."""
        return scan_sound_batches(self._log_file(), self.size_in_bytes, verify_crc=verify_crc)

    def aborted_transactions(self) -> list[AbortedTransaction]:
        """The entries of the transaction index; empty without a file."""
        if self._aborted is not None:
            return self._aborted
        return read_transaction_index(self.transaction_index, self.base_offset)

    @property
    def transaction_index(self) -> bytes:
        """The index file of a closed segment; empty without a file."""
        return self._files.read_index(TRANSACTION_INDEX_SUFFIX)

    def read_index(self, suffix: str) -> bytes:
        """The bytes of an index of a segment that is not active. They stay in memory for a while,
        also for `activate`."""
        return self._files.read_index(suffix)

    @property
    def has_transaction_index(self) -> bool:
        return self._fs.exists(self.transaction_index_path)

    # ---- changing and removing

    def truncate_to(self, offset: Offset, now_ms: TimestampMs) -> None:
        """Drop the batches that end at `offset` or above. Requires an active segment.

        A segment that is left empty is as new as one created at `now_ms`.
        """
        assert self._file is not None
        assert self._offset_index is not None
        assert self._time_index is not None
        span = self.find_batch(offset)
        if span is None:
            return
        base = self.base_offset
        # Indexes before the log: after a crash in between they end too early, which is harmless. An
        # index that points beyond the log would count as damage.
        entries = self._offset_index.entries
        self._offset_index.truncate(truncated_offset_index_size(entries, base, offset))
        entries = self._time_index.entries
        self._time_index.truncate(truncated_time_index_size(entries, base, offset))
        self._truncate_transaction_index(offset)
        self._newest = None
        self._file.truncate(span.position)
        # After the file: whoever reads into the new one reads what is left.
        self._read_ends = ReadEnds()
        self._is_dirty = True
        self.size_in_bytes = span.position
        self._bytes_since_index_entry = 0
        self._largest = self._largest_after_truncation()
        if span.position == 0:
            self._first_batch_timestamp_ms = None
            self.created_ms = now_ms

    def cut_file(self, size: int) -> None:
        """Drop the bytes from `size` on, but no index entries: recovery rebuilds the indexes."""
        assert self._file is not None
        self._file.truncate(size)
        self._is_dirty = True
        self.size_in_bytes = size

    def sync(self) -> None:
        """Make the segment durable, whether it is active, closed or already deleted.

        No effect if it was not written to: it is as durable as when it was opened.
        """
        if not self._is_dirty:
            return
        # Reset first: a write that happens meanwhile sets it again, for the next sync.
        self._is_dirty = False
        # Read once: a roll may set the fields to None meanwhile. It leaves the files open.
        file, offset_index, time_index = self._file, self._offset_index, self._time_index
        if file is not None and offset_index is not None and time_index is not None:
            file.sync()
            offset_index.sync()
            time_index.sync()
            paths = [self.transaction_index_path]
        else:
            paths = self._files.paths()
        for path in paths:
            self._fs.sync_file(path)

    def rename_to_deleted(self) -> None:
        """Mark the files for deletion. Readers continue: `.deleted` files are still readable."""
        if self.is_active:
            self.deactivate()
        self._files.rename(DELETED_SUFFIX)

    def rename_files(self, temporary_suffix: str) -> None:
        """Rename the files of a segment that is not in the log yet (`SegmentFiles.rename`)."""
        self._files.rename(temporary_suffix)

    @property
    def is_dirty(self) -> bool:
        return self._is_dirty

    def release_files(self) -> None:
        """Drop open files without writing. Running readers keep theirs."""
        self._offset_index = self._time_index = self._file = self._aborted = None
        self._files.forget()

    def delete_files(self) -> None:
        """Remove the files. Missing files are no error. Idempotent."""
        self._files.remove()

    # ---- files

    @property
    def log_path(self) -> Path:
        return self._files.path(LOG_SUFFIX)

    @property
    def offset_index_path(self) -> Path:
        return self._files.path(OFFSET_INDEX_SUFFIX)

    @property
    def time_index_path(self) -> Path:
        return self._files.path(TIME_INDEX_SUFFIX)

    @property
    def transaction_index_path(self) -> Path:
        return self._files.path(TRANSACTION_INDEX_SUFFIX)

    def _log_file(self) -> File:
        return self._file or self._files.open_log()

    def _offset_index_bytes(self) -> Buffer:
        index = self._offset_index
        return index.entries if index is not None else self._files.read_index(OFFSET_INDEX_SUFFIX)

    def _time_index_bytes(self) -> Buffer:
        index = self._time_index
        return index.entries if index is not None else self._files.read_index(TIME_INDEX_SUFFIX)

    def _append_time_index_entry(self) -> None:
        assert self._time_index is not None
        largest = self._largest or self.largest_timestamp
        if largest.timestamp_ms > last_timestamp_ms(self._time_index.entries):
            self._time_index.append(encode_time_index_entry(largest, self.base_offset))
            self._is_dirty = True

    def _truncate_transaction_index(self, offset: Offset) -> None:
        assert self._aborted is not None
        if self._aborted:
            size = truncated_transaction_index_size(self._aborted, offset)
            self._fs.open_writable(self.transaction_index_path).truncate(size)
            self._aborted = [entry for entry in self._aborted if entry.last_offset < offset]

    def _largest_after_truncation(self) -> TimestampOffset:
        """The index lacks the batches after its last entry, so these are scanned as well."""
        largest = last_time_index_entry(self._time_index_bytes(), self.base_offset)
        for _, header in self.read_headers(largest.offset):
            if header.max_timestamp > largest.timestamp_ms:
                largest = TimestampOffset(header.max_timestamp, header.last_offset)
        return largest
