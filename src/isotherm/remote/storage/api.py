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
    RemoteStorageError if the store fails (the caller tries again later),
    RemoteResourceNotFoundError if the store answers that the object does not exist, and
    CorruptObjectError if the stored object differs from the copied file. Positions and sizes are
    bytes of the `.log` file. Source: KIP-405.
    """

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy one segment; returns custom metadata to be kept with it (KIP-917), or None.

        The objects are durable on return: the caller may then delete the local files. They do not
        change during the call. Idempotent: copying again under the same id overwrites. An error may
        leave objects behind, which the caller deletes under the same id.
        """

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        """Bytes of the `.log` file from `start_position`, in memory.

        An end beyond the segment is cut to the segment's end; None means the segment's end. Raises
        CorruptObjectError rather than return fewer bytes, and ValueError if start is negative, not
        below the segment's size, or beyond the end.
        """

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """A whole index, in Kafka's format of its file; the producer snapshot and the leader epochs
        count as indexes. Raises RemoteResourceNotFoundError for a transaction index that was not
        copied: the segment has no aborted transactions."""

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of this segment. Idempotent: absent objects are no error. After an
        error some may be left, and the caller calls again."""

    def close(self) -> None:
        """Release connections. Idempotent."""


@runtime_checkable
class HasLocation(Protocol):
    """Optional for a storage manager: the place of its objects, which DescribeLogDirs shows. It
    must not contain a secret. A manager without it is shown by the name of its class."""

    @property
    def location(self) -> str: ...


@runtime_checkable
class ListsSegments(Protocol):
    """Optional for a storage manager: list its segments without the metadata topic.

    The jobs that rebuild, sweep and scrub without metadata require it. The broker never calls it.
    """

    def list_log_segments(self) -> Iterable[RemoteLogSegmentMetadata]:
        """The metadata of every segment with at least one stored object, in any order.

        The metadata are those of the call of `copy_log_segment_data`, plus the custom metadata that
        it returned. The state is COPY_SEGMENT_FINISHED for a complete copy, else
        COPY_SEGMENT_STARTED. Raises RemoteStorageError, and CorruptObjectError for a segment whose
        metadata cannot be read: without the error it would look deleted.
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
        """Fill `buffer` with the bytes from `start_position` on, all within the `.log` file.

        Calls `on_filled(count)` in this thread whenever the first `count` bytes have arrived, and
        finally with all of them. An error of `on_filled` ends the fetch and is raised unchanged.
        Raises what `fetch_log_segment` raises; the bytes filled before are still correct.
        """
