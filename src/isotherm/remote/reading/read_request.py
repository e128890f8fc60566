"""The parameters of one read of the remote tier, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.history.lineage import first_recorded_offset
from isotherm.remote.reading.read_wait import NO_WAIT, ReadWait
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import Offset, Position, TopicIdPartition


class SegmentSpan(NamedTuple):
    """A segment's part of one epoch of the lineage, from an offset on."""

    metadata: RemoteLogSegmentMetadata
    end_offset: Offset


class ReadRequest(NamedTuple):
    """A read of the batches from the one that holds `offset` on, at most `max_bytes` bytes.

    If the first batch is larger, it is returned with `min_one_message`; otherwise the answer is
    empty. With NO_WAIT only bytes in memory are read. The offsets of `log` bound the read. The
    reader's look-up sets `lineage`, the leader epochs of `log` when the read begins, and `span`,
    where it begins. Source: Kafka RemoteStorageFetchInfo.
    """

    log: PartitionLog
    partition: TopicIdPartition
    offset: Offset
    max_bytes: int
    isolation: FetchIsolation
    min_one_message: bool
    wait: ReadWait = NO_WAIT
    lineage: Sequence[EpochEntry] = ()
    span: SegmentSpan | None = None

    @property
    def first_offset(self) -> Offset:
        """`offset`, or the log's first one with a record if `offset` lies in the log below it."""
        log_start_offset = self.log.log_start_offset
        if self.offset < log_start_offset:
            return self.offset
        return max(self.offset, first_recorded_offset(self.lineage, log_start_offset))


class RemoteRead(NamedTuple):
    """Whole batches, in adjacent pieces of memory. The first batch holds the requested offset, or
    the next offset that exists. `aborted_transactions` is None unless the read was
    TXN_COMMITTED."""

    records: tuple[memoryview, ...]
    size: int
    start_offset_segment_base: Offset
    position: Position
    log_start_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    aborted_transactions: list[AbortedTransaction] | None
