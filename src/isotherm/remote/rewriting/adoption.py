"""The broker's part of a load: it adopts a history that a job has staged.

    for each segment   its manifest is committed
    the log            begins behind the history, if it still ends where the history begins
    for each segment,  its events are published
    oldest first
    the replicas       when each in-sync replica's log begins behind the history, the journal goes

Every step may be repeated: after a crash, or under another leader, the next pass does it again. So
the journal stays until every replica that may lead has the new log end. If the partition has got
records meanwhile, the run is refused: its objects are deleted, and the journal says why. That is
decided on a committed record, which no later leader can lack (docs/decisions/0267).
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from isotherm.errors import PolicyViolationError
from isotherm.remote.futures import done_future
from isotherm.remote.metadata.api import ReplacesSegments
from isotherm.remote.rewriting.journal import (
    FoundRun,
    JournalState,
    RewriteJournal,
    RewriteJournals,
)
from isotherm.remote.rewriting.run_recovery import delete_staged
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.tasks.deletion_rules import is_before_log_start
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

if TYPE_CHECKING:
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

_logger = logging.getLogger(__name__)

HISTORY_EPOCH: LeaderEpoch = 0
HISTORY_EPOCHS = (EpochEntry(HISTORY_EPOCH, 0),)
"""The leader epochs of a log whose records a job has written: the lowest, so that any leader's
records come after them."""


class AdoptsHistories(Protocol):
    """The logs of a broker."""

    def durable_log_start(self, partition: TopicIdPartition) -> Offset:
        """The log start that a crash does not set back."""

    def begin_behind(
        self, partition: TopicIdPartition, start_offset: Offset, end_offset: Offset
    ) -> None:
        """Make the log of a partition that this broker leads end, and its local part begin, at
        `end_offset`. No effect if it begins there already.

        Raises PolicyViolationError if the partition has committed records from `start_offset` on,
        or records of producers; RemoteStorageNotReadyError if that is not clear yet; and
        NotLeaderOrFollowerError."""

    def is_replicated(self, partition: TopicIdPartition, end_offset: Offset) -> bool:
        """Whether each in-sync replica has the log up to `end_offset`. Raises
        NotLeaderOrFollowerError."""


class HistoryAdoption:
    def __init__(
        self,
        journals: RewriteJournals,
        storage: ObjectStoreRemoteStorageManager,
        tier: RemoteTierAccess,
        metadata: ReplacesSegments,
        logs: AdoptsHistories,
    ) -> None:
        self._journals = journals
        self._storage = storage
        self._tier = tier
        self._metadata = metadata
        self._logs = logs

    def adopt(self, run: FoundRun, journal: RewriteJournal) -> None:
        """Take all steps of a staged run. Raises what any of them raises, to be repeated."""
        partition = journal.partition
        start_offset = journal.new_segments[0].metadata.start_offset
        end_offset = journal.new_segments[-1].metadata.end_offset_inclusive + 1
        try:
            self._check_tier(journal)
            # Published by an earlier pass, expired and deleted since: they must not come back.
            log_start_offset = self._logs.durable_log_start(partition)
            segments = [
                segment
                for segment in journal.new_segments
                if not is_before_log_start(segment.metadata, log_start_offset)
            ]
            for segment in segments:
                if self._segment(segment.metadata) is None:
                    self._storage.commit_log_segment_data(segment.metadata, segment.manifest)
            self._logs.begin_behind(partition, start_offset, end_offset)
        except PolicyViolationError as error:
            self._refuse(run, journal, str(error))
            return
        for segment in segments:
            self._publish(segment.metadata)
        if self._logs.is_replicated(partition, end_offset):
            delete_staged(
                self._storage, run, kept=[segment.metadata.segment_id for segment in segments]
            )
            self._journals.forget(run)
            _logger.info("history is adopted partition=%s end_offset=%d", partition, end_offset)

    def _check_tier(self, journal: RewriteJournal) -> None:
        """Raise PolicyViolationError if the remote tier has other segments from the history's start
        on: a log whose local part begins behind the history may be that of a topic that has got
        records, and has lost the local ones to retention."""
        start_offset = journal.new_segments[0].metadata.start_offset
        ours = {segment.metadata.segment_id for segment in journal.new_segments}
        with self._tier.exclusive.exclusively(journal.partition):
            others = self._tier.metadata.list_remote_log_segments(journal.partition)
        first_after = journal.new_segments[-1].metadata.end_offset_inclusive + 1
        for other in others:
            if other.end_offset_inclusive < start_offset or other.start_offset >= first_after:
                continue
            if other.segment_id not in ours:
                raise PolicyViolationError(
                    "the remote tier has other segments at the history's offsets"
                    f" segment={other.segment_id} start_offset={other.start_offset}"
                )

    def _segment(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        with self._tier.exclusive.exclusively(segment.topic_id_partition):
            return self._metadata.segment(segment.segment_id)

    def _publish(self, segment: RemoteLogSegmentMetadata) -> None:
        """Record both events of a copy, as if this broker had copied the segment."""
        tier = self._tier
        started = replace(
            segment,
            state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            broker_id=tier.broker_id,
            event_timestamp_ms=tier.clock.now_ms(),
            broker_leader_epoch=tier.broker_leader_epoch(segment.topic_id_partition),
        )

        def start() -> Future[None] | None:
            current = self._metadata.segment(segment.segment_id)
            if current is not None:
                is_started = current.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
                return done_future() if is_started else None
            return tier.metadata.add_remote_log_segment_metadata(started)

        # In progress, so that expiration does not take it for a copy that was given up.
        tier.copies.begin(segment.segment_id)
        try:
            stored = tier.decided(segment.topic_id_partition, start)
            if stored is not None:
                stored.result()
                tier.publish(
                    tier.update_of(
                        started,
                        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                        segment.custom_metadata,
                    )
                )
        finally:
            tier.copies.end(segment.segment_id)

    def _refuse(self, run: FoundRun, journal: RewriteJournal, reason: str) -> None:
        """Delete what the run has staged and published. The journal stays for the job: it says
        why."""
        _logger.warning(
            "loaded history is refused partition=%s run=%s: %s", journal.partition, run.run, reason
        )
        for segment in journal.new_segments:
            published = self._segment(segment.metadata)
            if published is not None:
                self._tier.delete_segment(published)
        delete_staged(self._storage, run, kept=())
        self._journals.put(
            replace(
                journal,
                state=JournalState.REFUSED,
                time_ms=self._tier.clock.now_ms(),
                new_segments=(),
                reason=reason,
            )
        )
