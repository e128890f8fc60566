"""The common surroundings and steps of the tasks on the remote tier.

Other tasks run between the decision to delete a segment and its deletion. So every remote segment
is deleted by `RemoteTierAccess.delete_segment`, which checks again under the write lock of the
partition's metadata, and records DELETE_SEGMENT_STARTED under it. Local retention looks for a
remote copy under the same lock (local_deletion.py). So it never happens that each tier deletes a
record because the other holds it (docs/destructive-acts.md).
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from isotherm.clock import Clock
from isotherm.errors import EventOvertakenError, RemoteStorageNotReadyError
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicMeter
from isotherm.remote.futures import done_future
from isotherm.remote.metadata.api import (
    ExclusiveMetadata,
    RemoteLogMetadataManager,
    TellsChanges,
)
from isotherm.remote.quota import RemoteQuota
from isotherm.remote.remote_tier_metrics import RetentionShares
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.remote.tasks.deletion_rules import is_as_decided, is_deletion_begun
from isotherm.types import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    TimestampMs,
    TopicIdPartition,
)

_logger = logging.getLogger(__name__)

T = TypeVar("T")

DECISIONS_MAX = 16
"""Most attempts at a decision about a segment while other brokers are faster. Some broker succeeds
each time, so more than a few attempts are a sign of many writers."""

AT_NEXT_INTERVAL: TimestampMs = 0
"""The time of a task that looks at something which does not wake it."""

StillDue: TypeAlias = Callable[[RemoteLogSegmentMetadata], bool]
"""Whether a segment, in its present state, is still to be deleted. Called under the write lock of
its metadata, so it reads memory only and never waits."""


def in_any_case(_: RemoteLogSegmentMetadata) -> bool:
    """A `StillDue` for deletions that depend only on the state of the segment."""
    return True


class CachedIndexes(Protocol):
    """The part of RemoteIndexCache that deletion needs."""

    def remove(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTierAccess:
    """The remote tier as a broker sees it. Thread-safe: a call of `rng.getrandbits` is atomic.

    `custom_metadata_size_max` returns the present limit. `leader_epoch_of` returns the present
    leader epoch of a partition, None if the partition does not exist any more. `is_tiered` returns
    whether the cluster's metadata says now that the partition has a remote tier; it reads memory
    only.
    """

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    exclusive: ExclusiveMetadata
    index_cache: CachedIndexes
    copies: CopiesInProgress
    clock: Clock
    rng: random.Random
    broker_id: BrokerId
    metrics: BrokerTopicMetrics
    retention_shares: RetentionShares
    copy_quota: RemoteQuota
    custom_metadata_size_max: Callable[[], int]
    leader_epoch_of: Callable[[TopicIdPartition], LeaderEpoch | None]
    is_tiered: Callable[[TopicIdPartition], bool]

    @property
    def tells_changes(self) -> bool:
        """Whether a change of a partition's metadata wakes its tasks."""
        return isinstance(self.metadata, TellsChanges)

    def new_segment_id(self, partition: TopicIdPartition) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(partition, uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def update_of(
        self,
        metadata: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        custom_metadata: bytes | None,
    ) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            segment_id=metadata.segment_id,
            event_timestamp_ms=self.clock.now_ms(),
            state=state,
            broker_id=self.broker_id,
            custom_metadata=custom_metadata,
            broker_leader_epoch=self.broker_leader_epoch(metadata.topic_id_partition),
        )

    def broker_leader_epoch(self, partition: TopicIdPartition) -> LeaderEpoch:
        """The leader epoch of events of the partition."""
        epoch = self.leader_epoch_of(partition)
        return NO_LEADER_EPOCH if epoch is None else epoch

    def publish(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Store the event and wait until it is visible here."""
        self.decided(
            update.segment_id.topic_id_partition,
            lambda: self.metadata.update_remote_log_segment_metadata(update),
        ).result()

    def decided(self, partition: TopicIdPartition, decide: Callable[[], T]) -> T:
        """Run `decide` exclusively, again if another broker was faster; returns its result.

        The one place where that happens: every event of the tasks is recorded in a `decide`. So an
        event is never recorded again without a new look at the state that it was decided on.
        """
        for _ in range(DECISIONS_MAX - 1):
            try:
                with self.exclusive.exclusively(partition):
                    return decide()
            except EventOvertakenError as error:
                _logger.debug("decided anew partition=%s: %s", partition, error)
        with self.exclusive.exclusively(partition):
            return decide()

    def make_way_for(self, metadata: RemoteLogSegmentMetadata, may_make_way: StillDue) -> None:
        """Delete an earlier attempt under this leader epoch, before a copy starts: once the copy
        has taken the key, no metadata names its objects (KIP-1266, Scenario 3).

        Its deletion is recorded even if the attempt was never finished: another broker may be
        about to finish it, if one of the two leads no more. `may_make_way`, the rule of
        deletion_rules.py for the copier's log, is asked of a finished one, which may have readers.
        Raises RemoteStorageNotReadyError if the attempt is not deleted, and the copy is planned
        anew.
        """
        predecessor = self.metadata.predecessor(metadata)
        if predecessor is None:
            return
        is_finished = predecessor.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        if not self.delete_segment(predecessor, may_make_way if is_finished else in_any_case):
            raise RemoteStorageNotReadyError(
                f"an earlier copy cannot be replaced segment={predecessor.segment_id}"
                f" copy={metadata.segment_id}"
            )

    def delete_segment(
        self, metadata: RemoteLogSegmentMetadata, still_due: StillDue = in_any_case
    ) -> bool:
        """Record DELETE_SEGMENT_STARTED, delete the objects, record DELETE_SEGMENT_FINISHED.

        `metadata` is the segment at the decision. Returns False without an effect if its state has
        changed or `still_due` returns False.

        After a failure the segment stays listed, so that the expiration task tries again. The
        events carry the custom metadata: the storage manager may need it to find the objects.
        """
        custom = metadata.custom_metadata
        started = self.update_of(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, custom)

        def decide() -> Future[None] | None:
            current = self.exclusive.segment(metadata.segment_id)
            if current is None or not is_as_decided(current, metadata) or not still_due(current):
                _logger.info(
                    "remote segment is not deleted: it has changed since that was decided"
                    " segment=%s decided_on=%s state=%s",
                    metadata.segment_id,
                    metadata.state.name,
                    current.state.name if current is not None else None,
                )
                return None
            if is_deletion_begun(metadata):
                return done_future()
            return self.metadata.update_remote_log_segment_metadata(started)

        stored = self.decided(metadata.topic_id_partition, decide)
        if stored is None:
            return False
        # Once the event is read back, this broker's readers no longer find the segment. The objects
        # are deleted only then.
        stored.result()
        self.index_cache.remove([metadata.segment_id])
        self.metrics.mark(TopicMeter.REMOTE_DELETE_REQUESTS, metadata.topic_id_partition.topic)
        self.storage.delete_log_segment_data(metadata.updated(started))
        # Only once the objects are gone: after this event no metadata names them.
        self.publish(
            self.update_of(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, custom)
        )
        return True
