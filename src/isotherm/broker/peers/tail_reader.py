"""Passes on what lies behind the remote tier: a read replica fetches it from the leader for its
clients.

A fetch of a client becomes one fetch to each leader of its partitions, on a thread of its own: it
may wait for records as long as the client would. TAIL_FETCHES_MAX bounds the threads, and
TAIL_BYTES_MAX the bytes of each answer. The answer of the leader is passed on as it is. If there is
none, the client gets NOT_LEADER_OR_FOLLOWER: Java's consumer ends at each error that a broker does
not answer a fetch with, and the reason why a leader cannot be reached is one of these.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.clock import Clock
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.fetch import FetchPartitionResponse
from isotherm.remote.outages import Outages
from isotherm.types import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from isotherm.broker.peers.upstream_client import UpstreamClient
    from isotherm.client.cluster_client import ClusterClient

_logger = logging.getLogger(__name__)

TAIL_FETCHES_MAX = 64
TAIL_BYTES_MAX = 8 * 1024 * 1024
# Version 12 is the last one with names of topics in place of ids.
_VERSION, _FIRST_VERSION = 12, 4
_CONSUMER = -1
_NO_SESSION = -1


class TailRequest(NamedTuple):
    """A partition to read from its leader, from an offset behind the remote tier on."""

    place: TopicPartition
    leader: BrokerId
    offset: Offset
    max_bytes: int


class TailTerms(NamedTuple):
    """The terms of a client's fetch, as far as the leader keeps them."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int


class TailReader:
    """`read` is for the event loop thread."""

    def __init__(self, upstream: UpstreamClient, clock: Clock) -> None:
        # Imported on use: a broker starts without the client of another cluster.
        from isotherm.broker.peers.upstream_client import UpstreamPool

        self._upstream = upstream
        self._pool = UpstreamPool(upstream, "tail", TAIL_FETCHES_MAX)
        self._outages = Outages(
            _logger,
            clock,
            failing="leader does not answer fetches behind the remote tier broker={}",
            working="leader answers fetches behind the remote tier again broker={}",
        )

    async def read(
        self, requests: Sequence[TailRequest], terms: TailTerms
    ) -> list[FetchPartitionResponse]:
        """The leaders' answers, in the order of `requests`. A leader that does not answer is an
        error of its partitions that the client retries."""
        by_leader: dict[BrokerId, list[TailRequest]] = defaultdict(list)
        for request in requests:
            by_leader[request.leader].append(request)
        parts = await asyncio.gather(
            *(self._fetch(leader, of_leader, terms) for leader, of_leader in by_leader.items())
        )
        answers = {place: answer for part in parts for place, answer in part.items()}
        return [answers.get(request.place) or _unanswered(request) for request in requests]

    def close(self) -> None:
        """End the fetches that wait."""
        self._pool.close()

    async def _fetch(
        self, leader: BrokerId, requests: Sequence[TailRequest], terms: TailTerms
    ) -> dict[TopicPartition, FetchPartitionResponse]:
        address = self._upstream.addresses.get(leader)
        if address is None:
            return {request.place: _unanswered(request) for request in requests}
        by_topic: dict[str, list[dict[str, int]]] = defaultdict(list)
        for request in requests:
            by_topic[request.place.topic].append(
                {
                    "partition": request.place.partition,
                    "fetch_offset": request.offset,
                    "partition_max_bytes": request.max_bytes,
                }
            )
        fields = {
            "replica_id": _CONSUMER,
            "max_wait": datetime.timedelta(milliseconds=terms.max_wait_ms),
            "min_bytes": terms.min_bytes,
            "max_bytes": min(terms.max_bytes, TAIL_BYTES_MAX),
            "isolation_level": terms.isolation_level,
            "session_epoch": _NO_SESSION,
            "topics": [{"topic": name, "partitions": fields} for name, fields in by_topic.items()],
            "forgotten_topics_data": (),
            "rack_id": "",
        }

        def ask(client: ClusterClient) -> Any:
            return client.ask(address, ApiKey.FETCH, fields, newest=_VERSION, oldest=_FIRST_VERSION)

        try:
            answer = await self._pool.run(ask)
        except IsothermError as error:
            self._outages.failed(leader, error)
            return {request.place: _unanswered(request) for request in requests}
        self._outages.worked(leader)
        return {
            TopicPartition(str(topic.topic), int(partition.partition_index)): _passed_on(partition)
            for topic in answer.responses
            for partition in topic.partitions
        }


def _passed_on(partition: Any) -> FetchPartitionResponse:
    records = partition.records
    aborted = partition.aborted_transactions
    return FetchPartitionResponse(
        int(partition.partition_index),
        partition.error_code,
        int(partition.high_watermark),
        int(partition.last_stable_offset),
        int(getattr(partition, "log_start_offset", -1)),
        None
        if aborted is None
        else [
            (int(transaction.producer_id), int(transaction.first_offset)) for transaction in aborted
        ],
        (memoryview(records),) if records else (),
    )


def _unanswered(request: TailRequest) -> FetchPartitionResponse:
    return FetchPartitionResponse(
        request.place.partition, error_code=ErrorCode.not_leader_or_follower
    )
