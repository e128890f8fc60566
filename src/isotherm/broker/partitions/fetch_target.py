"""One partition of a fetch: what is asked of it, where it is, what was last read and told of it.

A request without a session has its targets for itself. Those of a session stay, so a partition is found
once, and asked for by its session's clients until it is gone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.protocol.fetch import NO_REPLICA, FetchPartition, FetchPartitionResponse
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset

if TYPE_CHECKING:
    from isotherm.broker.partitions.partition import Partition, PartitionWatcher
    from isotherm.metrics.broker_traffic import TopicTraffic


class PartitionKey(NamedTuple):
    """Name of the topic, or its id from version 13 on, as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partition: int


@dataclass(slots=True, eq=False)
class FetchTarget:
    """Event loop thread only.

    Without a `partition`, `error` says why. `order` is the place in its session: the lowest is read
    first. `size_before` and `leader_epoch` are the partition's as of its last read (`size_before`: the
    counter of what the reader may read), `read_size` the size of that, and `hidden_from` the offset
    from which open transactions hid records. `high_watermark` and `log_start_offset` are what the
    client was told.
    """

    key: PartitionKey
    asked: FetchPartition
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
        """It is there. A session learns of its changes from now on."""
        if self.partition is not None:
            self.leave()
        self.partition, self.traffic, self.error = partition, traffic, ErrorCode.none
        if self.session is not None:
            partition.watch(self, self.session)

    def lose(self, error: ErrorCode) -> None:
        """It is not there, or not for this client. It is looked for again before each read."""
        self.leave()
        self.error = error

    def join(self, session: PartitionWatcher, order: int) -> None:
        self.session, self.order = session, order
        if self.partition is not None:
            self.partition.watch(self, session)

    def leave(self) -> None:
        """No session learns of its changes any more."""
        if self.partition is not None:
            self.partition.unwatch(self)
        self.partition = self.traffic = None

    def note_response(self, response: FetchPartitionResponse) -> bool:
        """Whether the client needs this response. It is recorded as known to the client.

        After an error or a divergence the next successful response is needed in any case.
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
