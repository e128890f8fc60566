"""Deletes expired, unreferenced and dangling remote segments of one partition.

The log start is raised first. Then each segment is deleted: DELETE_STARTED stored, objects deleted,
DELETE_FINISHED stored. The first failure ends the run; the segment stays listed, and the next run
continues with it. A run may take minutes, and the log changes meanwhile: each deletion is decided
again under the write lock of the metadata. Source: Kafka RLMExpirationTask.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from isotherm.errors import IsothermError
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.broker_topic_metrics import TopicGauge, TopicMeter
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.tasks.cancellation import Cancellation
from isotherm.remote.tasks.copy import find_copied_offset
from isotherm.remote.tasks.expiration_plan import (
    ExpirationState,
    RemoteSegmentDeletion,
    expiration_due_ms,
    is_still_due,
    plan_expiration,
    total_size,
)
from isotherm.remote.tasks.tier import AT_NEXT_INTERVAL, RemoteTierAccess
from isotherm.segment.leader_epochs import without_empty_epochs
from isotherm.types import UNKNOWN_OFFSET, TimestampMs, TopicIdPartition

_logger = logging.getLogger(__name__)


class ExpirationTask:
    """Expires segments while this broker leads the partition. Call `run` in one thread at a
    time."""

    def __init__(
        self, log: PartitionLog, partition: TopicIdPartition, tier: RemoteTierAccess
    ) -> None:
        self._log = log
        self._partition = partition
        self._tier = tier
        self._cancellation = Cancellation()
        self.due_ms: TimestampMs | None = AT_NEXT_INTERVAL
        """See `ScheduledTask`."""

    def cancel(self) -> None:
        """Delete no further segment. Callable from any thread."""
        self._cancellation.cancel()

    def release(self) -> None:
        """Nothing to release: a run leaves no state."""

    def run(self) -> list[RemoteSegmentDeletion]:
        """Delete the segments that are due, and return them. Raises the first error."""
        log, tier = self._log, self._tier
        self.due_ms = AT_NEXT_INTERVAL
        if (
            self._cancellation.is_set
            or not log.remote_log_enabled
            or not tier.metadata.is_ready(self._partition)
        ):
            return []
        with tier.copies.watch() as copying:
            segments = tier.metadata.list_remote_log_segments(self._partition)
        self._report_size(segments)
        self._report_retention(segments)
        if not segments:
            self._sleep(None)
            return []
        if log.highest_offset_in_remote_storage == UNKNOWN_OFFSET:
            # Without this offset, local copies of remote segments would count twice against
            # retention.bytes.
            copied_offset = find_copied_offset(tier, self._partition, log)
            self._cancellation.report_copied(log, copied_offset)
        config, state = log.config, self._state()
        began_s = tier.clock.monotonic_s()
        plan = plan_expiration(segments, state, copying)
        self._set(
            TopicGauge.REMOTE_LOG_SIZE_COMPUTATION_TIME,
            round((tier.clock.monotonic_s() - began_s) * 1000),
        )
        if log.config is not config:
            return []  # the retention has changed: the next run plans with it
        if plan.log_start_offset is not None:
            log.maybe_increment_log_start_offset(plan.log_start_offset)
        if not plan.deletions:
            self._sleep(expiration_due_ms(segments, state))
        # A crash must not bring back a log start below deleted segments: readers would find a hole.
        if plan.deletions:
            log.make_log_start_durable()
        return self._delete(plan.deletions)

    def _sleep(self, due_ms: TimestampMs | None) -> None:
        if self._tier.tells_changes:
            self.due_ms = due_ms

    def _delete(self, deletions: Sequence[RemoteSegmentDeletion]) -> list[RemoteSegmentDeletion]:
        done: list[RemoteSegmentDeletion] = []
        skipped = 0
        try:
            for deletion in deletions:
                if self._cancellation.is_set:
                    break
                self._report_lag(deletions[len(done) + skipped :])
                if not self._tier.delete_segment(
                    deletion.metadata, partial(self._is_still_due, deletion)
                ):
                    skipped += 1
                    continue
                _logger.info(
                    "remote segment deleted segment=%s end_offset=%s reason=%s",
                    deletion.metadata.segment_id,
                    deletion.metadata.end_offset_inclusive,
                    deletion.reason.name,
                )
                done.append(deletion)
        except (IsothermError, OSError):
            self._tier.metrics.mark(TopicMeter.REMOTE_DELETE_ERRORS, self._partition.topic)
            raise
        self._report_lag(deletions[len(done) + skipped :])
        return done

    def _is_still_due(
        self, deletion: RemoteSegmentDeletion, segment: RemoteLogSegmentMetadata
    ) -> bool:
        return (
            not self._cancellation.is_set
            and not self._tier.copies.is_active(segment.segment_id)
            and is_still_due(deletion, segment, self._state(survives_crash=True))
        )

    def _state(self, *, survives_crash: bool = False) -> ExpirationState:
        """The log as expiration sees it. With `survives_crash` it has the durable log start: a
        deleted segment must be below the log start after a crash, too."""
        log = self._log
        return ExpirationState(
            lineage=without_empty_epochs(log.leader_epochs.entries),
            log_start_offset=(
                log.durable_log_start_offset if survives_crash else log.log_start_offset
            ),
            log_end_offset=log.log_end_offset,
            local_segments=[
                (segment.base_offset, segment.size_in_bytes) for segment in log.segments()
            ],
            copied_offset=log.highest_offset_in_remote_storage,
            retention_ms=log.config.retention_ms,
            retention_bytes=log.config.retention_bytes,
            now_ms=self._tier.clock.now_ms(),
            broker_id=self._tier.broker_id,
        )

    def _report_size(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        """Report Kafka's figures, in which an unfinished copy has no size."""
        size = sum(
            segment.segment_size_in_bytes
            for segment in segments
            if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED
        )
        self._set(TopicGauge.REMOTE_LOG_METADATA_COUNT, len(segments))
        self._set(TopicGauge.REMOTE_LOG_SIZE_BYTES, size)

    def _report_retention(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        config, state = self._log.config, self._state()
        self._tier.retention_shares.set(
            self._partition.topic,
            self._partition.partition,
            total=(total_size(segments, state), config.retention_bytes),
            local=(self._log.size_in_bytes, config.effective_local_retention_bytes),
        )

    def _report_lag(self, waiting: Sequence[RemoteSegmentDeletion]) -> None:
        sizes = [deletion.metadata.segment_size_in_bytes for deletion in waiting]
        self._set(TopicGauge.REMOTE_DELETE_LAG_SEGMENTS, len(sizes))
        self._set(TopicGauge.REMOTE_DELETE_LAG_BYTES, sum(sizes))

    def _set(self, gauge: TopicGauge, value: int) -> None:
        self._tier.metrics.set(gauge, self._partition.topic, self._partition.partition, value)
