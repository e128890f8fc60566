"""The one interface to the remote tier's metadata: KIP-405's RemoteLogMetadataManager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from isotherm.errors import RemoteStorageNotReadyError
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from isotherm.types import LeaderEpoch, Offset, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Int64Array: TypeAlias = npt.NDArray[np.int64]


class RemoteLogMetadataManager(Protocol):
    """Keeps the state of every remote segment of the partitions assigned to this broker.

    Thread-safe. Reads of a partition that is not assigned raise RemoteResourceNotFoundError; of
    one whose events are still being read, RemoteStorageNotReadyError (try again later).

    The futures of the three writers are done once the event is stored *and* visible to this
    manager's own reads.
    """

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> Future[None]:
        """Record that a copy starts; ValueError unless the state is COPY_SEGMENT_STARTED."""

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> Future[None]:
        """Record a later state; ValueError for COPY_SEGMENT_STARTED."""

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> Future[None]: ...

    def predecessor(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """The segment whose place in the metadata a start of this copy would take: an earlier
        attempt at it under the same broker leader epoch. Its objects are to be deleted before.
        None at feature level 0, where every attempt has a place of its own; a plug-in of which
        that holds may lack this method."""

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that holds `offset` within `leader_epoch`."""

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch
    ) -> Offset | None: ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None: ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Segments in every state but DELETE_SEGMENT_FINISHED, ordered by start offset."""

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> int:
        """Bytes of the `.log` files of one epoch's segments (KIP-852)."""

    def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None: ...

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None: ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether everything that was stored of an assigned partition is known here, be it that
        its deletion is finished. What decides on deletions asks this first."""

    def close(self) -> None: ...


@runtime_checkable
class ExclusiveMetadata(Protocol):
    """What a metadata manager may do besides: a decision and its record in one step."""

    def exclusively(self, partition: TopicIdPartition) -> AbstractContextManager[None]:
        """A block in which only this thread writes what is stored of the partition.

        On entry everything that was stored is known. So what the block looks up still holds when
        the block records something: compare and set. The block may write several events; it awaits
        their futures after its end. It may be entered again within itself.

        Raises what a read of the partition raises, and RemoteStorageNotReadyError while an earlier
        write is not read back.
        """

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment of an assigned partition, in whatever state."""


@runtime_checkable
class ReplacesSegments(Protocol):
    """What a metadata manager may do besides: let another segment answer in a finished one's place.
    Compaction in place (`isotherm compact`) is published only where it can."""

    def is_ready(self, partition: TopicIdPartition) -> bool: ...

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment of an assigned partition, in whatever state."""

    def is_partition_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether the deletion of a partition, which need not be assigned, is recorded as finished.
        Reads what is stored of it."""

    def replace_remote_log_segment(self, compacted: RemoteLogSegmentMetadata) -> Future[None]:
        """Let a compacted segment answer instead of the finished one with its key and offsets.

        RemoteResourceNotFoundError when there is none (any more), UnsupportedVersionError where
        no record takes the place of another. Idempotent.
        """


@dataclass(frozen=True, slots=True)
class MetadataTopicRecord:
    """One record of `__remote_log_metadata`. A None value is a tombstone (feature level 1 only)."""

    partition: int
    offset: Offset
    timestamp_ms: TimestampMs
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class NewMetadataRecord:
    """A record to be appended; see `MetadataTopicRecord`."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: TimestampMs


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """A run of records of one partition as columns of equal length, in the order of the topic.

    `next_offset` is where to read on; it is past what was read though no record may be left of it.
    """

    offset: Int64Array
    key: pa.BinaryArray
    value: pa.BinaryArray
    next_offset: Offset


class MetadataTopic(Protocol):
    """The log that carries metadata events: the one seam under the topic-based manager.

    Embedded, it is the broker's own log; against any Kafka cluster it is a client.
    """

    @property
    def partition_count(self) -> int: ...

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        """Append one record durably (acks=all); returns its offset."""

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        """Append records, at least one, in order and durably; returns the first one's offset. When
        it raises, some of them may have been appended, never one without those before it."""

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        """Records from `start_offset` on, at least one if there is any; empty at the end."""

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        """As `read`, without an object per record where that can be had. At the end of the topic
        there are no records and `next_offset` is `start_offset`."""

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        """(first offset still kept, offset after the last record)."""

    def close(self) -> None: ...


def check_ready(metadata: RemoteLogMetadataManager, partition: TopicIdPartition) -> None:
    """RemoteStorageNotReadyError, to try again, while the metadata of a partition is not known:
    not read yet, or let go of by a topic that was tiered a moment ago."""
    if not metadata.is_ready(partition):
        raise RemoteStorageNotReadyError(f"remote metadata is not ready partition={partition}")
