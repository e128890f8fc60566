"""The requests about share groups to other brokers: states of share partitions, and ends of
partitions."""

from __future__ import annotations

from typing import NamedTuple

from isotherm.broker.coordinators.coordinator_elections import connector
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.share_partitions.end_offsets import (
    PARTITIONS_TOGETHER_MAX,
    QUEUED_PARTITIONS_MAX,
    EndOffset,
    EndOffsets,
    ask_end_offsets,
)
from isotherm.broker.share_partitions.persister import (
    QUEUED_REQUESTS_MAX,
    REQUESTS_TOGETHER_MAX,
    Persister,
    StateBatches,
    send_state_requests,
)
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.types import TopicPartition


class SharePeers(NamedTuple):
    persister: Persister
    end_offsets: EndOffsets

    async def stop(self) -> None:
        """Fail what waits, and stop sending requests to other brokers."""
        await self.persister.stop()
        await self.end_offsets.stop()


def no_share_peers(
    metadata: ClusterMetadata, shares: ShareCoordinator, replica_manager: ReplicaManager
) -> SharePeers:
    """Without other brokers this one coordinates and leads everything."""
    return SharePeers(Persister(metadata, shares), EndOffsets(metadata, replica_manager))


def open_share_peers(
    config: BrokerConfig,
    metadata: ClusterMetadata,
    shares: ShareCoordinator,
    replica_manager: ReplicaManager,
    listener_name: str,
    clock: Clock,
) -> SharePeers:
    """The requests of a cluster member to other brokers, at their listener between brokers."""
    states: StateBatches = PeerBatches(
        "share-state",
        connector(config, "share-state"),
        send_state_requests,
        clock,
        queued_max=QUEUED_REQUESTS_MAX,
        batch_max=REQUESTS_TOGETHER_MAX,
    )
    ends: PeerBatches[TopicPartition, EndOffset] = PeerBatches(
        "end-offsets",
        connector(config, "end-offsets"),
        ask_end_offsets,
        clock,
        queued_max=QUEUED_PARTITIONS_MAX,
        batch_max=PARTITIONS_TOGETHER_MAX,
    )
    return SharePeers(
        Persister(metadata, shares, states, listener_name),
        EndOffsets(metadata, replica_manager, ends, listener_name),
    )
