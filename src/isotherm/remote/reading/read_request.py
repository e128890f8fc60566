"""What one read of the remote tier asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.reading.read_wait import NO_WAIT, ReadWait
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import Offset, TopicIdPartition


class ReadRequest(NamedTuple):
    """Batches from the one that holds `offset` on, at most `max_bytes` of them.

    The first batch is returned even when it is larger, if `min_one_message`; else the answer is
    empty. Without a `wait` only what is in memory is read. `log` is the partition's: its bounds decide
    what counts, and its leader epochs when the read begins, `lineage`, which the reader sets. Source:
    Kafka RemoteStorageFetchInfo.
    """

    log: PartitionLog
    partition: TopicIdPartition
    offset: Offset
    max_bytes: int
    isolation: FetchIsolation
    min_one_message: bool
    wait: ReadWait = NO_WAIT
    lineage: Sequence[EpochEntry] = ()
