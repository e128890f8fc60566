"""Checks a plug-in's metadata manager against the interface. The broker calls plug-ins through it.

A wrong answer can name the wrong segment to read or to delete, so every answer is compared with the
request. The plug-in's own errors become RemoteStorageError (isotherm.remote.plugin).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar, cast

from isotherm.clock import Clock
from isotherm.errors import (
    CorruptDataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableError,
)
from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.metadata.api import RemoteLogMetadataManager, ReplacesSegments
from isotherm.remote.plugin import PluginCalls, PluginKind, load_plugin
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

METADATA_MANAGER = PluginKind(
    "remote log metadata manager",
    "remote.log.metadata.manager.class.name",
    RemoteLogMetadataManager,
    frozenset({"predecessor"}),
)
_EXPECTED = (RetriableError, RemoteResourceNotFoundError, CorruptDataError)

WRITE_WAIT_S = 120.0
"""Longest time until an event is stored and visible: the default of
rlmm.config.remote.log.metadata.consume.wait.ms. After it, it is unknown whether the event was
stored."""

Answer = TypeVar("Answer")


def load_metadata_manager(class_name: str, config: Mapping[str, str]) -> RemoteLogMetadataManager:
    """Make the class that `remote.log.metadata.manager.class.name` names: its `from_config` gets
    the keys under `rlmm.config.`. Raises ConfigError if there is no such class, or if it is not a
    metadata manager."""
    return cast("RemoteLogMetadataManager", load_plugin(METADATA_MANAGER, class_name, config))


def checked_metadata(inner: RemoteLogMetadataManager, clock: Clock) -> CheckedMetadataManager:
    """Wrap `inner` in the checks. The result implements ReplacesSegments if `inner` does."""
    if isinstance(inner, ReplacesSegments):
        return _CheckedReplacingMetadataManager(inner, inner, clock)
    return CheckedMetadataManager(inner, clock)


class CheckedMetadataManager:
    """Implements isotherm.remote.metadata.api.RemoteLogMetadataManager; thread-safe."""

    def __init__(self, inner: RemoteLogMetadataManager, clock: Clock) -> None:
        self._inner = inner
        self._calls = PluginCalls(METADATA_MANAGER, inner, _EXPECTED, clock)

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> Future[None]:
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                "a segment is added in state COPY_SEGMENT_STARTED only"
                f" segment={metadata.segment_id} state={metadata.state.name}"
            )
        return self._stored(
            "add_remote_log_segment_metadata",
            metadata.segment_id,
            lambda: self._inner.add_remote_log_segment_metadata(metadata),
        )

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> Future[None]:
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                f"an update does not go to COPY_SEGMENT_STARTED segment={update.segment_id}"
            )
        return self._stored(
            "update_remote_log_segment_metadata",
            update.segment_id,
            lambda: self._inner.update_remote_log_segment_metadata(update),
        )

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> Future[None]:
        return self._stored(
            "put_remote_partition_delete_metadata",
            metadata.topic_id_partition,
            lambda: self._inner.put_remote_partition_delete_metadata(metadata),
        )

    def predecessor(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """See the interface. None if the plug-in lacks this method: its segments do not replace
        each other."""
        method, place = "predecessor", metadata.segment_id
        if not hasattr(self._inner, method):
            return None
        predecessor = self._calls.call(method, place, lambda: self._inner.predecessor(metadata))
        return self._segment(method, metadata.topic_id_partition, predecessor)

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        method = "remote_log_segment_metadata"
        segment = self._segment(
            method,
            partition,
            self._calls.call(
                method,
                partition,
                lambda: self._inner.remote_log_segment_metadata(partition, leader_epoch, offset),
            ),
        )
        is_right = segment is None or (
            segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and any(
                span.epoch == leader_epoch
                and span.start_offset <= offset <= span.end_offset_inclusive
                for span in epoch_spans(segment)
            )
        )
        expected = f"a finished segment with epoch {leader_epoch} and offset {offset}"
        self._calls.check(method, partition, expected, segment, is_right=is_right)
        return segment

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch
    ) -> Offset | None:
        method = "highest_offset_for_epoch"
        offset = self._calls.call(
            method,
            partition,
            lambda: self._inner.highest_offset_for_epoch(partition, leader_epoch),
        )
        is_right = offset is None or _is_whole(offset)
        self._calls.check(method, partition, "an offset or None", offset, is_right=is_right)
        return offset

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        method = "next_segment_with_txn_index"
        segment = self._segment(
            method,
            partition,
            self._calls.call(
                method,
                partition,
                lambda: self._inner.next_segment_with_txn_index(partition, leader_epoch, offset),
            ),
        )
        # If the plug-in returned an earlier segment, the caller would look up the same offset
        # again, for ever.
        is_right = segment is None or (
            segment.end_offset_inclusive >= offset and not segment.txn_index_empty
        )
        expected = f"a segment with a transaction index that ends at {offset} or later"
        self._calls.check(method, partition, expected, segment, is_right=is_right)
        return segment

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        method = "list_remote_log_segments"
        segments = self._calls.call(
            method,
            partition,
            lambda: list(self._inner.list_remote_log_segments(partition, leader_epoch)),
        )
        for segment in segments:
            self._calls.check(
                method, partition, "segments, not None", segment, is_right=segment is not None
            )
            self._segment(method, partition, segment)
        return sorted(segments, key=lambda segment: segment.start_offset)

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> int:
        method = "remote_log_size"
        size = self._calls.call(
            method, partition, lambda: self._inner.remote_log_size(partition, leader_epoch)
        )
        self._calls.check(method, partition, "bytes, 0 or more", size, is_right=_is_whole(size))
        return size

    def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        led, followed = list(leaders), list(followers)
        self._calls.call(
            "on_partition_leadership_changes",
            [*led, *followed],
            lambda: self._inner.on_partition_leadership_changes(led, followed),
        )

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        stopped = list(partitions)
        self._calls.call(
            "on_stop_partitions", stopped, lambda: self._inner.on_stop_partitions(stopped)
        )

    def is_ready(self, partition: TopicIdPartition) -> bool:
        method = "is_ready"
        answer = self._calls.call(method, partition, lambda: self._inner.is_ready(partition))
        is_right = isinstance(answer, bool)
        self._calls.check(method, partition, "True or False", answer, is_right=is_right)
        return answer

    def close(self) -> None:
        """Returns in bounded time, and raises nothing."""
        self._calls.close(self._inner.close)

    def _segment(self, method: str, partition: TopicIdPartition, answer: Answer) -> Answer:
        is_right = answer is None or (
            isinstance(answer, RemoteLogSegmentMetadata) and answer.topic_id_partition == partition
        )
        self._calls.check(
            method,
            partition,
            "RemoteLogSegmentMetadata of the partition",
            answer,
            is_right=is_right,
        )
        return answer

    def _stored(
        self, method: str, place: object, write: Callable[[], Future[None]]
    ) -> Future[None]:
        """Wrap the plug-in's future: it raises only errors of the interface, and has a timeout."""
        future = self._calls.call(method, place, write)
        self._calls.check(
            method, place, "Future", type(future), is_right=isinstance(future, Future)
        )
        stored = _StoredEvent(method, place)

        def settle(done: Future[None]) -> None:
            try:
                self._calls.call(method, place, done.result)
            except BaseException as error:  # noqa: BLE001 - raised to the thread that awaits the event
                stored.set_exception(error)
            else:
                stored.set_result(None)

        future.add_done_callback(settle)
        return stored


