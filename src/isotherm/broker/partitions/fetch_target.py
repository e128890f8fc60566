"""One partition of a fetch: the request for it, its `Partition`, its last read, and the client's
knowledge of it.

A request without a session makes targets of its own. A session keeps its targets, so each partition
is looked up once and then used until it is gone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.protocol.fetch import NO_REPLICA, FetchPartition, FetchPartitionResponse
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset

if TYPE_CHECKING:
    from isotherm.broker.partitions.partition import Partition
    from isotherm.broker.partitions.partition_waits import PartitionWatcher
    from isotherm.metrics.broker_traffic import TopicTraffic


class PartitionKey(NamedTuple):
    """A partition as the request names it: by topic name, or by topic id from version 13 on."""

    name: str | None
    topic_id: uuid.UUID | None
    partition: int


@dataclass(slots=True, eq=False)
class FetchTarget:
    """Event loop thread only.

    - `error`: the reason if `partition` is None.
    - `order`: the place in the session; the lowest is read first.
    - `leader_epoch`, `size_before`: the partition's leader epoch and its counter of readable bytes,
      before the last read.
    - `read_size`, `hidden_from`: the bytes of the last read, and the offset from which open
      transactions hid records from it.
    - `high_watermark`, `log_start_offset`: the values that the client knows.
    """

    key: PartitionKey
    request: FetchPartition
    session: PartitionWatcher | None = None
    order: int = 0
    partition: Partition | None = None
    traffic: TopicTraffic | None = None
    error: ErrorCode = ErrorCode.none
    size_before: int = 0
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    read_size: int = 0
    hidden_from: Offset | None = None
    high_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET

    def find(self, partition: Partition, traffic: TopicTraffic) -> None:
        """Set the partition that was found. From now on it marks its changes for the session."""
        if self.partition is not None:
            self.leave()
        self.partition, self.traffic, self.error = partition, traffic, ErrorCode.none
        if self.session is not None:
            partition.waits.watch(self, self.session)

    def lose(self, error: ErrorCode) -> None:
        """Record why this broker cannot serve the partition to the client.

        It is looked up before each read.
        """
        self.leave()
        self.error = error

    def join(self, session: PartitionWatcher, order: int) -> None:
        self.session, self.order = session, order
        if self.partition is not None:
            self.partition.waits.watch(self, session)

    def leave(self) -> None:
        """Drop the partition; it no longer marks its changes for the session."""
        if self.partition is not None:
            self.partition.waits.unwatch(self)
        self.partition = self.traffic = None

    def note_response(self, response: FetchPartitionResponse) -> bool:
        """Record the response as known to the client; returns whether it has news for the client.

        After an error or a diverging epoch, the next successful response counts as news in any
        case.
        """
        is_special = bool(response.error_code) or response.diverging_epoch is not None
        is_news = (
            is_special
            or response.preferred_read_replica != NO_REPLICA
            or any(map(len, response.records))
            or response.high_watermark != self.high_watermark
            or response.log_start_offset != self.log_start_offset
        )
        self.high_watermark = UNKNOWN_OFFSET if is_special else response.high_watermark
        self.log_start_offset = response.log_start_offset
        return is_news
