"""Deletes all remote segments of a partition that is no longer tiered.

If its topic is deleted, the deletion itself is recorded too, as in KIP-405:

    MARKED -> STARTED -> every segment deleted -> FINISHED, after which the partition is forgotten

DELETE_SEGMENT_STARTED of every segment is stored before the first object is deleted. So the objects
that an interruption leaves are known to be garbage. The deletion may be repeated after any failure.
It may take days, and a later process may resume it. If the topic exists, it is carried out only
while the topic is not tiered again (docs/decisions/0035).
Source: Kafka RemoteLogManager.deleteRemoteLogPartition, which records no deletion of a partition.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial

from isotherm.errors import RemoteResourceNotFoundError, RemoteStorageNotReadyError
from isotherm.metrics.broker_topic_metrics import TopicMeter
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import TopicIdPartition

_logger = logging.getLogger(__name__)

_EVENTS_AT_ONCE = 1000
"""Most events in flight, far below remote.log.metadata.pending.writes.max."""


def delete_remote_partition(tier: RemoteTierAccess, partition: TopicIdPartition) -> int:
    """Delete all segments of the partition; returns their number. Raises the first error; the
    segments without a finished deletion stay listed."""
    try:
        tier.metadata.list_remote_log_segments(partition)
    except RemoteResourceNotFoundError:
        return 0  # its deletion was finished by an earlier process
    if tier.leader_epoch_of(partition) is not None:
        return _delete_segments(tier, partition)
    _record_partition(tier, partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED).result()
    _record_partition(tier, partition, RemotePartitionDeleteState.DELETE_PARTITION_STARTED).result()
    count = _delete_segments(tier, partition)
    with tier.exclusive.exclusively(partition):
        # From here on no metadata names the objects, so none may be left.
        left = tier.metadata.list_remote_log_segments(partition)
        if left:
            raise RemoteStorageNotReadyError(
                f"segments were added while their partition was deleted partition={partition}"
                f" count={len(left)}"
            )
        finished = _record_partition(
            tier, partition, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        )
    # Read back without the write lock, which other user partitions of the metadata partition need.
    finished.result()
    return count


def _delete_segments(tier: RemoteTierAccess, partition: TopicIdPartition) -> int:
    segments = tier.decided(partition, partial(_garbage, tier, partition))
    undeleted = [
        segment
        for segment in segments
        if segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    ]
    _publish_all(tier, undeleted, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    for segment in segments:
        tier.index_cache.remove([segment.segment_id])
        tier.metrics.mark(TopicMeter.REMOTE_DELETE_REQUESTS, partition.topic)
        tier.storage.delete_log_segment_data(segment)
    _publish_all(tier, segments, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    return len(segments)


def _garbage(tier: RemoteTierAccess, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    """The segments of the partition; if it is tiered again, only those whose deletion has begun.

    Another broker may lead it by then and copy, and its log may rely on the copies. What is left is
    below the log start, and the leader's expiration task deletes it. Called under the write lock of
    the metadata.
    """
    segments = tier.metadata.list_remote_log_segments(partition)
    # Asked after the segments are listed: while it is not tiered again, none of them is such a copy.
    if not tier.is_tiered(partition):
        return segments
    _logger.info("remote segments are kept, the partition is tiered again partition=%s", partition)
    return [
        segment
        for segment in segments
        if segment.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    ]


def _record_partition(
    tier: RemoteTierAccess, partition: TopicIdPartition, state: RemotePartitionDeleteState
) -> Future[None]:
    return tier.metadata.put_remote_partition_delete_metadata(
        RemotePartitionDeleteMetadata(
            topic_id_partition=partition,
            state=state,
            event_timestamp_ms=tier.clock.now_ms(),
            broker_id=tier.broker_id,
            broker_leader_epoch=tier.broker_leader_epoch(partition),
        )
    )


def _publish_all(
    tier: RemoteTierAccess,
    segments: list[RemoteLogSegmentMetadata],
    state: RemoteLogSegmentState,
) -> None:
    for begin in range(0, len(segments), _EVENTS_AT_ONCE):
        stored = [
            tier.metadata.update_remote_log_segment_metadata(
                tier.update_of(segment, state, segment.custom_metadata)
            )
            for segment in segments[begin : begin + _EVENTS_AT_ONCE]
        ]
        for each in stored:
            each.result()
