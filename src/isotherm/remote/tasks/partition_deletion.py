"""Deletes all remote segments of a partition that is no longer tiered.

If its topic is deleted, the deletion itself is recorded too, as in KIP-405:

    MARKED -> STARTED -> every segment deleted -> FINISHED, after which the partition is forgotten

DELETE_SEGMENT_STARTED of every segment is stored before the first object is deleted. So the objects
that an interruption leaves are known to be garbage. The deletion may be repeated after any failure.
It may take days, and a later process may resume it. If the topic exists, a segment is marked only
while the topic is not tiered again (docs/decisions/0035).
Source: Kafka RemoteLogManager.deleteRemoteLogPartition, which records no deletion of a partition.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from isotherm.errors import RemoteResourceNotFoundError, RemoteStorageNotReadyError
from isotherm.metrics.broker_topic_metrics import TopicMeter
from isotherm.remote.futures import done_future
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.remote.tasks.deletion_rules import is_deletion_begun, is_garbage_of_partition
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import TopicIdPartition

_logger = logging.getLogger(__name__)


def delete_remote_partition(tier: RemoteTierAccess, partition: TopicIdPartition) -> int:
    """Delete all segments of the partition; returns their number. Raises the first error; the
    segments without a finished deletion stay listed."""
    try:
        tier.metadata.list_remote_log_segments(partition)
    except RemoteResourceNotFoundError:
        return 0  # its deletion was finished by an earlier process
    if tier.leader_epoch_of(partition) is not None:
        return _delete_segments(tier, partition)
    for state in (
        RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
        RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
    ):
        tier.decided(partition, partial(_record_partition, tier, partition, state)).result()
    count = _delete_segments(tier, partition)
    # Read back without the write lock, which other user partitions of the metadata partition need.
    tier.decided(partition, partial(_finish, tier, partition)).result()
    return count


def _finish(tier: RemoteTierAccess, partition: TopicIdPartition) -> Future[None]:
    """Record DELETE_PARTITION_FINISHED. From here on no metadata names the objects, so none may be
    left."""
    left = tier.metadata.list_remote_log_segments(partition)
    if left:
        raise RemoteStorageNotReadyError(
            f"segments were added while their partition was deleted partition={partition}"
            f" count={len(left)}"
        )
    return _record_partition(tier, partition, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)


def _delete_segments(tier: RemoteTierAccess, partition: TopicIdPartition) -> int:
    # Exclusively, because everything stored is read first: no segment may be missed.
    listed = tier.decided(partition, lambda: tier.metadata.list_remote_log_segments(partition))
    garbage: list[RemoteLogSegmentMetadata] = []
    for segment in listed:
        # Decided one by one: to store thousands of events takes minutes, and the topic may be
        # tiered again meanwhile.
        marked = tier.decided(partition, partial(_mark_garbage, tier, segment))
        if marked is not None:
            marked.stored.result()
            garbage.append(marked.segment)
    if len(garbage) < len(listed):
        _logger.info(
            "remote segments are kept: they have changed, or the partition is tiered again"
            " partition=%s count=%d",
            partition,
            len(listed) - len(garbage),
        )
    for segment in garbage:
        tier.index_cache.remove([segment.segment_id])
        tier.metrics.mark(TopicMeter.REMOTE_DELETE_REQUESTS, partition.topic)
        tier.storage.delete_log_segment_data(segment)
    for segment in garbage:
        tier.publish(
            tier.update_of(
                segment, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, segment.custom_metadata
            )
        )
    return len(garbage)


class _Marked(NamedTuple):
    segment: RemoteLogSegmentMetadata
    stored: Future[None]


def _mark_garbage(tier: RemoteTierAccess, listed: RemoteLogSegmentMetadata) -> _Marked | None:
    """Record DELETE_SEGMENT_STARTED, unless the segment has it. None without an effect if it is no
    garbage any more: what is left is below the log start, and the leader's expiration task deletes
    it. Called under the write lock of the metadata.
    """
    current = tier.exclusive.segment(listed.segment_id)
    # Asked after the state is read: while it is not tiered again, no log relies on the segment.
    is_tiered = tier.is_tiered(listed.topic_id_partition)
    if current is None or not is_garbage_of_partition(current, listed, is_tiered=is_tiered):
        return None
    if is_deletion_begun(current):
        return _Marked(current, done_future())
    started = tier.update_of(
        current, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, current.custom_metadata
    )
    return _Marked(current, tier.metadata.update_remote_log_segment_metadata(started))


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
