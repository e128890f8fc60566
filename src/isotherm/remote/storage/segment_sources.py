"""The local files of a segment as sources of an upload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from isotherm.errors import RemoteStorageError
from isotherm.remote.segment_metadata import IndexType, LogSegmentData

BLOCK_SIZE = 1024 * 1024
"""Bytes read from a file at once: few compared with an upload's buffers, many compared with the
cost of a call."""


@dataclass(frozen=True, slots=True)
class Source:
    """Content to upload, a local file or bytes, and its size when the copy began."""

    content: Path | bytes
    size: int

    def blocks(self, block_size: int = BLOCK_SIZE) -> Iterator[bytes]:
        """The content in blocks of `block_size`, the last one perhaps shorter."""
        if isinstance(self.content, bytes):
            for start in range(0, self.size, block_size):
                yield self.content[start : start + block_size]
            return
        try:
            with self.content.open("rb") as file:
                while block := file.read(block_size):
                    yield block
        except OSError as error:
            raise unreadable(self.content) from error


@dataclass(frozen=True, slots=True)
class SegmentSources:
    """A segment's content. The segment has no index of a type that is absent from `indexes`."""

    log: Source
    indexes: Mapping[IndexType, Source]


def segment_sources(data: LogSegmentData) -> SegmentSources:
    """The sources of a segment's files, with their present sizes.

    Raises RemoteStorageError for a file that cannot be read: the caller tries again later, and then
    finds out whether the segment was deleted meanwhile.
    """
    checkpoint = data.leader_epoch_checkpoint
    indexes = {
        IndexType.OFFSET: _file(data.offset_index_path),
        IndexType.TIMESTAMP: _file(data.time_index_path),
        IndexType.PRODUCER_SNAPSHOT: _file(data.producer_snapshot_path),
        IndexType.LEADER_EPOCH: Source(checkpoint, len(checkpoint)),
    }
    if data.transaction_index_path is not None:
        indexes[IndexType.TRANSACTION] = _file(data.transaction_index_path)
    return SegmentSources(_file(data.log_path), indexes)


def chain_blocks(sources: Iterable[Source]) -> Iterator[bytes]:
    """The contents of several sources, one after the other."""
    for source in sources:
        yield from source.blocks()


def unreadable(path: Path) -> RemoteStorageError:
    return RemoteStorageError(f"local segment file cannot be read path={path}")


def _file(path: Path) -> Source:
    try:
        return Source(path, path.stat().st_size)
    except OSError as error:
        raise unreadable(path) from error
