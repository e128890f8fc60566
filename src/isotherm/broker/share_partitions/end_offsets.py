"""The ends of partitions that this broker or another one leads, for the lag of share groups.

A leader that is lost before its answer, or silent, is asked again after BACKOFFS_S, as in Kafka; if
another broker leads by then, that one is.

Versions  ListOffsets 10.
Source: Kafka NetworkPartitionMetadataClient.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.peers.leader_requests import leader_endpoint
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.share_partitions.backoff import is_stopped_within
from isotherm.broker.shared_futures import results_of
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import (
    IsothermError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    PeerDisconnectedError,
    PeerTimeoutError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.types import Offset, TopicPartition

QUEUED_PARTITIONS_MAX = 10_000  # per broker; the lag of a partition above the limit is not told
PARTITIONS_TOGETHER_MAX = 1000
LIST_OFFSETS_VERSION = 10
BACKOFFS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_LATEST = -1
_ERRORS: dict[ErrorCode, type[IsothermError]] = {
    ErrorCode.not_leader_or_follower: NotLeaderOrFollowerError,
    ErrorCode.offset_not_available: OffsetNotAvailableError,
    ErrorCode.unknown_topic_or_partition: UnknownTopicOrPartitionError,
}

EndOffset: TypeAlias = "Offset | IsothermError"


class EndOffsets:
    """Event loop thread only."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replica_manager: ReplicaManager,
        batches: PeerBatches[TopicPartition, EndOffset] | None = None,
        listener_name: str = "",
        backoffs_s: Sequence[float] = BACKOFFS_S,
    ) -> None:
        """Without `batches` this broker leads every partition."""
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._batches = batches
        self._listener_name = listener_name
        self._backoffs_s = backoffs_s
        self._stopped = asyncio.Event()

    async def stop(self) -> None:
        """Fail what waits, and close the connections."""
        self._stopped.set()
        if self._batches is not None:
            await self._batches.stop()

    async def find(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, EndOffset]:
        """The high watermark of each partition, or the error of its leader or of the way to it."""
        ends = await self._attempt(partitions)
        for backoff_s in self._backoffs_s:
            lost = [
                partition
                for partition, end in ends.items()
                if isinstance(end, PeerDisconnectedError | PeerTimeoutError)
            ]
            if not lost or await is_stopped_within(self._stopped, backoff_s):
                break
            ends.update(await self._attempt(lost))
        return ends

    async def _attempt(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EndOffset]:
        ends: dict[TopicPartition, EndOffset] = {}
        sent: dict[TopicPartition, asyncio.Future[EndOffset]] = {}
        for partition in partitions:
            try:
                answer = self._ask(partition)
            except IsothermError as error:
                ends[partition] = error
                continue
            if isinstance(answer, asyncio.Future):
                sent[partition] = answer
            else:
                ends[partition] = answer
        return ends | await results_of(sent)

    def _ask(self, partition: TopicPartition) -> Offset | asyncio.Future[EndOffset]:
        """Raises what `find_partition`, `check_is_leader` and `leader_endpoint` raise."""
        if self._batches is not None:
            leader, endpoint = leader_endpoint(self._metadata.image, partition, self._listener_name)
            if leader != self._metadata.broker_config.node_id:
                address = NodeAddress(endpoint.host, endpoint.port)
                return self._batches.submit(leader, address, partition)
        led = self._replica_manager.find_partition(partition.topic, None, partition.partition)
        led.check_is_leader()
        return led.log.high_watermark


def ask_end_offsets(
    connection: NodeConnection, partitions: Sequence[TopicPartition]
) -> list[EndOffset]:
    """Send one ListOffsets request, and return the end of each partition, in order. Blocks.

    Raises PeerDisconnectedError or PeerTimeoutError.
    """
    # A partition that is asked about twice at once is named once, or the broker would refuse it.
    topics: dict[str, list[int]] = {}
    for topic, index in dict.fromkeys(partitions):
        topics.setdefault(topic, []).append(index)
    response = connection.send(
        entity_of(
            request_class(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION),
            {
                "replica_id": -1,
                "isolation_level": 0,
                # The end is in memory; the leader's own time-out is for searches.
                "timeout": datetime.timedelta(),
                "topics": [
                    {
                        "name": name,
                        "partitions": [
                            {
                                "partition_index": index,
                                "current_leader_epoch": -1,
                                "timestamp": _LATEST,
                            }
                            for index in indexes
                        ],
                    }
                    for name, indexes in topics.items()
                ],
            },
        )
    )
    ends = {
        TopicPartition(topic.name, entry.partition_index): _end(topic.name, entry)
        for topic in response.topics
        for entry in topic.partitions
    }
    unanswered = UnknownTopicOrPartitionError("the leader does not answer for the partition")
    return [ends.get(partition, unanswered) for partition in partitions]


def _end(topic: str, entry: Any) -> EndOffset:
    code: ErrorCode = entry.error_code
    if code is ErrorCode.none:
        return Offset(entry.offset)
    return _ERRORS.get(code, IsothermError)(
        f"the leader does not tell the partition's end error={code_name(code)}"
        f" partition={topic}-{entry.partition_index}"
    )
