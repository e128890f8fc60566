"""A partition that this broker leads or follows: its log, its role, and its replicas on other
brokers.

    make_leader ──► append ──► log end ──────────► followers' fetches
                                  │                     │ update_follower
                                  ▼                     ▼
                               high watermark = lowest log end of the in-sync replicas
                                  │
                                  └──► consumers' fetches, producers with acks=all

If this broker has the only replica, an append is committed at once: `append` moves the high
watermark to the log end. Otherwise `InSyncReplicas` decides. What waits for a change is in `waits`.
Source: Kafka Partition.scala. Reasons: docs/decisions/0102.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import NO_LEADER, PartitionImage
from isotherm.broker.partitions.partition_waits import PartitionWaits, WaitingRequests
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.partitions.replication.in_sync_replicas import (
    AnswerEffect,
    InSyncReplicas,
    IsrAnswer,
    IsrChange,
)
from isotherm.broker.partitions.replication.replica_state import ReplicaState, is_stale_fetch
from isotherm.broker.partitions.uncommitted_sizes import UncommittedSizes
from isotherm.errors import (
    FencedLeaderEpochError,
    LogEndMovedError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from isotherm.log.append import AppendInfo
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.code_names import code_name
from isotherm.record.batch_header import BatchHeader
from isotherm.record.validation import AppendOrigin, CheckedBatch
from isotherm.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicIdPartition,
)

logger = logging.getLogger(__name__)

ACKS_ALL = -1
ACKS_LEADER = 1


class Partition:
    """Thread-safe. Requests append on the event loop, background tasks on their own threads. The
    control thread changes the role. Answers of the controller come on the thread of
    `AlterPartitionManager`.

    - `appended_size`: the bytes appended since this object was created; `visible_size`: those of
      them below the high watermark. A waiting fetch compares two readings, and so learns how much
      it could read without reading the log.
    - `is_alone`: this broker leads the partition and has its only replica.
    - `term`: grows when this broker stops leading. It must not acknowledge records of an earlier
      term, since another leader may have truncated them.
    - `image`: the metadata image that was last applied. The ISR may be newer.
    - `goes_on_at`: see ClusterView. With `is_passed_on` the replica fetches the records behind this
      log from there, otherwise the client does.
    """

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        log: PartitionLog,
        cluster: ClusterView,
        waiting: WaitingRequests,
    ) -> None:
        """The partition is neither leader nor follower before `make_leader` or `make_follower`.

        `waiting` is notified of this partition and of each watcher after a change of the log end,
        the high watermark, a follower's log start or the role. The calls come on the thread of the
        change, without the partition's lock.
        """
        self.topic_id_partition = topic_id_partition
        self.topic_partition = topic_id_partition.topic_partition
        self.log = log
        self.leader: BrokerId = NO_LEADER
        self.leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self.is_leader = False
        self.is_alone = False
        self.is_gone = False
        # From the start: an offset behind the log must never seem to be out of range.
        self.goes_on_at = cluster.goes_on_at(topic_id_partition)
        self.is_passed_on = cluster.passes_tail_on
        self.image: PartitionImage | None = None
        self.term = 0
        self.appended_size = 0
        self.visible_size = 0
        self._uncommitted = UncommittedSizes()
        self._counted_to: Offset = log.high_watermark
        self._cluster = cluster
        self._replicas = InSyncReplicas(cluster.broker_id)
        self.waits = PartitionWaits(self.topic_partition, waiting, self._is_committed)
        log.on_moved = self.waits.mark
        # Taken before the log's lock. `on_moved` is called with the latter, so `mark` takes no
        # lock of the partition.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"Partition({self.topic_partition}, leader={self.leader}, epoch={self.leader_epoch},"
            f" partition_epoch={self.partition_epoch}, isr={self.isr})"
        )

    @property
    def partition_epoch(self) -> int:
        return self._replicas.partition_epoch

    @property
    def epoch_start_offset(self) -> Offset:
        """The start offset of this broker's current leader epoch; -1 if it does not lead."""
        return self._replicas.epoch_start_offset if self.is_leader else UNKNOWN_OFFSET

    # ---- leader and follower

    def make_leader(self, image: PartitionImage) -> bool:
        """Lead the partition, or take over a new set of followers. An `image` older than the known
        state is ignored. Returns whether this broker has begun to lead.

        A new epoch is recorded at the log end before its first append. A follower that has records
        of later epochs than this log then truncates to the right offset.
        """
        with self._lock:
            # An equal epoch is applied: an answer of the controller may have brought its ISR here
            # before the image came.
            if image.partition_epoch < self._replicas.partition_epoch:
                return False
            is_new_leader, is_first = not self.is_leader, self._replicas.partition_epoch < 0
            # Another broker may have led in a leader epoch that was skipped, and followers may have
            # truncated their logs for it, so their offsets prove nothing any more.
            is_interrupted = is_new_leader or image.leader_epoch > self.leader_epoch + 1
            end = self.log.log_end_offset
            if image.leader_epoch > self.leader_epoch:
                self.log.begin_epoch(image.leader_epoch)
                self.leader_epoch = image.leader_epoch
            now_ms = self._cluster.clock.now_ms()
            self._replicas.lead(
                image, log_end_offset=end, now_ms=now_ms, is_new_leader=is_interrupted
            )
            self.leader, self.is_leader = self._cluster.broker_id, True
            self.is_alone = image.replicas == (self._cluster.broker_id,)
            self.image = image
            if self.is_alone:
                self.log.update_high_watermark(end)
                self._uncommitted.clear()
                self.visible_size = self.appended_size
            else:
                self._raise_high_watermark(now_ms)
        # Nothing can wait for a partition that had no role before.
        if not is_first:
            self.waits.changed()
        return is_new_leader

    def make_follower(self, image: PartitionImage) -> bool:
        """Follow the leader of `image`, which may be none. An `image` older than the known state is
        ignored.

        Returns whether the leader epoch is new: records that were fetched for an older epoch must
        then not be appended. Requests that wait for appends of this broker as leader end with an
        error.
        """
        with self._lock:
            if image.partition_epoch < self._replicas.partition_epoch:
                return False
            is_new_epoch = image.leader_epoch > self.leader_epoch
            self.term += self.is_leader
            self.leader, self.leader_epoch = image.leader, image.leader_epoch
            self.is_leader = self.is_alone = False
            self.image = image
            self._replicas.follow(image)
        self.waits.changed()
        return is_new_epoch

    def leave(self) -> None:
        """Complete waiting requests, because the partition is deleted, goes offline or leaves
        this broker.
        """
        with self._lock:
            self.term += self.is_leader
            self.is_leader = self.is_alone = False
            self.is_gone = True
        self.waits.changed()

    def replace_log(self, replace: Callable[[], PartitionLog]) -> PartitionLog:
        """Replace the log by the one that `replace` returns: the same log in another directory.

        The lock is held during the call, so nothing is appended meanwhile. Raises what `replace`
        raises.
        """
        with self._lock:
            self.log = log = replace()
        log.on_moved = self.waits.mark
        # After `on_moved` is set: this mark stands for a change before that.
        self.waits.mark()
        return log

    @contextmanager
    def led_log(self) -> Iterator[PartitionLog]:
        """The log, in a block in which nothing is appended and the role stays. Raises
        NotLeaderOrFollowerError."""
        with self._lock:
            self.check_is_leader()
            yield self.log
            self._count_visible()
        self.waits.changed()

    # ---- appending

    def append(
        self,
        records: bytearray | memoryview,
        *,
        required_acks: int,
        now_ms: TimestampMs,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        expected_end: Offset | None = None,
        header: BatchHeader | None = None,
        checked: CheckedBatch | None = None,
    ) -> AppendInfo:
        """Append as leader. `records` is modified in place (offsets, leader epoch).

        With `expected_end` the append succeeds only if the log ends there. Otherwise it raises
        LogEndMovedError. `header` is that of a client's batch, if it has been read. `checked` is
        the result of `check_batch` for the records, if they are checked already.

        Records of a coordinator (origin COORDINATOR) have no sequence numbers and may be markers.
        They are flushed on return if flush.messages requires it. For records of a client the caller
        flushes before it answers (`AppendInfo.needs_flush`) and waits for the replicas
        (`acks_outcome`).

        Raises what `PartitionLog.append_as_leader` raises, NotLeaderOrFollowerError, and
        NotEnoughReplicasError if acks=all requires more in-sync replicas than there are.
        """
        with self._lock:
            if expected_end is not None:
                self._check_end(expected_end)
            # The only comparison on the hot path (docs/decisions/0102). Without other replicas the
            # log itself raises the high watermark, under the lock that it holds.
            if self.is_alone:
                info = self.log.append_as_leader(
                    records,
                    self.leader_epoch,
                    now_ms=now_ms,
                    origin=origin,
                    commits=True,
                    header=header,
                    checked=checked,
                )
                self.appended_size += len(records)
                self.visible_size = self.appended_size
            else:
                info = self._append_replicated(
                    records, required_acks, now_ms, origin, header, checked
                )
        # Flushed outside the lock, so that other appends do not wait for the disk.
        if info.needs_flush and origin is AppendOrigin.COORDINATOR:
            self.log.flush()
        # As `waits.changed`, but each call only if there is something to wake: most appends wake
        # nothing.
        waits = self.waits
        if self.topic_partition in waits.requests.watched:
            waits.requests.notify(self.topic_partition)
        if waits.watchers:
            waits.mark()
        if waits.commits:
            waits.wake_commits()
        return info

    def _check_end(self, expected: Offset) -> None:
        """Check the log end.

        The caller holds the lock until its append, so the log end cannot move meanwhile.
        """
        self.check_is_leader()
        if self.log.log_end_offset != expected:
            raise LogEndMovedError(
                f"the log does not end where an append expects it partition={self.topic_partition}"
                f" expected={expected} log_end_offset={self.log.log_end_offset}"
            )

    def _append_replicated(
        self,
        records: bytearray | memoryview,
        required_acks: int,
        now_ms: TimestampMs,
        origin: AppendOrigin,
        header: BatchHeader | None,
        checked: CheckedBatch | None,
    ) -> AppendInfo:
        self.check_is_leader()
        # The committed ISR, not the maximal one: the controller may refuse the follower that
        # joins.
        in_sync, required = len(self._replicas.committed), self._min_isr()
        if required_acks == ACKS_ALL and in_sync < required:
            raise NotEnoughReplicasError(
                f"fewer in-sync replicas than required partition={self.topic_partition}"
                f" in_sync={in_sync} min_insync_replicas={required}"
            )
        info = self.log.append_as_leader(
            records,
            self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            header=header,
            checked=checked,
        )
        self.appended_size += len(records)
        self._uncommitted.note_append(self.log.log_end_offset, self.appended_size)
        self._raise_high_watermark(now_ms)
        return info

    def note_replicated(self, size: int) -> None:
        """Wake waiting requests: this follower's log has grown by `size` bytes or has another
        high watermark.
        """
        with self._lock:
            if size:
                self.appended_size += size
                self._uncommitted.note_append(self.log.log_end_offset, self.appended_size)
            self._count_visible()
        self.waits.changed()

    def lower_epoch_start(self, log_end_offset: Offset) -> None:
        """A read replica begins the log anew at this end, which may be before the start of its
        leader epoch: no record up to there is awaited any more."""
        with self._lock:
            self._replicas.lower_epoch_start(log_end_offset)

    def _min_isr(self) -> int:
        return self._replicas.min_isr(self.log.config.min_insync_replicas)

    def _raise_high_watermark(self, now_ms: TimestampMs) -> bool:
        log = self.log
        high_watermark = self._replicas.high_watermark(
            log_end_offset=log.log_end_offset,
            min_insync_replicas=log.config.min_insync_replicas,
            lag_time_max_ms=self._cluster.lag_time_max_ms,
            now_ms=now_ms,
            find_broker=self._cluster.find_broker,
        )
        if high_watermark is None or high_watermark <= log.high_watermark:
            return False
        log.update_high_watermark(high_watermark)
        self._count_visible()
        return True

    def _count_visible(self) -> None:
        high_watermark = self.log.high_watermark
        if high_watermark > self._counted_to:
            self._counted_to = high_watermark
            committed = self._uncommitted.committed_size(high_watermark)
            # At least one byte more, so that a waiting fetch wakes: bytes that were in the log
            # before this object was created are not counted.
            self.visible_size = max(committed or 0, self.visible_size + 1)
        else:
            self._counted_to = high_watermark  # lower after the truncation of a follower

    # ---- producers that wait for the in-sync replicas

    def acks_outcome(self, end_offset: Offset, term: int) -> ErrorCode | None:
        """The error code for a producer with acks=all whose records end at `end_offset` and were
        appended in `term`. None while in-sync replicas lack some of the records."""
        with self._lock:
            if not self.is_leader or self.term != term:
                return ErrorCode.not_leader_or_follower
            if self.log.high_watermark < end_offset:
                return None
            # The ISR was large enough at the append and has shrunk since, as in Kafka's
            # checkEnoughReplicasReachOffset: the records are committed, but on too few replicas.
            if len(self._replicas.maximal) < self._min_isr():
                return ErrorCode.not_enough_replicas_after_append
            return ErrorCode.none

    def when_committed(self, end_offset: Offset, term: int) -> asyncio.Future[None] | None:
        """A future that is done when the high watermark has reached `end_offset`. None if it has
        already reached it, as always with one replica.

        `term` is the partition's term, read before the append. The future fails with
        NotLeaderOrFollowerError if this broker stops leading, or has stopped since the append.
        Event loop thread only.
        """
        with self._lock:
            is_led = self.is_leader and self.term == term
            if is_led and self.log.high_watermark >= end_offset:
                return None
        return self.waits.until_committed(end_offset, term)

    def _is_committed(self, end_offset: Offset, term: int) -> bool:
        if not self.is_leader or self.term != term:
            raise NotLeaderOrFollowerError(
                "another broker leads before the records were committed"
                f" partition={self.topic_partition} end_offset={end_offset}"
            )
        return self.log.high_watermark >= end_offset

    # ---- followers

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed ISR; empty if this broker does not lead."""
        return self._replicas.committed

    @property
    def is_reassigned(self) -> bool:
        image = self.image
        return (
            self.is_leader
            and image is not None
            and bool(image.adding_replicas or image.removing_replicas)
        )

    @property
    def is_under_replicated(self) -> bool:
        replicas = self._replicas
        return self.is_leader and len(replicas.committed) < len(replicas.followers) + 1

    @property
    def is_under_min_isr(self) -> bool:
        return self.is_leader and len(self._replicas.committed) < self._min_isr()

    @property
    def is_at_min_isr(self) -> bool:
        return self.is_leader and len(self._replicas.committed) == self._min_isr()

    def follower_states(self) -> dict[BrokerId, ReplicaState]:
        """A copy of the followers' states; empty if this broker does not lead."""
        with self._lock:
            return dict(self._replicas.followers) if self.is_leader else {}

    def check_follower(self, follower: BrokerId, requested_epoch: LeaderEpoch) -> None:
        """Refuse a broker that has no replica of the partition.

        A broker that sends the right leader epoch may know an assignment that has not arrived here
        yet. UnknownLeaderEpochError makes it retry.
        """
        # Without the lock: `lead` and `follow` replace the mapping as a whole.
        if follower in self._replicas.followers:
            return
        kind = (
            NotLeaderOrFollowerError
            if requested_epoch == NO_LEADER_EPOCH
            else UnknownLeaderEpochError
        )
        raise kind(
            f"broker is not a replica partition={self.topic_partition} broker={follower}"
            f" leader_epoch={self.leader_epoch}"
        )

    def update_follower(
        self,
        follower: BrokerId,
        *,
        leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        log_start_offset: Offset,
        broker_epoch: int,
        leader_end_offset: Offset,
        now_ms: TimestampMs,
    ) -> None:
        """Record a follower's fetch, which proves that it has all records below `fetch_offset`.

        The follower may join the ISR, and the high watermark may rise. `leader_end_offset` is the
        log end before the read for this fetch. `leader_epoch` is that of the request: an offset of
        another epoch may be of another history. Raises what `check_leader_epoch` raises, and
        NotLeaderOrFollowerError if the fetch is of an earlier registration of that broker.
        """
        find_broker = self._cluster.find_broker
        with self._lock:
            # Checked again under the lock: another broker may have led since the request was
            # checked and read.
            self.check_leader_epoch(leader_epoch)
            progress = self._replicas.followers.get(follower)
            if progress is None or not self.is_leader:
                return
            if is_stale_fetch(broker_epoch, find_broker(follower)):
                raise NotLeaderOrFollowerError(
                    f"fetch is of an earlier registration partition={self.topic_partition}"
                    f" broker={follower} broker_epoch={broker_epoch}"
                )
            state = progress.fetched(
                fetch_offset=fetch_offset,
                log_start_offset=log_start_offset,
                broker_epoch=broker_epoch,
                leader_end_offset=leader_end_offset,
                now_ms=now_ms,
            )
            self._replicas.note_fetch(follower, state)
            # Before the high watermark rises: it must not pass a follower that joins.
            change = self._replicas.expand(
                follower,
                high_watermark=self.log.high_watermark,
                broker_epoch=self._cluster.broker_epoch(),
                find_broker=find_broker,
            )
            is_news = self._raise_high_watermark(now_ms)
            is_news = is_news or state.log_start_offset > progress.log_start_offset
        if is_news:
            self.waits.changed()
        if change is not None:
            self._alter_isr(change)

    def shrink_isr(self) -> None:
        """Propose an ISR without late followers to the controller. For a periodic task."""
        if not self.is_leader or self.is_alone:
            return
        now_ms = self._cluster.clock.now_ms()
        with self._lock:
            change = self._replicas.shrink(
                log_end_offset=self.log.log_end_offset,
                lag_time_max_ms=self._cluster.lag_time_max_ms,
                now_ms=now_ms,
                broker_epoch=self._cluster.broker_epoch(),
            )
            # A follower outside the ISR that kept up may have held the high watermark back, and is
            # late now.
            is_raised = self._raise_high_watermark(now_ms)
        if is_raised:
            self.waits.changed()
        if change is not None:
            self._alter_isr(change)

    def _alter_isr(self, change: IsrChange) -> None:
        logger.info(
            "ISR change is requested partition=%s from=%s to=%s partition_epoch=%d",
            self.topic_partition,
            self.isr,
            change.isr,
            change.partition_epoch,
        )
        # Without the lock: the answer may come within the call, and takes the lock.
        self._cluster.alter_isr(
            self.topic_id_partition, change, lambda answer: self._on_isr_answer(change, answer)
        )

    def _on_isr_answer(self, change: IsrChange, answer: IsrAnswer) -> None:
        is_raised = False
        with self._lock:
            effect = self._replicas.on_answer(change, answer)
            if effect is AnswerEffect.COMMITTED and self.is_leader:
                is_raised = self._raise_high_watermark(self._cluster.clock.now_ms())
        is_committed = effect is AnswerEffect.COMMITTED
        self._cluster.isr_counts.count(change, is_committed=is_committed)
        logger.info(
            "ISR change is answered partition=%s isr=%s error=%s effect=%s",
            self.topic_partition,
            change.isr,
            code_name(answer.error),
            effect.name,
        )
        if is_raised or is_committed:
            self.waits.changed()
        if effect is AnswerEffect.RETRY:
            self._alter_isr(change)

    # ---- deletion of records

    def low_watermark(self) -> Offset:
        """The lowest log start of the replicas on unfenced brokers.

        Raises NotLeaderOrFollowerError.
        """
        with self._lock:
            self.check_is_leader()
            return self._replicas.low_watermark(
                self.log.log_start_offset, self._cluster.find_broker
            )

    # ---- checks of requests

    def check_leader_epoch(self, requested: LeaderEpoch) -> None:
        """Refuse a client whose leader epoch is older or newer than this broker's.

        FencedLeaderEpochError (older) makes the client refresh its metadata;
        UnknownLeaderEpochError (newer) makes it retry. A client that sends no epoch (-1) is
        accepted.
        """
        if requested in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        kind = FencedLeaderEpochError if requested < self.leader_epoch else UnknownLeaderEpochError
        raise kind(
            f"leader epoch differs partition={self.topic_partition} requested={requested}"
            f" current={self.leader_epoch}"
        )

    def owner_in_rack(self, rack: str) -> BrokerId | None:
        """See ClusterView."""
        return self._cluster.owner_in_rack(self.topic_id_partition, rack)

    def check_is_leader(self) -> None:
        """Raise NotLeaderOrFollowerError if this broker does not lead; the client then refreshes
        its metadata.
        """
        if not self.is_leader:
            raise NotLeaderOrFollowerError(
                f"another broker leads partition={self.topic_partition} leader={self.leader}"
                f" leader_epoch={self.leader_epoch}"
            )
