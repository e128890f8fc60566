"""Finds leftovers in the compacted metadata topic, and removes them: objects first, then keys.

    leftover                                   cause                       removal
    keys of segments that are gone             a tombstone was lost        tombstones
    keys of partitions whose deletion is over  a tombstone was lost        tombstones
    an upload or deletion that stands still    a crash, a failed store     the segment is deleted
    an upload that a later leader repeated     both finished (Scenario 2)  the segment is deleted
    a partition whose deletion stands still    a crash cut it              the partition is deleted

Segments of an unknown topic without a deletion event are reported and kept. Otherwise a cluster
that lost its own metadata would delete the only copy of its data.

`plan_cleanup` is pure; RemoteMetadataCleanupManager executes the plan. A deletion of a segment is
recorded like any other, so the next run continues after a crash. Source: KIP-1266, which names the
manager and leaves its work open.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from isotherm.clock import Clock
from isotherm.errors import CorruptMetadataError, IsothermError
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import ConditionalMetadataTopic, MetadataTopic, NewMetadataRecord
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.events import decode_record, iterate_records
from isotherm.remote.metadata.wire.keys import MetadataKey, SegmentKey
from isotherm.remote.outages import log_failure
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.remote.tasks.deletion_rules import is_abandoned, is_superseded
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import Offset, TimestampMs, TopicIdPartition

_logger = logging.getLogger(__name__)

CLEANED = "isotherm_remote_log_metadata_cleaned"
CLEANED_TEXT = "Leftovers that the cleanup of remote log metadata removed, by cause."
CLEANUP_ERRORS = "isotherm_remote_log_metadata_cleanup_errors"
CLEANUP_ERRORS_TEXT = "Clean-ups of remote log metadata that failed; the next run tries again."


_TOMBSTONES_AT_ONCE = 1000


class LeftOver(enum.Enum):
    LOST_TOMBSTONE = "lost-tombstone"
    ABANDONED_UPLOAD = "abandoned-upload"
    ABANDONED_DELETION = "abandoned-deletion"
    SUPERSEDED = "superseded"
    PARTITION_DELETION = "partition-deletion"


@dataclass(slots=True)
class KeyedContents:
    """The last value of each key of one metadata partition, up to `end_offset`: the result of
    compaction. A segment with several keys has the latest of their states."""

    end_offset: Offset
    newest: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)
    keys: dict[RemoteLogSegmentId, list[SegmentKey]] = field(default_factory=dict)
    deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = field(default_factory=dict)


class SegmentCleanup(NamedTuple):
    metadata: RemoteLogSegmentMetadata
    reason: LeftOver


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    tombstones: tuple[MetadataKey, ...] = ()
    segments: tuple[SegmentCleanup, ...] = ()
    partitions: tuple[TopicIdPartition, ...] = ()
    unknown: tuple[TopicIdPartition, ...] = ()


def read_keyed_contents(topic: MetadataTopic, number: int) -> KeyedContents:
    """Read one metadata partition, without records of level 0 and records that cannot be decoded.
    The broker's reader of the topic reports the latter."""
    last: dict[MetadataKey, RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata] = {}
    end_offset = 0
    for record in iterate_records(topic, number):
        # Not the end that the topic reports: a replica may be behind it.
        end_offset = record.offset + 1
        try:
            key, event = decode_record(record)
        except CorruptMetadataError:
            continue
        if key is None:
            continue
        # Removed first, so that the keys are in the order of their last records: of equal states
        # of a segment the later one counts below.
        last.pop(key, None)
        if isinstance(event, RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata):
            last[key] = event
    contents = KeyedContents(end_offset)
    for key, state in last.items():
        if isinstance(state, RemotePartitionDeleteMetadata):
            contents.deletions[state.topic_id_partition] = state
        elif isinstance(key, SegmentKey):
            newest = contents.newest.get(state.segment_id)
            # A late record of a deposed leader sets no segment back (docs/decisions/0026).
            if newest is None or newest.state <= state.state:
                contents.newest[state.segment_id] = state
            contents.keys.setdefault(state.segment_id, []).append(key)
    return contents


