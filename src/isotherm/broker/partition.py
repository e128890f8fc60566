"""A topic partition on this broker, which leads it: its log, its epoch, and who is told of appends.

With one replica every append is committed at once: the high watermark follows the log end inside
`append`. Source: Kafka Partition.scala.
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
# One replica has all of it: a record is acknowledged when it is in this log.
ACKS_LEADER = 1
REPLICA_COUNT = 1


class Partition:
    """Thread-safe: clients append on the event loop, remote log metadata from task threads.

    `appended_size` counts the bytes appended since this object was made: two readings of it tell a
    waiting fetch how much came between them without reading the log.
    """

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        on_change: Callable[[TopicPartition], None],
    ) -> None:
        """`on_change` is called after every move of the log end, on the appending thread."""
        self.topic_id_partition = topic_id_partition
        self.topic_partition = topic_id_partition.topic_partition
        self.log = log
        self.leader_epoch = leader_epoch
        self.appended_size = 0
        self.is_gone = False
        self._on_change = on_change
        self._append_lock = threading.Lock()

    def make_leader(self) -> None:
        """Begin this leader epoch at the log end. Everything in the log is committed."""
        self.log.leader_epochs.assign(self.leader_epoch, self.log.log_end_offset)
        self.log.update_high_watermark(self.log.log_end_offset)

    def leave(self) -> None:
        """The partition is deleted or taken offline: whoever waits for it is told."""
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
        """Append as leader; `records` is changed in place (offsets, epoch).

        A coordinator's own records (origin COORDINATOR) carry no sequences, and may be markers;
        where flush.messages asks for it they are durable on return. A client's are flushed by
        whoever answers it (`AppendInfo.needs_flush`).

        Raises what `PartitionLog.append_as_leader` raises, and NotEnoughReplicasError when acks=all
        asks for more in-sync replicas than there can be.
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
        if info.needs_flush and origin is AppendOrigin.COORDINATOR:
            self.log.flush()
        self._on_change(self.topic_partition)
        return info

    def check_leader_epoch(self, requested: LeaderEpoch) -> None:
        """Fence a client that knows an older epoch, or a newer one than this broker does.

        FencedLeaderEpochError: the client refreshes its metadata; UnknownLeaderEpochError: it
        tries again. A client that sends no epoch (-1) is not fenced.
        """
        if requested in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        kind = FencedLeaderEpochError if requested < self.leader_epoch else UnknownLeaderEpochError
        raise kind(
            f"leader epoch differs partition={self.topic_partition} requested={requested}"
            f" current={self.leader_epoch}"
        )
