"""Checks whether the files of a flushed segment are still as they were written.

A file that was truncated, overwritten or lost shows it at its end. So only the ends are read: the
last entry of each index, and the batches from there to the end of the log. Damage in the middle is
detected by the CRC of each batch, which every reader checks.

If index and log disagree, the log is read in full and decides. A valid log gets new indexes. A log
that is damaged, or ends before its indexes do, is an error.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import NamedTuple

from isotherm.errors import CorruptDataError, CorruptIndexError, CorruptLogError
from isotherm.log.batch_scan import scan_headers
from isotherm.log.fs import FileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.offline_logs import GIVE_UP_HINT
from isotherm.log.segment_split import overflows
from isotherm.segment.file_names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file_name,
)
from isotherm.segment.offset_index import (
    OFFSET_INDEX_ENTRY_SIZE,
    last_offset_index_entry,
    read_offset_index,
)
from isotherm.segment.time_index import (
    TIME_INDEX_ENTRY_SIZE,
    last_time_index_entry,
    read_time_index,
)
from isotherm.types import NO_TIMESTAMP, Offset

WHOLE_INDEX_SIZE_MAX = 4096
"""Largest index that is read as a whole, since the last segment's is needed next: `activate`."""


class CheckedSegment(NamedTuple):
    next_offset: Offset
    """The offset after the last batch."""
    index_fault: str
    """Why the indexes must be rebuilt; empty if they are valid."""


def check_segment(
    fs: FileSystem,
    segment: LogSegment,
    following_base_offset: Offset | None,
    known_end_offset: Offset | None,
) -> CheckedSegment:
    """Check a segment. Raises CorruptLogError with the file and the position of the damage.

    `following_base_offset` is None for the last segment. `known_end_offset` is an offset that
    the segment is known to reach, if there is one.
    """
    try:
        next_offset, fault = _check_end(fs, segment), ""
        if overflows(segment.base_offset, next_offset):
            # It is about to be split, by what its batches say.
            next_offset = _read_in_full(segment)
    except CorruptDataError as error:
        next_offset, fault = _read_in_full(segment), str(error)
        if known_end_offset is None or next_offset < known_end_offset:
            _check_reaches_indexes(fs, segment, next_offset, following_base_offset)
    if following_base_offset is not None and next_offset > following_base_offset:
        raise CorruptLogError(
            f"log overlaps the segment after it file={segment.log_path} next_offset={next_offset}"
            f" following_base_offset={following_base_offset}",
            GIVE_UP_HINT,
        )
    return CheckedSegment(next_offset, fault)


def _check_end(fs: FileSystem, segment: LogSegment) -> Offset:
    """The offset after the last batch. Raises CorruptDataError if log and indexes disagree."""
    base_offset = segment.base_offset
    entry = _index_end(fs, segment, OFFSET_INDEX_SUFFIX, OFFSET_INDEX_ENTRY_SIZE)
    indexed = last_offset_index_entry(entry, base_offset)
    if not 0 <= indexed.position <= segment.size_in_bytes:
        raise CorruptIndexError(
            f"offset index has a position beyond the log position={indexed.position}"
            f" size={segment.size_in_bytes}"
        )
    next_offset, end, largest_ms = base_offset, indexed.position, NO_TIMESTAMP
    with closing(fs.open_readable(segment.log_path)) as log:
        for position, header in scan_headers(log, indexed.position, segment.size_in_bytes):
            if position == indexed.position > 0 and header.last_offset != indexed.offset:
                raise CorruptIndexError(
                    "offset index names another batch"
                    f" offset={indexed.offset} found={header.last_offset}"
                )
            next_offset, end = header.next_offset, position + header.size_in_bytes
            largest_ms = max(largest_ms, header.max_timestamp)
    if end != segment.size_in_bytes or (indexed.position > 0 and next_offset == base_offset):
        raise CorruptIndexError(
            f"last batch does not end at the end of the log position={end}"
            f" size={segment.size_in_bytes}"
        )
    entry = _index_end(fs, segment, TIME_INDEX_SUFFIX, TIME_INDEX_ENTRY_SIZE)
    youngest = last_time_index_entry(entry, base_offset)
    # The final entry of a closed segment has its largest timestamp: this one is not the final.
    if youngest.timestamp_ms < largest_ms:
        raise CorruptIndexError(
            f"time index ends too early timestamp_ms={youngest.timestamp_ms}"
            f" largest_timestamp_ms={largest_ms}"
        )
    if youngest.timestamp_ms >= 0 and not base_offset <= youngest.offset < next_offset:
        raise CorruptIndexError(
            f"time index has an offset beyond the log offset={youngest.offset}"
            f" next_offset={next_offset}"
        )
    return next_offset


def _index_end(fs: FileSystem, segment: LogSegment, suffix: str, entry_size: int) -> bytes:
    """The last entry; the whole file if that may be padding. Raises CorruptIndexError for a partial
    entry, or a missing file."""
    path = segment.directory / segment_file_name(segment.base_offset, suffix)
    try:
        size = fs.file_size(path)
    except FileNotFoundError as error:
        raise CorruptIndexError(f"index is missing file={path}") from error
    if size % entry_size != 0:
        raise CorruptIndexError(f"index ends within an entry file={path} size={size}")
    if size <= WHOLE_INDEX_SIZE_MAX:
        content = segment.read_index(suffix)
        entry = content[max(0, size - entry_size) : size]
        return entry if any(entry) or not size else content
    with closing(fs.open_readable(path)) as file:
        entry = file.read_at(size - entry_size, entry_size)
    return entry if any(entry) else fs.read_bytes(path)


def _read_in_full(segment: LogSegment) -> Offset:
    next_offset, end_position = segment.base_offset, 0
    try:
        for sound in segment.scan_sound():
            rising = sound.before(sound.starts_below(next_offset))
            if len(rising.batches):
                next_offset, end_position = int(rising.next_offsets[-1]), rising.end_position
            if len(rising.batches) < len(sound.batches):
                break
        reason = "offsets do not rise"
    except CorruptDataError as error:
        reason = str(error)
    if end_position < segment.size_in_bytes:
        raise CorruptLogError(
            f"flushed records are damaged file={segment.log_path} position={end_position}"
            f" first_lost_offset={next_offset} reason='{reason}'",
            GIVE_UP_HINT,
        )
    return next_offset


def _check_reaches_indexes(
    fs: FileSystem,
    segment: LogSegment,
    next_offset: Offset,
    following_base_offset: Offset | None,
) -> None:
    """A log truncated between two batches is valid by itself: only its indexes show the loss."""
    base_offset, ends = segment.base_offset, [next_offset - 1]
    # A damaged or missing index shows nothing.
    with suppress(CorruptIndexError, FileNotFoundError):
        offset_index = read_offset_index(fs.read_bytes(segment.offset_index_path), base_offset)
        ends += [entry.offset for entry in offset_index[-1:]]
    with suppress(CorruptIndexError, FileNotFoundError):
        time_index = read_time_index(fs.read_bytes(segment.time_index_path), base_offset)
        ends += [entry.offset for entry in time_index[-1:]]
    if following_base_offset is not None:
        ends = [end for end in ends if end < following_base_offset]
    if max(ends) >= next_offset:
        raise CorruptLogError(
            f"flushed records are missing file={segment.log_path} first_lost_offset={next_offset}"
            f" indexed_offset={max(ends)}",
            GIVE_UP_HINT,
        )
