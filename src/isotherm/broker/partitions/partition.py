"""A partition that this broker leads: its log, its leader epoch, and the waiters for appends.

With one replica every append is committed at once: `append` moves the high watermark to the log end.
Source: Kafka Partition.scala.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from isotherm.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    UnknownLeaderEpochError,
)
from isotherm.log.append import AppendInfo
from isotherm.log.partition_log import PartitionLog
from isotherm.record.validation import AppendOrigin
from isotherm.types import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    TimestampMs,
    TopicIdPartition,
    TopicPartition,
)

ACKS_ALL = -1
# With one replica, a record in this log is on all in-sync replicas.
ACKS_LEADER = 1
REPLICA_COUNT = 1


class Partition:
    """Thread-safe: clients append on the event loop, remote log metadata is appended by tasks.

    `appended_size` counts the appended bytes since this object was created. A waiting fetch compares
    two readings of it, and so learns how much was appended without reading the log.
    """

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        on_change: Callable[[TopicPartition], None],
    ) -> None:
        """`on_change` is called after each change of the log end, on the appending thread."""
        self.topic_id_partition = topic_id_partition
        self.topic_partition = topic_id_partition.topic_partition
        self.log = log
        self.leader_epoch = leader_epoch
        self.appended_size = 0
        self.is_gone = False
        self._on_change = on_change
        self._append_lock = threading.Lock()

    def make_leader(self) -> None:
        """Start this leader epoch at the log end. All records in the log are committed."""
        self.log.leader_epochs.assign(self.leader_epoch, self.log.log_end_offset)
        self.log.update_high_watermark(self.log.log_end_offset)

    def leave(self) -> None:
        """Complete waiting requests: the partition is deleted or goes offline."""
        self.is_gone = True
        self._on_change(self.topic_partition)

    def append(
        self,
        records: bytearray | memoryview,
        *,
        required_acks: int,
        now_ms: TimestampMs,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Append as leader. `records` is modified in place (offsets, epoch).

        A coordinator's records (origin COORDINATOR) have no sequences and may be markers. They are
        flushed on return if flush.messages requires it. For a client's records the caller flushes
        before it answers (`AppendInfo.needs_flush`).

        Raises what `PartitionLog.append_as_leader` raises, and NotEnoughReplicasError if acks=all
        requires more in-sync replicas than one.
        """
        min_insync_replicas = self.log.config.min_insync_replicas
        if required_acks == ACKS_ALL and min_insync_replicas > REPLICA_COUNT:
            raise NotEnoughReplicasError(
                f"fewer in-sync replicas than required partition={self.topic_partition}"
                f" in_sync={REPLICA_COUNT} min_insync_replicas={min_insync_replicas}"
            )
        with self._append_lock:
            info = self.log.append_as_leader(
                records, self.leader_epoch, now_ms=now_ms, origin=origin
            )
            self.log.update_high_watermark(self.log.log_end_offset)
            self.appended_size += len(records)
        # Outside the append lock: other appends must not wait for the disk.
        if info.needs_flush and origin is AppendOrigin.COORDINATOR:
            self.log.flush()
        self._on_change(self.topic_partition)
        return info

    def check_leader_epoch(self, requested: LeaderEpoch) -> None:
        """Fence a client with an older or newer leader epoch than this broker's.

        FencedLeaderEpochError makes the client refresh its metadata, UnknownLeaderEpochError makes
        it retry. A client that sends no epoch (-1) is not fenced.
        """
        if requested in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        kind = FencedLeaderEpochError if requested < self.leader_epoch else UnknownLeaderEpochError
        raise kind(
            f"leader epoch differs partition={self.topic_partition} requested={requested}"
            f" current={self.leader_epoch}"
        )
