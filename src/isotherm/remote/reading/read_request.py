"""The parameters of one read of the remote tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.reading.read_wait import NO_WAIT, ReadWait
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import Offset, TopicIdPartition


class ReadRequest(NamedTuple):
    """A read of the batches from the one that holds `offset` on, at most `max_bytes` bytes.

    If the first batch is larger, it is returned with `min_one_message`; otherwise the answer is
    empty. With NO_WAIT only bytes in memory are read. The offsets of `log` bound the read. The
    reader sets `lineage`, the leader epochs of `log` when the read begins. Source: Kafka
    RemoteStorageFetchInfo.
    """

    log: PartitionLog
    partition: TopicIdPartition
    offset: Offset
    max_bytes: int
    isolation: FetchIsolation
    min_one_message: bool
    wait: ReadWait = NO_WAIT
    lineage: Sequence[EpochEntry] = ()
