"""Starts a follower's log behind the part of the leader's log that only the remote tier has.

    leader: -2 log start    -4 first local offset (or, KIP-1023, -6 first offset not uploaded)
               ├──── remote tier ────┼──────────── local log ───────────┤ -1 log end
                      segment ending at or above -4 minus 1 ─┤
    follower:                                                └─ begins here, with the leader
                                                                epochs and producers of the copy

Records of the remote part are not copied, since every replica reads them from the bucket. The
follower needs only its leader epochs and producer state, which are stored with the segment. The
remote metadata must be read up to that segment, so a look-up may have to be retried. Source: Kafka
TierStateMachine; KIP-405, KIP-1023.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from isotherm.broker.partitions.replication.leader_endpoint import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LeaderEndpoint,
    OffsetAndEpoch,
)
from isotherm.broker.partitions.replication.replica_fetcher import LogChange, Moved
from isotherm.config.replication import ReplicationConfig
from isotherm.errors import RemoteStorageError, RemoteStorageNotReadyError
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.history.lineage import checkpoint_of_copy
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from isotherm.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TopicIdPartition

logger = logging.getLogger(__name__)


class TierHistoryFollower:
    """Implements `TierFollower`. Thread-safe."""

    def __init__(
        self,
        log_manager: LogManager,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        config: Callable[[], ReplicationConfig],
    ) -> None:
        """`config` returns the present configuration: its key of KIP-1023 may change at any
        time.
        """
        self._log_manager = log_manager
        self._metadata = metadata
        self._storage = storage
        self._config = config

    def begins_behind_uploads(self, log: PartitionLog, leader_end_offset: Offset) -> bool:
        """True only for an empty log whose leader's log is not empty (KIP-1023)."""
        return (
            self._config().follower_fetch_last_tiered_offset_enable
            and log.remote_log_enabled
            and log.log_end_offset == 0
            and leader_end_offset != 0
        )

    def plan(
        self,
        place: TopicIdPartition,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        leader: LeaderEndpoint,
    ) -> LogChange:
        """Plan the restart of the log. Raises RemoteStorageError or RemoteStorageNotReadyError
        while this broker lacks metadata of the tier, and CorruptObjectError if the leader epochs of
        the copy do not match its segment."""
        if not log.remote_log_enabled:
            raise RemoteStorageError(f"log is not tiered here (yet) partition={place}")
        # All look-ups come before the first change: any of them may fail, and must leave the log as
        # it was.
        leader_end = leader.find_offset(place, leader_epoch, LATEST).offset
        start_offset = leader.find_offset(place, leader_epoch, EARLIEST).offset
        begin = self._find_begin(place, log, leader_epoch, leader, leader_end, start_offset)
        if begin.offset <= start_offset:
            return self._plan_without_history(log, start_offset, leader_end)
        # The segment is looked up by the offset before the local log, in the epoch of that offset.
        epoch = _epoch_before(place, begin, leader_epoch, leader)
        segment = self._segment(place, epoch, begin.offset - 1)
        # The segment may reach beyond the leader's local log start. Its producer snapshot is of its
        # own end, so the log starts there.
        next_offset = segment.end_offset_inclusive + 1
        epochs = self._leader_epochs(segment)
        producers = self._producers(segment)

        def change() -> Moved:
            logger.info(
                "log begins behind the remote tier partition=%s log_end_offset=%d next_offset=%d"
                " log_start_offset=%d segment=%s epochs=%d producers=%d",
                place,
                log.log_end_offset,
                next_offset,
                start_offset,
                segment.segment_id,
                len(epochs),
                len(producers),
            )
            self._log_manager.truncate_log_fully_and_start_at(
                log,
                next_offset,
                log_start_offset=start_offset,
                leader_epochs=epochs,
                producers=producers,
            )
            return Moved(max(0, leader_end - next_offset))

        return change

    def _plan_without_history(
        self, log: PartitionLog, start_offset: Offset, leader_end: Offset
    ) -> LogChange:
        """The plan if the tier has nothing: the leader's local log begins at its log start."""

        def change() -> Moved:
            self._log_manager.truncate_log_fully_and_start_at(log, start_offset)
            return Moved(max(0, leader_end - start_offset))

        return change

    def _find_begin(
        self,
        place: TopicIdPartition,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        leader: LeaderEndpoint,
        leader_end: Offset,
        start_offset: Offset,
    ) -> OffsetAndEpoch:
        """The offset at or above which the follower starts, with its leader epoch."""
        if self.begins_behind_uploads(log, leader_end):
            pending = leader.find_offset(place, leader_epoch, EARLIEST_PENDING_UPLOAD)
            if pending.offset != UNKNOWN_OFFSET:
                return pending
        local = leader.find_offset(place, leader_epoch, EARLIEST_LOCAL)
        # -1 says that nothing is uploaded only if the leader's local log begins at its log start.
        # Else the leader has not learned it yet, and a start at its local log would copy what the
        # tier has.
        if self.begins_behind_uploads(log, leader_end) and local.offset != start_offset:
            raise RemoteStorageNotReadyError(
                f"leader does not know yet what is uploaded partition={place}"
            )
        return local

    def _segment(
        self, place: TopicIdPartition, epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata:
        # A look-up before the metadata is read would miss the segment and report that there is
        # none.
        if not self._metadata.is_ready(place):
            raise RemoteStorageNotReadyError(f"remote metadata is being read partition={place}")
        segment = self._metadata.remote_log_segment_metadata(place, epoch, offset)
        if segment is None:
            raise RemoteStorageError(
                "no known remote segment ends where the leader's local log begins"
                f" partition={place} epoch={epoch} offset={offset}"
            )
        return segment

    def _leader_epochs(self, segment: RemoteLogSegmentMetadata) -> list[EpochEntry]:
        copied = bytes(self._storage.fetch_index(segment, IndexType.LEADER_EPOCH))
        # A checkpoint may have epochs that start behind the segment. They have no record in it.
        end = segment.end_offset_inclusive
        return [entry for entry in checkpoint_of_copy(segment, copied) if entry.start_offset <= end]

    def _producers(self, segment: RemoteLogSegmentMetadata) -> list[ProducerSnapshotEntry]:
        snapshot = self._storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        return read_producer_snapshot(bytes(snapshot))


def _epoch_before(
    place: TopicIdPartition,
    begin: OffsetAndEpoch,
    leader_epoch: LeaderEpoch,
    leader: LeaderEndpoint,
) -> LeaderEpoch:
    """The leader epoch of the offset before `begin`.

    An epoch without records lies in no segment.
    """
    if begin.leader_epoch <= 0:
        return begin.leader_epoch
    earlier = leader.find_epoch_end(place, leader_epoch, begin.leader_epoch - 1)
    # Segments are looked up by epoch, and the offset before `begin` may be of the epoch before, as
    # in Kafka's TierStateMachine.
    return earlier.epoch if earlier.end_offset > begin.offset - 1 else begin.leader_epoch
