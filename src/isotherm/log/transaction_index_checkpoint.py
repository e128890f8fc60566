"""A checkpoint of the transaction indexes of a partition's closed segments.

A transaction index has no CRC, and a segment without aborts has no index. So only the markers in
the log show that an index was lost, or truncated between two entries.
`transaction-index-checkpoint` has one line for each closed segment whose index has entries: `<base
offset> <size> <crc32c>`. The log stores it before its recovery point passes a segment, and when it
closes. Segments above the recovery point need no line: their indexes are rebuilt after an unclean
stop.

The file is Isotherm's own. Kafka's loader ignores unknown names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from isotherm.errors import CorruptCheckpointError
from isotherm.log.fs import FileSystem, read_if_exists
from isotherm.log.log_segment import LogSegment
from isotherm.record.crc32c import crc32c_of_array
from isotherm.segment.checkpoint_text import (
    check_not_cut,
    checkpoint_integers,
    encode_checkpoint_entries,
    read_checkpoint_entries,
)
from isotherm.segment.file_names import TRANSACTION_INDEX_CHECKPOINT_NAME
from isotherm.segment.offset_index import Buffer
from isotherm.types import Offset

_logger = logging.getLogger(__name__)


class IndexContent(NamedTuple):
    size: int
    crc: int


_EMPTY = IndexContent(0, 0)


class TransactionIndexCheckpoint:
    """The log that owns it serializes `follow`. `store` may be called from any thread."""

    def __init__(self, fs: FileSystem, directory: Path, *, is_stored: bool = True) -> None:
        """Reads the file, unless it is known to be missing. A damaged file counts as lost: the
        indexes are then trusted as found."""
        self._fs = fs
        self._path = directory / TRANSACTION_INDEX_CHECKPOINT_NAME
        self._stored = _load(fs, self._path) if is_stored else {}
        self._contents: Mapping[LogSegment, IndexContent] = {}
        self._store_lock = threading.Lock()

    def fault(self, base_offset: Offset, index: Buffer) -> str:
        """Why a closed segment's index differs from the stored one; empty if it does not."""
        stored = self._stored.get(base_offset)
        content = _content_of(index)
        if stored is None or stored == content:
            return ""
        return (
            f"transaction index is not as it was written size={content.size}"
            f" expected_size={stored.size} crc={content.crc} expected_crc={stored.crc}"
        )

    def begin(self, closed: Iterable[LogSegment], with_index: Iterable[Offset]) -> None:
        """Like `follow`, for a loaded log. `with_index` are the segments with an index file."""
        indexed = set(with_index)
        self._contents = {
            segment: _content_of(segment.transaction_index)
            if segment.base_offset in indexed
            else _EMPTY
            for segment in closed
        }

    def follow(self, closed: Iterable[LogSegment]) -> None:
        """Apply the present set of closed segments. Indexes of known ones are not read again."""
        contents = self._contents
        self._contents = {
            # By segment, not by base offset: compaction gives that to another one.
            segment: contents.get(segment) or _content_of(segment.transaction_index)
            for segment in closed
        }

    def read_again(self, segment: LogSegment) -> None:
        """Read the index of a closed segment again after it was rebuilt."""
        content = _content_of(segment.transaction_index)
        self._contents = {
            old_segment: content if old_segment is segment else old_content
            for old_segment, old_content in self._contents.items()
        }

    def store(self) -> None:
        """Write the file durably if its content has changed."""
        with self._store_lock:
            # `follow` replaces the mapping and never changes it, so reading it needs no other lock.
            contents = {
                segment.base_offset: content
                for segment, content in self._contents.items()
                if content != _EMPTY
            }
            if contents != self._stored:
                lines = [(base, *content) for base, content in sorted(contents.items())]
                self._fs.write_atomically(self._path, encode_checkpoint_entries(lines))
                self._stored = contents


def _content_of(index: Buffer) -> IndexContent:
    return IndexContent(len(index), crc32c_of_array(bytes(index))) if index else _EMPTY


def _load(fs: FileSystem, path: Path) -> dict[Offset, IndexContent]:
    data = read_if_exists(fs, path)
    if data is None:
        return {}
    try:
        check_not_cut(data)
        lines = [
            checkpoint_integers(entry) for entry in read_checkpoint_entries(data, field_count=3)
        ]
    except CorruptCheckpointError as error:
        _logger.warning("checkpoint is damaged and rebuilt file=%s: %s", path, error)
        return {}
    return {base_offset: IndexContent(size, crc) for base_offset, size, crc in lines}
