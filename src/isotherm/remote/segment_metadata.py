"""Metadata of a segment in the remote tier (KIP-405, KIP-917).

Names and rules are those of Kafka's package org.apache.kafka.server.log.remote.storage.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

from isotherm.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicIdPartition,
    uuid_to_text,
)


class RemoteLogSegmentState(enum.IntEnum):
    """Life of a remote segment; the numbers are the wire's.

        (none) -> COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED
                          |                                             ^       |
                          +---------------------------------------------+       v
                                                                  DELETE_SEGMENT_FINISHED

    A state may follow itself: events are replayed.
    """

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(enum.IntEnum):
    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class IndexType(enum.Enum):
    """Index kinds of a remote segment, in the order of KIP-405."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producer_snapshot"
    TRANSACTION = "transaction"
    LEADER_EPOCH = "leader_epoch"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """Identity of one upload. A retry is a new id, so two uploads never share objects."""

    topic_id_partition: TopicIdPartition
    id: uuid.UUID

    def __str__(self) -> str:
        return f"{self.topic_id_partition}/{uuid_to_text(self.id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """State of one remote segment.

    end_offset_inclusive is the next segment's base offset minus one, so it covers gaps at the
    segment's end. segment_leader_epochs maps each epoch to its first offset in this segment, in
    ascending order, and is never empty. custom_metadata is the storage manager's own (KIP-917);
    None and b"" are different on the wire. broker_leader_epoch is the epoch under which the upload
    was led (KIP-1266), not an epoch of its records; NO_LEADER_EPOCH where it is not recorded.
    """

    segment_id: RemoteLogSegmentId
    start_offset: Offset
    end_offset_inclusive: Offset
    max_timestamp_ms: TimestampMs
    broker_id: BrokerId
    event_timestamp_ms: TimestampMs
    segment_size_in_bytes: int
    segment_leader_epochs: Mapping[LeaderEpoch, Offset]
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False
    broker_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH

    def __post_init__(self) -> None:
        if self.start_offset < 0:
            raise ValueError(f"start offset is negative start_offset={self.start_offset}")
        if self.end_offset_inclusive < self.start_offset:
            raise ValueError(
                "end offset is below the start offset"
                f" start_offset={self.start_offset} end_offset={self.end_offset_inclusive}"
            )
        if not self.segment_leader_epochs:
            raise ValueError(f"a segment has at least one leader epoch segment={self.segment_id}")
        ascending = dict(sorted(self.segment_leader_epochs.items()))
        object.__setattr__(self, "segment_leader_epochs", MappingProxyType(ascending))

    def __reduce__(self) -> tuple[object, ...]:
        # A MappingProxyType cannot be pickled; Spark ships segments to its executors.
        return (_rebuild_segment_metadata, (self._fields(),))

    def _fields(self) -> dict[str, object]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["segment_leader_epochs"] = dict(self.segment_leader_epochs)
        return fields

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment_id.topic_id_partition

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> Self:
        """This segment after `update`: state, custom metadata (also to None), broker and time."""
        if update.segment_id != self.segment_id:
            raise ValueError(
                f"update names another segment update={update.segment_id} segment={self.segment_id}"
            )
        return replace(
            self,
            state=update.state,
            custom_metadata=update.custom_metadata,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
        )


def _rebuild_segment_metadata(fields: dict[str, object]) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """A later state of a segment. KIP-1266 adds the last two fields: the epoch of the leader that
    publishes the update, and the segment's end. They are unknown at feature level 0."""

    segment_id: RemoteLogSegmentId
    event_timestamp_ms: TimestampMs
    state: RemoteLogSegmentState
    broker_id: BrokerId
    custom_metadata: bytes | None = None
    broker_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    end_offset_inclusive: Offset = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadata:
    """The state of the deletion of a whole partition. The last two fields are as in a segment's
    update, with the end of the partition."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: TimestampMs
    broker_id: BrokerId
    broker_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    end_offset_inclusive: Offset = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegmentData:
    """The files of a rolled local segment, as handed to the storage manager.

    leader_epoch_checkpoint is the text of a `leader-epoch-checkpoint` file cut to this segment's
    end. transaction_index_path is None when the segment has no aborted transaction.
    """

    log_path: Path
    offset_index_path: Path
    time_index_path: Path
    transaction_index_path: Path | None
    producer_snapshot_path: Path
    leader_epoch_checkpoint: bytes
