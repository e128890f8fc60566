"""Sends requests to the leaders of partitions in this cluster. Blocking, for threads.

Each request takes the leader and its address from the current metadata image. If the leader has
moved, the request fails, and the caller retries later with a newer image.
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_security import PLAINTEXT, NodeSecurity
from isotherm.client.shared_connections import SharedConnections
from isotherm.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from isotherm.types import BrokerId, TopicPartition


def partition_image(image: MetadataImage, topic_partition: TopicPartition) -> PartitionImage:
    """The partition in the image. Raises UnknownTopicOrPartitionError."""
    topic = image.topics_by_name.get(topic_partition.topic)
    if topic is None or topic_partition.partition >= len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"no such partition partition={topic_partition}")
    return topic.partitions[topic_partition.partition]


def leader_endpoint(
    image: MetadataImage, topic_partition: TopicPartition, listener_name: str
) -> tuple[BrokerId, Endpoint]:
    """The leader and its endpoint.

    Raises NotLeaderOrFollowerError if there is no leader with an endpoint.
    """
    leader = partition_image(image, topic_partition).leader
    broker = image.brokers.get(leader) if leader != NO_LEADER else None
    endpoint = broker.endpoint(listener_name) if broker is not None else None
    if endpoint is None:
        raise NotLeaderOrFollowerError(
            f"no leader can be reached partition={topic_partition} leader={leader}"
            f" listener={listener_name}"
        )
    return leader, endpoint


class LeaderRequests:
    """One connection per broker. Thread-safe; requests to the same broker wait for each other."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        listener_name: str,
        *,
        client_id: str,
        request_timeout_s: float,
        security: NodeSecurity = PLAINTEXT,
    ) -> None:
        self._metadata = metadata
        self._listener_name = listener_name
        self._connections = SharedConnections[BrokerId](
            client_id=client_id, request_timeout_s=request_timeout_s, security=security
        )

    def send(self, topic_partition: TopicPartition, request: Any) -> Any:
        """The leader's response.

        Raises UnknownTopicOrPartitionError, NotLeaderOrFollowerError while there is no leader, and
        what `NodeConnection.send` raises.
        """
        leader, endpoint = leader_endpoint(
            self._metadata.image, topic_partition, self._listener_name
        )
        shared = self._connections.to(leader, NodeAddress(endpoint.host, endpoint.port))
        with shared.lock:
            return shared.connection.send(request)

    def close(self) -> None:
        """End the requests in flight, and refuse later ones, with PeerDisconnectedError."""
        self._connections.close()
