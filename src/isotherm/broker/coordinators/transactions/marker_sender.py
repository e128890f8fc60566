"""Sends markers to the leaders of partitions on other brokers (WriteTxnMarkers).

Behaviour
- The leader is looked up for every attempt, so a retried marker goes to the new leader.
- Requests have version 2, which has the client's transaction version (brokers of Kafka 4.2 and
  later).
- A marker is retried if the broker does not answer for its partition.
Source: Kafka TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_endings import (
    SETTLED,
    EndMarker,
    MarkerOutcome,
    MarkerResult,
    MarkerWriter,
)
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.types import TopicPartition

QUEUED_MARKERS_MAX = 10_000  # per broker; a marker above the limit is retried after a back-off
MARKERS_PER_REQUEST_MAX = 1000
WRITE_TXN_MARKERS_VERSION = 2

# The marker is written, not needed any more, or impossible in the partition.
_SETTLED_CODES = frozenset(
    {
        ErrorCode.none,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
    }
)


class _Sent(NamedTuple):
    marker: EndMarker
    topic_partition: TopicPartition


class MarkerSender:
    """A `MarkerWriter` for the partitions of all brokers. Markers for this broker's own partitions
    go to `local`.

    Event loop thread only.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        local: MarkerWriter,
        batches: PeerBatches[Any, MarkerOutcome],
        listener_name: str,
    ) -> None:
        """`listener_name` is the inter-broker listener."""
        self._metadata = metadata
        self._local = local
        self._batches = batches
        self._listener_name = listener_name

    def write(
        self, marker: EndMarker, topic_partition: TopicPartition
    ) -> MarkerOutcome | asyncio.Future[MarkerOutcome]:
        image = self._metadata.image
        topic = image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            # The records of a deleted topic are gone, so there is nothing to mark.
            return SETTLED
        leader = topic.partitions[topic_partition.partition].leader
        if leader == self._metadata.broker_config.node_id:
            return self._local.write(marker, topic_partition)
        broker = image.brokers.get(leader) if leader != NO_LEADER else None
        endpoint = broker.endpoint(self._listener_name) if broker is not None else None
        if endpoint is None:
            return MarkerOutcome(
                MarkerResult.RETRY, f"the partition's leader cannot be reached leader={leader}"
            )
        address = NodeAddress(endpoint.host, endpoint.port)
        sent = self._batches.submit(leader, address, _Sent(marker, topic_partition))
        return asyncio.ensure_future(_outcome(sent))


async def _outcome(sent: asyncio.Future[MarkerOutcome]) -> MarkerOutcome:
    try:
        return await sent
    except IsothermError as error:
        return MarkerOutcome(MarkerResult.RETRY, str(error))


def send_markers(connection: NodeConnection, sent: Sequence[_Sent]) -> list[MarkerOutcome]:
    """Send one WriteTxnMarkers request; returns the outcome of each marker, in order. Blocks.

    Raises PeerDisconnectedError or PeerTimeoutError.
    """
    response = connection.send(write_txn_markers_request(sent))
    codes = {
        (result.producer_id, TopicPartition(topic.name, partition.partition_index)): (
            partition.error_code
        )
        for result in response.markers
        for topic in result.topics
        for partition in topic.partitions
    }
    return [
        outcome_of_code(codes.get((marker.producer.producer_id, topic_partition)))
        for marker, topic_partition in sent
    ]


def write_txn_markers_request(sent: Sequence[_Sent]) -> Any:
    by_marker: dict[EndMarker, dict[str, list[int]]] = {}
    for marker, (topic, index) in sent:
        by_marker.setdefault(marker, {}).setdefault(topic, []).append(index)
    return entity_of(
        request_class(ApiKey.WRITE_TXN_MARKERS, WRITE_TXN_MARKERS_VERSION),
        {
            "markers": [
                {
                    "producer_id": marker.producer.producer_id,
                    "producer_epoch": marker.producer.epoch,
                    "transaction_result": marker.commit,
                    "topics": [
                        {"name": name, "partition_indexes": tuple(indexes)}
                        for name, indexes in topics.items()
                    ],
                    "coordinator_epoch": marker.coordinator_epoch,
                    "transaction_version": marker.transaction_version,
                }
                for marker, topics in by_marker.items()
            ]
        },
    )


def outcome_of_code(code: ErrorCode | None) -> MarkerOutcome:
    """The outcome of a leader's answer. `code` is None if it did not answer for the partition."""
    if code is ErrorCode.none:
        return SETTLED
    if code is None:
        return MarkerOutcome(MarkerResult.RETRY, "the leader did not answer for the partition")
    if code in _SETTLED_CODES:
        return MarkerOutcome(MarkerResult.SETTLED, code_name(code))
    if code is ErrorCode.transaction_coordinator_fenced:
        return MarkerOutcome(MarkerResult.FENCED, code_name(code))
    return MarkerOutcome(MarkerResult.RETRY, code_name(code))