class _CheckedReplacingMetadataManager(CheckedMetadataManager):
    def __init__(
        self, inner: RemoteLogMetadataManager, replacing: ReplacesSegments, clock: Clock
    ) -> None:
        super().__init__(inner, clock)
        self._replacing = replacing

    def replace_remote_log_segment(self, compacted: RemoteLogSegmentMetadata) -> Future[None]:
        return self._stored(
            "replace_remote_log_segment",
            compacted.segment_id,
            lambda: self._replacing.replace_remote_log_segment(compacted),
        )

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        segment = self._calls.call(
            "segment", segment_id, lambda: self._replacing.segment(segment_id)
        )
        return self._segment("segment", segment_id.topic_id_partition, segment)

    def is_partition_deleted(self, partition: TopicIdPartition) -> bool:
        method = "is_partition_deleted"
        return bool(
            self._calls.call(
                method, partition, lambda: self._replacing.is_partition_deleted(partition)
            )
        )


class _StoredEvent(Future[None]):
    """A future whose `result` waits at most WRITE_WAIT_S if the caller sets no timeout."""

    def __init__(self, method: str, place: object) -> None:
        super().__init__()
        self._method = method
        self._place = place

    def result(self, timeout: float | None = None) -> None:
        try:
            return super().result(WRITE_WAIT_S if timeout is None else timeout)
        except TimeoutError as error:
            # A future that is done raised the plug-in's own TimeoutError.
            if timeout is not None or self.done():
                raise
            raise RemoteStorageError(
                "remote log metadata manager has not stored an event in time"
                f" method={self._method} place={self._place} timeout_s={WRITE_WAIT_S}"
            ) from error


def _is_whole(answer: object) -> bool:
    return isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0
