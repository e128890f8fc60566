"""The part of a partition that the remote tier holds, as its last segment describes it.

Each copy has the leader epochs of its log up to its end, and the producers there (Kafka's
RemoteLogSegment, TierStateMachine). So the last segment alone says what a log has to know that
begins where the tier ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isotherm.remote.history.lineage import checkpoint_of_copy, remote_log_start_offset
from isotherm.remote.metadata.state.cached_reads import CachedReads
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.leader_epochs import without_empty_epochs
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition


class TieredHistory(NamedTuple):
    """The history [log_start_offset, end_offset) of a partition in the remote tier.

    `leader_epochs` are its lineage, `producers` the state of the producers at its end. A
    transaction that is open there may have ended behind the tier.
    """

    log_start_offset: Offset
    end_offset: Offset
    leader_epochs: tuple[EpochEntry, ...]
    producers: tuple[ProducerSnapshotEntry, ...]


def read_history(
    partition: TopicIdPartition,
    last: RemoteLogSegmentMetadata,
    metadata: CachedReads,
    storage: RemoteStorageManager,
) -> TieredHistory:
    """The history that ends with the segment `last`.

    Reads two small objects of the store. Raises CorruptDataError if they are damaged, and what the
    two managers raise while they cannot answer.
    """
    checkpoint = checkpoint_of_copy(last, bytes(storage.fetch_index(last, IndexType.LEADER_EPOCH)))
    end = last.end_offset_inclusive + 1
    # A checkpoint may have epochs that start behind the segment. They have no record in it.
    epochs = [entry for entry in checkpoint if entry.start_offset < end]
    producers = read_producer_snapshot(
        bytes(storage.fetch_index(last, IndexType.PRODUCER_SNAPSHOT))
    )

    def first_of(epoch: LeaderEpoch) -> Sequence[RemoteLogSegmentMetadata]:
        # Not all: a partition may have a hundred thousand.
        first = metadata.first_finished_segment(partition, epoch)
        return () if first is None else (first,)

    start = remote_log_start_offset(without_empty_epochs(epochs), end, first_of)
    return TieredHistory(start, end, tuple(epochs), tuple(producers))
