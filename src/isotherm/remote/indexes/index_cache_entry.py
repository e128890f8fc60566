"""One segment's entry of the remote index cache: three indexes, and their files.

Files are named `<start offset>_<segment id>` plus `.index`, `.timeindex` or `.txnindex`: the
offset in plain decimal, the id as 22 characters, which may include `_`. Names and content are those
of Kafka's RemoteIndexCache, so that each can take over the other's directory.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.segment.file_names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from isotherm.segment.offset_index import (
    OffsetPosition,
    check_offset_index,
    last_offset_index_entry,
    lookup_offset,
    truncated_offset_index_size,
)
from isotherm.segment.time_index import (
    TimestampOffset,
    check_time_index,
    last_entries_before,
    last_time_index_entry,
    truncated_time_index_size,
)
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.types import Offset, TimestampMs, uuid_from_text, uuid_to_text

INDEX_SUFFIXES = {
    IndexType.OFFSET: OFFSET_INDEX_SUFFIX,
    IndexType.TIMESTAMP: TIME_INDEX_SUFFIX,
    IndexType.TRANSACTION: TRANSACTION_INDEX_SUFFIX,
}
"""The index types that are cached, in the order in which they are fetched."""

_CHECKS: dict[IndexType, Callable[[bytes, Offset], object]] = {
    IndexType.OFFSET: check_offset_index,
    IndexType.TIMESTAMP: check_time_index,
    IndexType.TRANSACTION: read_transaction_index,
}


@dataclass(frozen=True, slots=True)
class RemoteIndexEntry:
    """The indexes of one segment, in memory. It stays valid after its eviction."""

    base_offset: Offset
    offset_index: bytes
    time_index: bytes
    transaction_index_bytes: bytes

    @property
    def size(self) -> int:
        return len(self.offset_index) + len(self.time_index) + len(self.transaction_index_bytes)

    @property
    def transaction_index(self) -> list[AbortedTransaction]:
        """Decoded at each call; empty if the segment has no aborted transaction."""
        return read_transaction_index(self.transaction_index_bytes, self.base_offset)

    def lookup_offset(self, offset: Offset) -> OffsetPosition:
        """The index entry from which to read for `offset`: the last one at or below it, or
        (base offset, 0) if there is none. The batch at its position may begin below its offset."""
        return lookup_offset(self.offset_index, self.base_offset, offset)

    def entries_before(self, timestamp_ms: TimestampMs) -> list[TimestampOffset]:
        """The last two entries of the time index before `timestamp_ms`, or fewer."""
        return last_entries_before(self.time_index, self.base_offset, timestamp_ms, 2)

    def last_offset_named(self, end_offset: Offset) -> Offset:
        """The last offset below `end_offset` in the offset index or time index; the one before the
        base offset if there is none, as in the indexes of a segment without records."""
        base = self.base_offset
        offsets = truncated_offset_index_size(self.offset_index, base, end_offset)
        times = truncated_time_index_size(self.time_index, base, end_offset)
        # Both functions give the base offset for an index without entries.
        return max(
            last_offset_index_entry(self.offset_index[:offsets], base).offset if offsets else -1,
            last_time_index_entry(self.time_index[:times], base).offset if times else -1,
            base - 1,
        )


class IndexFiles(NamedTuple):
    """Names of one segment's cache files."""

    start_offset: Offset
    segment_uuid: uuid.UUID

    def name(self, index_type: IndexType) -> str:
        return f"{self.stem}{INDEX_SUFFIXES[index_type]}"

    def names(self) -> list[str]:
        return [self.name(index_type) for index_type in INDEX_SUFFIXES]

    @property
    def stem(self) -> str:
        return f"{self.start_offset}_{uuid_to_text(self.segment_uuid)}"


def index_files(metadata: RemoteLogSegmentMetadata) -> IndexFiles:
    return IndexFiles(metadata.start_offset, metadata.segment_id.id)


def parse_index_file_name(name: str) -> tuple[IndexFiles, IndexType] | None:
    """The entry's files and the kind of the index; None for a file that is not of the cache."""
    stem, dot, suffix = name.partition(".")
    kinds = [kind for kind, kind_suffix in INDEX_SUFFIXES.items() if kind_suffix == dot + suffix]
    offset, _, text = stem.partition("_")
    if not kinds or not (offset.isascii() and offset.isdigit()):
        return None
    try:
        return IndexFiles(int(offset), uuid_from_text(text)), kinds[0]
    except ValueError:
        return None


def check_index(index_type: IndexType, content: bytes, base_offset: Offset) -> None:
    """Raise CorruptIndexError if the content is not a valid index of this type."""
    _CHECKS[index_type](content, base_offset)
