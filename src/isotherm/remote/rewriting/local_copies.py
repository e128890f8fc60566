"""A replica's local copies of records that an erasure has removed from the bucket.

A tiered log keeps a segment on the local disk for a while after it was copied. The local copy has
the erased records still, so the broker deletes it once the new segment answers: local segments that
begin below the end of the last replaced one, as far as finished remote segments hold their records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isotherm.clock import Clock
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.types import BrokerId, Offset, TopicIdPartition

if TYPE_CHECKING:
    from isotherm.log.partition_log import PartitionLog

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """`log_of` returns the log of a tiered partition that this broker leads or follows,
    `replicas_of` the brokers with a replica of it. `forget_range` drops what is read ahead of a
    segment."""

    broker_id: BrokerId
    log_of: Callable[[TopicIdPartition], PartitionLog | None]
    replicas_of: Callable[[TopicIdPartition], frozenset[BrokerId]]
    forget_range: Callable[[RemoteLogSegmentId], None]
    clock: Clock

    def has_replica(self, partition: TopicIdPartition) -> bool:
        return self.log_of(partition) is not None

    def forget_ranges(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        for segment_id in segment_ids:
            self.forget_range(segment_id)

    def drop(self, partition: TopicIdPartition, end_offset: Offset) -> bool:
        """Delete the local segments with offsets below `end_offset`. Returns whether no file of
        them is left: files stay for file.delete.delay.ms, and a segment that is not in the bucket
        yet stays until it is."""
        log = self.log_of(partition)
        if log is None:
            return False
        deleted = log.delete_old_segments(self.clock.now_ms(), erased_end_offset=end_offset)
        if deleted:
            _logger.info(
                "local copies of erased records are dropped partition=%s end_offset=%d segments=%d"
                " bytes=%d",
                partition,
                end_offset,
                len(deleted),
                sum(segment.size for segment in deleted),
            )
        log.delete_marked_files(self.clock.now_ms())
        return not log.has_files_below(end_offset)
