"""The remote tier of a broker, for compaction in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from isotherm.remote.compaction.finisher import Replaced
from isotherm.remote.metadata.api import ReplacesSegments
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.tasks.deletion_rules import may_be_replaced
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import TopicIdPartition


@dataclass(frozen=True, slots=True)
class TierReplacementTarget:
    """See `isotherm.remote.compaction.finisher.ReplacementTarget`.

    `leads` returns whether this broker leads a partition: only its leader replaces segments. A
    deposed leader may not know yet that it is deposed.
    """

    tier: RemoteTierAccess
    metadata: ReplacesSegments
    leads: Callable[[TopicIdPartition], bool]

    def serves(self, partition: TopicIdPartition) -> bool:
        return self.leads(partition) and self.metadata.is_ready(partition)

    def is_deleted(self, partition: TopicIdPartition) -> bool:
        is_gone = self.tier.leader_epoch_of(partition) is None
        return is_gone and self.metadata.is_partition_deleted(partition)

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        # Objects are deleted because of this answer: read every stored event first.
        with self.tier.exclusive.exclusively(segment_id.topic_id_partition):
            return self.metadata.segment(segment_id)

    def replace(self, old: RemoteLogSegmentId, compacted: RemoteLogSegmentMetadata) -> Replaced:
        def decide() -> Future[None] | Replaced:
            if self.metadata.segment(compacted.segment_id) is not None:
                return Replaced.BEFORE
            # Looked up by id, not by key: a later run may have put another segment under the key.
            if not may_be_replaced(self.metadata.segment(old)):
                return Replaced.NEVER
            return self.metadata.replace_remote_log_segment(compacted)

        outcome = self.tier.decided(compacted.topic_id_partition, decide)
        if isinstance(outcome, Replaced):
            return outcome
        outcome.result()
        return Replaced.NOW

    def forget_indexes(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        self.tier.index_cache.remove(segment_ids)