def plan_cleanup(
    contents: KeyedContents,
    *,
    exists: Callable[[TopicIdPartition], bool],
    in_progress: Collection[RemoteLogSegmentId],
    settled_before_ms: TimestampMs,
) -> CleanupPlan:
    """The plan for the leftovers of one metadata partition.

    `exists` says whether the cluster has a partition. Segments that are `in_progress` here, and
    states younger than `settled_before_ms`, are left alone.
    """
    gone = {
        segment_id
        for segment_id, state in contents.newest.items()
        if state.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        or _is_finished(contents.deletions.get(state.topic_id_partition))
    }
    live = [state for segment_id, state in contents.newest.items() if segment_id not in gone]
    absent = {
        segment.topic_id_partition for segment in live if not exists(segment.topic_id_partition)
    }
    removed = {
        partition
        for partition, deletion in contents.deletions.items()
        if not _is_finished(deletion) and not exists(partition)
    }
    leaders = _latest_uploads(live)
    settled = [
        segment
        for segment in live
        if segment.topic_id_partition not in removed | absent
        and segment.segment_id not in in_progress
    ]
    return CleanupPlan(
        tombstones=tuple(key for segment_id in gone for key in contents.keys[segment_id]),
        segments=tuple(
            SegmentCleanup(segment, reason)
            for segment in settled
            if (reason := _left_over(segment, leaders, settled_before_ms)) is not None
        ),
        partitions=tuple(sorted(removed, key=str)),
        unknown=tuple(sorted(absent - removed, key=str)),
    )


def _is_finished(deletion: RemotePartitionDeleteMetadata | None) -> bool:
    finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    return deletion is not None and deletion.state is finished


