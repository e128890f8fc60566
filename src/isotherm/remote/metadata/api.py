"""The one interface to the remote tier's metadata: KIP-405's RemoteLogMetadataManager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    manager's own reads. It fails with a RetriableError if the outcome is unknown, as after a
    time-out: the caller then decides anew from what is stored. The writers raise
    RemoteResourceNotFoundError at once for a partition that is not assigned.

    Sizes are in bytes, times in milliseconds since the epoch. Source: KIP-405, KIP-852, KIP-1266.
    """

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> Future[None]:
        """Record that a copy starts, before any of its objects is stored: what a crash leaves of it
        can then be found and deleted. Raises ValueError unless the state is COPY_SEGMENT_STARTED,
        and SegmentKeyTakenError at feature level 1 for an earlier copy in its place: the caller
        deletes that one first."""

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> Future[None]:
        """Record a later state of an added segment. Raises ValueError for COPY_SEGMENT_STARTED, and
        at feature level 1 RemoteResourceNotFoundError for the end of a copy whose segment was
        deleted meanwhile: the caller deletes its objects."""

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> Future[None]:
        """Record a step of the deletion of a whole partition. A state before the recorded one
        changes nothing. After DELETE_PARTITION_FINISHED the partition has no segments."""

    def predecessor(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """The segment that the start of this copy replaces in the metadata: an earlier attempt
        under the same broker leader epoch. The caller deletes its objects first. None at feature
        level 0, where attempts do not replace each other; a plug-in that works like level 0 may
        lack this method."""

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that holds `offset` within `leader_epoch`; None if there is none."""

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch
    ) -> Offset | None:
        """The highest offset (inclusive) of any finished segment in the epoch. It stays when the
        segments are deleted. None if no copy was finished in it: the caller asks for the
        epoch before."""

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of the epoch that ends at `offset` or later and has a
        transaction index (KIP-1058); None if there is none."""

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Segments in every state but DELETE_SEGMENT_FINISHED, ordered by start offset; of all
        epochs, or of one. The list is the caller's."""

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> int:
        """Bytes of the `.log` files of the segments in `list_remote_log_segments` of one epoch
        (KIP-852). A segment that spans two epochs counts in both."""

    def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Assign the partitions that this broker now leads or follows. Idempotent. Returns without
        waiting for their events: `is_ready` tells when these are read."""

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Unassign partitions of which this broker has no replica any more. Idempotent. Writes of
        theirs that are under way may fail with RemoteResourceNotFoundError. Nothing stored is
        deleted."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether this manager has read the whole stored state of an assigned partition, which may
        be a finished deletion. Callers check this before any decision on deletions. False for a
        partition that is not assigned. Returns at once."""

    def close(self) -> None:
        """Release threads and connections. Writes that are under way fail. Idempotent."""


@runtime_checkable
class ExclusiveMetadata(Protocol):
    """Optional: a decision and its record in one step."""

    def exclusively(self, partition: TopicIdPartition) -> AbstractContextManager[None]:
        """A block in which only this thread writes metadata of the partition. Reentrant.

        On entry all stored events are applied. So a look-up in the block is still valid when the
        block records an event: compare and set. The block may write several events; the caller
        awaits their futures after it.

        Raises what a read of the partition raises, and RemoteStorageNotReadyError while an earlier
        write is not read back.
        """

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment of an assigned partition, in any state."""


@runtime_checkable
class TellsChanges(Protocol):
    """Optional: tells whose metadata has changed. The tasks of an idle partition sleep then; with
    other managers they look for changes at each interval."""

    def tell_changes(self, listener: Callable[[Iterable[TopicIdPartition]], None]) -> None:
        """Call `listener` with the assigned partitions whose stored events were applied, after
        reads show them. It may be called in any thread, and does not wait. Call this once, before
        a partition is assigned."""


@runtime_checkable
class ReplacesSegments(Protocol):
    """Optional: replace a finished segment by another one. Only such a manager can publish a
    compaction in place (`isotherm pipeline compact`)."""

    def is_ready(self, partition: TopicIdPartition) -> bool: ...

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment of an assigned partition, in any state."""

    def is_partition_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether the deletion of a partition (assigned or not) is recorded as finished. Reads its
        stored events."""

    def replace_remote_log_segment(self, compacted: RemoteLogSegmentMetadata) -> Future[None]:
        """Replace the finished segment with the same key and offsets by a compacted one.
        Idempotent. Raises RemoteResourceNotFoundError if there is none (any more),
        UnsupportedVersionError if the metadata is not keyed.
        """


@dataclass(frozen=True, slots=True)
class MetadataTopicRecord:
    """One record of `__remote_log_metadata`. A None value is a tombstone (feature level 1 only).

    Audited events have `decided_at`: the end of the metadata partition when the event was decided.
    """

    partition: int
    offset: Offset
    timestamp_ms: TimestampMs
    key: bytes | None
    value: bytes | None
    decided_at: Offset | None = None


@dataclass(frozen=True, slots=True)
class NewMetadataRecord:
    """A record to be appended; see `MetadataTopicRecord`."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: TimestampMs
    decided_at: Offset | None = None


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """A run of records of one partition as columns of equal length, in the order of the topic.

    The next read starts at `next_offset`. It lies past all that was read, even if compaction left
    no record there.
    """

    offset: Int64Array
    key: pa.BinaryArray
    value: pa.BinaryArray
    next_offset: Offset


class MetadataTopic(Protocol):
    """The log of metadata events, under the topic-based manager.

    Embedded, it is the broker's own log; against any Kafka cluster it is a client.
    """

    @property
    def partition_count(self) -> int: ...

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        """Append one record durably (acks=all); returns its offset."""

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        """Append one or more records, in order and durably; returns the first offset. After an
        error a prefix of them may have been appended."""

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        """Records from `start_offset` on, at least one if there is any; empty at the end."""

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        """Same as `read`, if possible without an object per record. At the end of the topic there
        are no records and `next_offset` is `start_offset`."""

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        """(first offset still kept, offset after the last record)."""

    def is_current(self, partition: int) -> bool:
        """Whether `read` now returns everything that any process appended before this call. False
        for a replica that is behind its leader; the reader tries again later."""

    def close(self) -> None: ...


@runtime_checkable
class ConditionalMetadataTopic(MetadataTopic, Protocol):
    """A metadata topic that several processes may write to at feature level 1
    (docs/decisions/0103)."""

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        """Append records durably at `end_offset`, all or none.

        Raises LogEndMovedError, with nothing appended, if the partition does not end there. After
        any other error the outcome is unknown: the records may still be appended later, as long as
        the partition ends there.
        """

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        """Whether `read` returns everything below `end_offset`, now and later."""


@runtime_checkable
class EndOffsetsTopic(MetadataTopic, Protocol):
    """A metadata topic that costs a request for each read, but one for the ends of many
    partitions."""

    def end_offsets(self, partitions: Collection[int]) -> Mapping[int, Offset]:
        """The offset after the last record of each partition, but for those that cannot be read
        now: a read of such a partition raises the reason."""


def check_ready(metadata: RemoteLogMetadataManager, partition: TopicIdPartition) -> None:
    """Raise RemoteStorageNotReadyError (try again) while the metadata of a partition is unknown:
    not read yet, or dropped because the topic is no longer tiered."""
    if not metadata.is_ready(partition):
        raise RemoteStorageNotReadyError(f"remote metadata is not ready partition={partition}")
