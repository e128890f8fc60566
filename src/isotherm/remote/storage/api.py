"""The one interface to the remote tier's bytes: KIP-405's RemoteStorageManager (with KIP-917).

`isotherm.testing.conformance` holds the suite that every implementation passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from isotherm.remote.segment_metadata import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from isotherm.types import Position


class RemoteStorageManager(Protocol):
    """Copies, reads and deletes segments in a remote store.

    Every method is synchronous and may be called from several threads at once. All of them raise
    RemoteStorageError when the store fails (the caller tries again later),
    RemoteResourceNotFoundError when the store answers that the object is not there, and
    CorruptObjectError when what it holds cannot be what was copied.
    """

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy one segment; returns custom metadata to be kept with it (KIP-917), or None.

        Idempotent: copying again under the same id overwrites. When it raises, objects may be
        left behind; the caller deletes them under the same id.
        """

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        """Bytes of the `.log` file from `start_position`, in memory.

        An end beyond the segment is cut to the segment's end; None means the segment's end. The
        answer is never shorter than that: CorruptObjectError is raised instead. ValueError when
        start is negative, not below the segment's size, or beyond the end.
        """

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """A whole index. RemoteResourceNotFoundError for a transaction index never copied."""

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete everything of this segment. Idempotent: absent objects are no error."""

    def close(self) -> None:
        """Release connections. Idempotent."""


@runtime_checkable
class HasLocation(Protocol):
    """Optional for a storage manager: where its objects are, as DescribeLogDirs shows it. No secret
    may be in it. A manager without it is shown by the name of its class."""

    @property
    def location(self) -> str: ...


@runtime_checkable
class ListsSegments(Protocol):
    """Optional for a storage manager: name the segments that it has, without the metadata topic.

    The jobs that rebuild, sweep and scrub without metadata require it. The broker never calls it.
    """

    def list_log_segments(self) -> Iterable[RemoteLogSegmentMetadata]:
        """The metadata of every segment of which anything is stored, in any order.

        As `copy_log_segment_data` was called with it, plus the custom metadata that the call
        returned. The state says what is stored: COPY_SEGMENT_FINISHED for a copy that was
        completed, else COPY_SEGMENT_STARTED. Raises RemoteStorageError; a segment whose metadata
        cannot be read is an error too (CorruptObjectError), since it would look deleted.
        """


@runtime_checkable
class FillsBuffers(Protocol):
    """Optional for a storage manager: write the bytes of a range into a buffer while they arrive.

    Read-ahead then answers from the start of a range before its end has arrived, and reuses its
    memory: new memory costs as much as a copy. A manager without it is called by
    `fetch_log_segment`.
    """

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        """Fill `buffer`, which lies wholly within the `.log` file, from `start_position` on.

        `on_filled(count)` is called, in this thread, whenever the first `count` bytes are there,
        and at last with all of them; what it raises ends the fetch and goes through. Raises what
        `fetch_log_segment` raises; what was filled before is right all the same.
        """