def _latest_uploads(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> dict[tuple[TopicIdPartition, Offset], RemoteLogSegmentMetadata]:
    """The finished upload of the latest leader, for each end offset."""
    latest: dict[tuple[TopicIdPartition, Offset], RemoteLogSegmentMetadata] = {}
    for segment in segments:
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            place = (segment.topic_id_partition, segment.end_offset_inclusive)
            other = latest.get(place)
            if other is None or other.broker_leader_epoch < segment.broker_leader_epoch:
                latest[place] = segment
    return latest


def _left_over(
    segment: RemoteLogSegmentMetadata,
    latest: dict[tuple[TopicIdPartition, Offset], RemoteLogSegmentMetadata],
    settled_before_ms: TimestampMs,
) -> LeftOver | None:
    if is_abandoned(segment, settled_before_ms):
        is_upload = segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        return LeftOver.ABANDONED_UPLOAD if is_upload else LeftOver.ABANDONED_DELETION
    other = latest.get((segment.topic_id_partition, segment.end_offset_inclusive))
    if other is not None and is_superseded(segment, other, settled_before_ms):
        return LeftOver.SUPERSEDED
    return None


SegmentCheck: TypeAlias = Callable[
    [RemoteLogSegmentMetadata, Sequence[RemoteLogSegmentMetadata]], bool
]


@dataclass(frozen=True, slots=True)
class TierCleanupTarget:
    """The remote tier of a broker, for the cleanup manager."""

    tier: RemoteTierAccess
    metadata: TopicBasedRemoteLogMetadataManager
    begin_deletion: Callable[[TopicIdPartition], Future[None]]
    leads: Callable[[TopicIdPartition], bool]
    keeps: Callable[[int], bool]
    is_alone: bool
    _running_deletions: dict[TopicIdPartition, Future[None]] = field(default_factory=dict)

    def exists(self, partition: TopicIdPartition) -> bool:
        """Whether the cluster has the partition."""
        return self.tier.leader_epoch_of(partition) is not None

    def is_keyed(self, number: int) -> bool:
        """Whether this metadata partition is at feature level 1."""
        return self.metadata.is_keyed(number)

    def settled(self, number: int) -> AbstractContextManager[object]:
        """A block in which nothing else is written to this metadata partition, and every audited
        event is applied. Raises RemoteStorageNotReadyError while that is impossible."""
        return self.metadata.settled(number)

    def watch_copies(self) -> AbstractContextManager[Collection[RemoteLogSegmentId]]:
        """The segments that are being copied at any moment until the end of the block."""
        return self.tier.copies.watch()

    def can_delete(self, partition: TopicIdPartition) -> bool:
        """Whether this broker leads the partition and has read all its stored events."""
        return self.leads(partition) and self.metadata.is_ready(partition)

    def is_keeper(self, number: int) -> bool:
        """Whether this broker, as the only one, cleans up this metadata partition."""
        return self.keeps(number)

    def is_only_writer(self) -> bool:
        """Whether no other broker writes to the metadata topic."""
        return self.is_alone

    def delete_segment(self, metadata: RemoteLogSegmentMetadata, still_due: SegmentCheck) -> bool:
        """Delete a segment: DELETE_SEGMENT_STARTED, objects, DELETE_SEGMENT_FINISHED, tombstones.

        Returns False without an effect if the segment's state differs from `metadata` by now, if it
        is being copied, or if `still_due` is false. `still_due` gets the segment and the live
        segments of its partition, under the write lock.
        """

        def is_due(current: RemoteLogSegmentMetadata) -> bool:
            live = self.metadata.list_remote_log_segments(current.topic_id_partition)
            if not self.leads(current.topic_id_partition):
                return False
            return not self.tier.copies.is_active(current.segment_id) and still_due(current, live)

        return self.tier.delete_segment(metadata, is_due)

    def delete_partition(self, partition: TopicIdPartition) -> None:
        """Start the deletion of a deleted topic's partition, in the background. Idempotent."""
        running = self._running_deletions
        for ended in [partition for partition, deletion in running.items() if deletion.done()]:
            del running[ended]
        if partition not in running:
            # Noted once it has begun: after an error of `begin_deletion` the next run tries again.
            running[partition] = self.begin_deletion(partition)


class RemoteMetadataCleanupManager:
    """Call `run` in one thread at a time."""

    def __init__(
        self,
        topic: ConditionalMetadataTopic,
        target: TierCleanupTarget,
        settings: TopicBasedSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._topic = topic
        self._target = target
        self._grace_ms = settings.remote_log_metadata_cleanup_grace_ms
        self._clock = clock
        self._metrics = metrics
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Begin no further deletion. Callable from any thread."""
        self._cancelled.set()

    def run(self) -> list[CleanupPlan]:
        """Check the whole topic once; returns the plans by metadata partition. Failures are logged
        and counted; the next run finds them again."""
        return [
            self._run(number)
            for number in range(self._topic.partition_count)
            if self._target.is_keyed(number) and not self._cancelled.is_set()
        ]

    def _run(self, number: int) -> CleanupPlan:
        settled_before_ms = self._clock.now_ms() - self._grace_ms
        with self._target.watch_copies() as copying:
            contents = read_keyed_contents(self._topic, number)
            plan = plan_cleanup(
                contents,
                exists=self._target.exists,
                in_progress=copying,
                settled_before_ms=settled_before_ms,
            )
        is_keeper = self._target.is_keeper(number)
        if self._target.is_only_writer():
            self._bury(number, plan.tombstones, contents.end_offset)
        for metadata, reason in plan.segments:
            # For each segment anew: a run takes long, and the leadership may move meanwhile.
            is_mine = self._target.can_delete(metadata.topic_id_partition)
            if is_mine and not self._cancelled.is_set():
                self._delete(metadata, reason, settled_before_ms)
        for partition in plan.partitions if is_keeper else ():
            _logger.info("deletion of a partition continues partition=%s", partition)
            self._target.delete_partition(partition)
            self._count(LeftOver.PARTITION_DELETION)
        for partition in plan.unknown:
            _logger.warning(
                "segments of a topic that this cluster does not know are kept partition=%s"
                " hint='was the cluster metadata lost? nothing says that the topic was deleted'",
                partition,
            )
        return plan

    def _bury(self, number: int, keys: Collection[MetadataKey], since: Offset) -> None:
        """Append tombstones, except for keys with a new record since they were read.

        Call it only on the only writer: the state of an event belongs where the partition ended
        when the event was decided, and a tombstone at that place would hide that the state is
        missing. With several brokers every tombstone is in one batch with its state, so that none
        gets lost.
        """
        if not keys:
            return
        with self._target.settled(number):
            end = self._topic.offsets(number)[1]
            recent = iterate_records(self._topic, number, start_offset=since, end_offset=end)
            touched = {record.key for record in recent}
            buried = [
                encoded for encoded in (key.encode() for key in keys) if encoded not in touched
            ]
            now_ms = self._clock.now_ms()
            for begin in range(0, len(buried), _TOMBSTONES_AT_ONCE):
                some = buried[begin : begin + _TOMBSTONES_AT_ONCE]
                records = [NewMetadataRecord(key, None, now_ms) for key in some]
                self._topic.append_at(number, end + begin, records)
                for _ in some:
                    self._count(LeftOver.LOST_TOMBSTONE)

    def _delete(
        self, metadata: RemoteLogSegmentMetadata, reason: LeftOver, settled_before_ms: TimestampMs
    ) -> None:
        def is_still_left_over(
            current: RemoteLogSegmentMetadata, live: Sequence[RemoteLogSegmentMetadata]
        ) -> bool:
            return _left_over(current, _latest_uploads(live), settled_before_ms) is reason

        try:
            if not self._target.delete_segment(metadata, is_still_left_over):
                return
        except (IsothermError, OSError) as error:
            log_failure(_logger, error, f"leftover is kept for now segment={metadata.segment_id}")
            self._metrics.counter(CLEANUP_ERRORS, CLEANUP_ERRORS_TEXT).inc()
            return
        _logger.info("leftover is deleted segment=%s reason=%s", metadata.segment_id, reason.value)
        self._count(reason)

    def _count(self, reason: LeftOver) -> None:
        self._metrics.counter(CLEANED, CLEANED_TEXT, ("reason",)).labels(reason=reason.value).inc()
