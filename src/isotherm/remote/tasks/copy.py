"""Copies the closed segments of one partition to the remote tier, oldest first.

    STARTED stored and read back -> objects copied -> FINISHED stored and read back
      -> log.highest_offset_in_remote_storage raised; only then may local retention delete the
      segment

The local data stays after every failure. The objects of a failed copy are deleted; if that fails
too, the expiration task deletes them. While it is unknown whether FINISHED was stored, the task
publishes the same event again before any other work. It does not delete the objects: the metadata
may name them already, and they could become the only copy of the segment.

Source: Kafka RLMCopyTask. There, a retriable failure leaves the objects behind.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from isotherm.errors import IsothermError, RemoteResourceNotFoundError
from isotherm.log.mending import mend_segment
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.broker_topic_metrics import TopicGauge, TopicMeter
from isotherm.remote.history.lineage import (
    first_recorded_offset,
    highest_remote_offset,
    is_segment_within_lineage,
    remote_log_start_offset,
)
from isotherm.remote.segment_metadata import (
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.cancellation import Cancellation
from isotherm.remote.tasks.copy_block import (
    METADATA_UNREAD,
    CustomMetadataTooLargeError,
    block_reason,
)
from isotherm.remote.tasks.copy_plan import CandidateSegment, CopyLag, plan_copies
from isotherm.remote.tasks.deletion_rules import is_given_up, may_make_way
from isotherm.remote.tasks.tier import AT_NEXT_INTERVAL, RemoteTierAccess
from isotherm.segment.leader_epoch_checkpoint import encode_leader_epoch_checkpoint
from isotherm.segment.leader_epochs import epochs_within, without_empty_epochs
from isotherm.types import UNKNOWN_OFFSET, LeaderEpoch, Offset, TimestampMs, TopicIdPartition

_logger = logging.getLogger(__name__)


class CopyTask:
    """Copies while this broker leads the partition. Call `run` in one thread at a time."""

    def __init__(
        self, log: PartitionLog, partition: TopicIdPartition, tier: RemoteTierAccess
    ) -> None:
        self._log = log
        self._partition = partition
        self._tier = tier
        self._cancellation = Cancellation()
        self._copied_offset: Offset | None = None
        self._unconfirmed: tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate] | None
        self._unconfirmed = None
        self._halted_at_limit: int | None = None
        self._block: str | None = None

    @property
    def is_halted(self) -> bool:
        """Copying of this partition has stopped until the leadership or the setting changes."""
        return self._halted_at_limit == self._tier.custom_metadata_size_max()

    def cancel(self) -> None:
        """Copy no further segment; a copy in progress is finished. Callable from any thread."""
        self._cancellation.cancel()

    def release(self) -> None:
        """Call after the last run: no copy of this task is in progress any more."""
        if self._unconfirmed is not None:
            self._tier.copies.end(self._unconfirmed[0].segment_id)

    def run(self) -> None:
        """Copy the segments that are due. Raises the first error; a later run continues where this
        one stopped."""
        log = self._log
        if not log.remote_log_enabled or log.config.remote_log_copy_disable:
            self._report_lag(enabled=False)
            self._report_block(None)
            return
        if self._cancellation.is_set:
            return
        if not self._tier.metadata.is_ready(self._partition):
            self._report_block(METADATA_UNREAD)
            return
        if self._block == METADATA_UNREAD:
            self._report_block(None)
        if self.is_halted:
            self._report_lag(enabled=True)
            return
        with ExitStack() as on_failure:
            on_failure.callback(self._report_lag, enabled=True)
            on_failure.push(self._note_failure)
            # Before the look-up of the copied offset, which misses a copy whose FINISHED is
            # unknown: its segment would be copied again.
            self._confirm_finished()
            if self._copied_offset is None:
                self._copied_offset = self._learn_copied_offset()
            self._copy_candidates(self._copied_offset)
            # No failure: the callbacks must not run.
            on_failure.pop_all()
        self._report_lag(enabled=True)
        self._report_block(None)

    @property
    def due_ms(self) -> TimestampMs | None:
        """See `ScheduledTask`. Only a roll makes more to copy once all closed segments are."""
        log = self._log
        if not log.remote_log_enabled or log.config.remote_log_copy_disable:
            return None
        if self._copied_offset is None or self._unconfirmed is not None:
            return AT_NEXT_INTERVAL
        next_offset = max(self._copied_offset + 1, log.log_start_offset)
        is_copied = next_offset >= log.segments()[-1].base_offset
        return None if is_copied else AT_NEXT_INTERVAL

    def _note_failure(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Count the failure; the next run looks up the copied offset again."""
        if error is not None:
            self._report_block(block_reason(error))
        self._copied_offset = None
        self._tier.metrics.mark(TopicMeter.REMOTE_COPY_ERRORS, self._partition.topic)

    def _copy_candidates(self, copied_offset: Offset) -> None:
        log = self._log
        last_stable_offset = log.last_stable_offset
        if last_stable_offset <= 0 or copied_offset >= last_stable_offset:
            return
        candidates = plan_copies(
            log.segments(),
            max(copied_offset + 1, log.log_start_offset),
            last_stable_offset,
            CopyLag.from_config(log.config),
            self._tier.clock.now_ms(),
        )
        for candidate in candidates:
            # A segment without records is copied like any other, as in Kafka: its copy says that
            # the log has none there (docs/decisions/0194).
            size = candidate.segment.size_in_bytes
            cancelled = self._cancellation.event
            if cancelled.is_set() or not self._tier.copy_quota.admit(size, cancelled):
                return
            # A slow store must not hide that segments wait for it.
            self._report_lag(enabled=True)
            self._copy(candidate)

    def _learn_copied_offset(self) -> Offset:
        """Look up the last offset of this log in the remote tier, at the first run and after a
        failure."""
        log, metadata = self._log, self._tier.metadata
        lineage = log.leader_epochs.entries
        known_start_offset = log.log_start_offset
        start_offset = remote_log_start_offset(
            lineage,
            log.local_log_start_offset,
            lambda epoch: metadata.list_remote_log_segments(self._partition, epoch),
        )
        # A log start up to the first record leaves out none, but a group may be committed below.
        has_all = start_offset <= first_recorded_offset(lineage, known_start_offset)
        if not has_all and log.maybe_increment_log_start_offset(start_offset):
            # A crash lost a log start that retention had raised, or the metadata lacks segments.
            _logger.warning(
                "log start is raised to where the tiers begin partition=%s from=%d to=%d",
                self._partition,
                known_start_offset,
                log.log_start_offset,
            )
        copied_offset = find_copied_offset(self._tier, self._partition, log)
        self._cancellation.report_copied(log, copied_offset)
        return copied_offset

    def _copy(self, candidate: CandidateSegment) -> None:
        tier = self._tier
        # First: a lost index or producer snapshot would stop the copying, a damaged index would
        # get into the bucket. `_metadata_of` reads the transaction index.
        mend_segment(self._log, candidate.segment, candidate.next_base_offset)
        start_offset, end_offset = candidate.segment.base_offset, candidate.next_base_offset
        epochs = epochs_within(self._log.leader_epochs.entries, start_offset, end_offset)
        if not epochs:
            return  # the log start has passed it meanwhile, or the log's first record is above
        metadata = self._metadata_of(candidate, epochs)
        if min(epochs.values()) > start_offset:
            # The copy may lack records below the log start only if that start survives a crash.
            self._log.make_log_start_durable()
        with ExitStack() as on_failure:
            # Before COPY_SEGMENT_STARTED is stored: the expiration task would take the copy for
            # dangling and delete it.
            tier.copies.begin(metadata.segment_id)
            on_failure.callback(tier.copies.end, metadata.segment_id)
            tier.make_way_for(metadata, self._may_make_way)
            tier.decided(
                self._partition, lambda: tier.metadata.add_remote_log_segment_metadata(metadata)
            ).result()
            tier.metrics.mark(TopicMeter.REMOTE_COPY_REQUESTS, self._partition.topic)
            custom_metadata = self._copy_objects(candidate, metadata)
            # Still in progress: it ends when FINISHED is stored (`_confirm_finished`).
            on_failure.pop_all()
        finished = tier.update_of(
            metadata, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, custom_metadata
        )
        self._unconfirmed = (metadata, finished)
        self._confirm_finished()

    def _copy_objects(
        self, candidate: CandidateSegment, metadata: RemoteLogSegmentMetadata
    ) -> bytes | None:
        """Copy the objects; returns the custom metadata. Deletes the objects after a failure."""
        with ExitStack() as on_failure:
            on_failure.callback(self._undo, metadata, None)
            data = segment_data(self._log, candidate)
            custom_metadata = self._tier.storage.copy_log_segment_data(metadata, data)
            on_failure.pop_all()
        size, size_max = len(custom_metadata or b""), self._tier.custom_metadata_size_max()
        if size > size_max:
            self._halted_at_limit = size_max
            self._undo(metadata, custom_metadata)
            raise CustomMetadataTooLargeError(
                "custom metadata of a copied segment is too large, the partition is copied no"
                f" further partition={self._partition} size={size}"
                f" remote.log.metadata.custom.metadata.max.bytes={size_max}"
            )
        return custom_metadata

    def _confirm_finished(self) -> None:
        """Publish FINISHED for the copied segment. Each run repeats it until it is known to be
        stored."""
        if self._unconfirmed is None:
            return
        metadata, finished = self._unconfirmed
        try:
            self._tier.publish(finished)
        except RemoteResourceNotFoundError:
            if not self._is_given_up(metadata):
                raise
            # The segment was deleted as abandoned: no metadata will name these objects.
            self._tier.storage.delete_log_segment_data(metadata.updated(finished))
            self._unconfirmed = None
            self._tier.copies.end(metadata.segment_id)
            raise
        self._unconfirmed = None
        self._tier.copies.end(metadata.segment_id)
        _logger.info(
            "segment copied partition=%s start_offset=%d end_offset=%d size=%d segment=%s",
            *(self._partition, metadata.start_offset, metadata.end_offset_inclusive),
            *(metadata.segment_size_in_bytes, metadata.segment_id.id),
        )
        self._copied_offset = metadata.end_offset_inclusive
        self._cancellation.report_copied(self._log, metadata.end_offset_inclusive)
        self._tier.metrics.mark(
            TopicMeter.REMOTE_COPY_BYTES, self._partition.topic, metadata.segment_size_in_bytes
        )

    def _is_given_up(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether the segment is deleted or being deleted. No event reverts that."""
        with self._tier.exclusive.exclusively(self._partition):
            current = self._tier.exclusive.segment(metadata.segment_id)
        return is_given_up(current)

    def _may_make_way(self, earlier: RemoteLogSegmentMetadata) -> bool:
        return may_make_way(
            earlier,
            local_log_start_offset=self._log.local_log_start_offset,
            durable_log_start_offset=self._log.durable_log_start_offset,
        )

    def _undo(self, metadata: RemoteLogSegmentMetadata, custom_metadata: bytes | None) -> None:
        started = self._tier.update_of(
            metadata, RemoteLogSegmentState.COPY_SEGMENT_STARTED, custom_metadata
        )
        try:
            self._tier.delete_segment(metadata.updated(started))
        except (IsothermError, OSError) as error:
            # The segment stays listed, so the expiration task deletes it later.
            # INFO: the failed copy itself has a line (`RetriedWork`).
            _logger.info(
                "a copy failed, and what it left in the store is deleted later segment=%s: %s",
                metadata.segment_id,
                error,
            )

    def _metadata_of(
        self, candidate: CandidateSegment, epochs: Mapping[LeaderEpoch, Offset]
    ) -> RemoteLogSegmentMetadata:
        segment, now_ms = candidate.segment, self._tier.clock.now_ms()
        return RemoteLogSegmentMetadata(
            segment_id=self._tier.new_segment_id(self._partition),
            start_offset=segment.base_offset,
            end_offset_inclusive=candidate.next_base_offset - 1,
            max_timestamp_ms=segment.largest_timestamp_ms,
            broker_id=self._tier.broker_id,
            event_timestamp_ms=now_ms,
            segment_size_in_bytes=segment.size_in_bytes,
            segment_leader_epochs=epochs,
            txn_index_empty=not segment.aborted_transactions(),
            broker_leader_epoch=self._tier.broker_leader_epoch(self._partition),
        )

    def _report_block(self, reason: str | None) -> None:
        self._block = reason
        partition = self._partition
        self._tier.metrics.block(partition.topic, partition.partition, reason)

    def _report_lag(self, *, enabled: bool) -> None:
        """Report Kafka's figures: closed segments that only this disk holds. They also grow while
        the partition is halted."""
        log = self._log
        local = [
            segment.size_in_bytes
            for segment in log.segments()[:-1]
            if enabled and segment.base_offset >= log.highest_offset_in_remote_storage
        ]
        for gauge, value in (
            (TopicGauge.REMOTE_COPY_LAG_BYTES, sum(local)),
            (TopicGauge.REMOTE_COPY_LAG_SEGMENTS, len(local)),
            (TopicGauge.COPY_HALTED_PARTITIONS, int(enabled and self.is_halted)),
        ):
            self._tier.metrics.set(gauge, self._partition.topic, self._partition.partition, value)


def segment_data(log: PartitionLog, candidate: CandidateSegment) -> LogSegmentData:
    """The files of a closed segment, and the epochs of the log up to its end.

    Raises FileNotFoundError if the producer snapshot at its end is gone.
    """
    segment, end_offset = candidate.segment, candidate.next_base_offset
    if end_offset not in log.snapshots.offsets:
        raise FileNotFoundError(
            f"no producer snapshot at a segment's end partition={log.topic_partition}"
            f" offset={end_offset}"
        )
    # Not cut at the start, as in Kafka: a follower that begins after this segment takes its whole
    # lineage from here (TierStateMachine).
    epochs = [entry for entry in log.leader_epochs.entries if entry.start_offset < end_offset]
    return LogSegmentData(
        log_path=segment.log_path,
        offset_index_path=segment.offset_index_path,
        time_index_path=segment.time_index_path,
        transaction_index_path=(
            segment.transaction_index_path if segment.has_transaction_index else None
        ),
        # The snapshot at the end, not at the start: a follower continues from there.
        producer_snapshot_path=log.snapshots.path(end_offset),
        leader_epoch_checkpoint=encode_leader_epoch_checkpoint(epochs),
    )


def find_copied_offset(
    tier: RemoteTierAccess, partition: TopicIdPartition, log: PartitionLog
) -> Offset:
    """The last offset of this log in finished remote segments; -1 if there are none.

    Kafka uses the highest offset ever finished, which stays when that segment is deleted. Here a
    finished segment must hold that offset, else the highest end of the finished ones counts. So
    records that only a deleted segment held are copied again, not taken for safe.
    """
    lineage = log.leader_epochs.entries
    highest = highest_remote_offset(
        lineage,
        log.log_end_offset,
        lambda epoch: tier.metadata.highest_offset_for_epoch(partition, epoch),
    )
    if highest.offset == UNKNOWN_OFFSET or (
        tier.metadata.remote_log_segment_metadata(partition, highest.epoch, highest.offset)
        is not None
    ):
        return highest.offset
    without_empty = without_empty_epochs(lineage)
    return max(
        (
            segment.end_offset_inclusive
            for segment in tier.metadata.list_remote_log_segments(partition)
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and is_segment_within_lineage(segment, log.log_end_offset, without_empty)
        ),
        default=UNKNOWN_OFFSET,
    )
