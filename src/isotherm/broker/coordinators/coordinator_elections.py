"""Creates the group, transaction and share coordinators, and elects them for partitions.

They are elected for the partitions of their topic that this broker leads, and resign from the
others (Kafka: BrokerMetadataPublisher.updateCoordinator). With the embedded controller this broker
leads every partition, so they are elected for all of them at the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, Protocol

from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC, OffsetsTopic
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.shares.share_state_log import ShareStateLog
from isotherm.broker.coordinators.shares.share_state_records import SHARE_STATE_TOPIC
from isotherm.broker.coordinators.transactions.marker_sender import (
    MARKERS_PER_REQUEST_MAX,
    QUEUED_MARKERS_MAX,
    MarkerSender,
    send_markers,
)
from isotherm.broker.coordinators.transactions.remote_admission import (
    QUESTIONS_PER_REQUEST_MAX,
    QUEUED_QUESTIONS_MAX,
    RemoteAdmission,
    ask_coordinator,
)
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.broker.coordinators.transactions.transaction_endings import MarkerWriter
from isotherm.broker.coordinators.transactions.transaction_log import (
    TRANSACTION_STATE_TOPIC,
    TransactionLog,
)
from isotherm.broker.coordinators.transactions.transaction_markers import (
    LocalMarkers,
    TransactionMarkers,
)
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata, MetadataChange
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.image import TopicImage
from isotherm.broker.metadata.internal_topics import InternalTopic, TopicCreator
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.surroundings import Surroundings
from isotherm.client.listener_security import inter_broker_security
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.types import BrokerId, LeaderEpoch, ProducerId

# Kafka: socket.connection.setup.timeout.ms and request.timeout.ms.
CONNECT_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 30.0
# The response to a full request of markers or questions takes some tens of kilobytes. One of
# states of share partitions is bounded by BATCHES_TOGETHER_MAX.
RESPONSE_BYTES_MAX = 16 * 1024 * 1024


class Elected(Protocol):
    """A coordinator that is elected and resigns by partition. Event loop thread only."""

    def on_election(self, index: int, leader_epoch: LeaderEpoch) -> None: ...

    def on_resignation(self, index: int, leader_epoch: LeaderEpoch | None) -> None: ...


def follow_leadership(metadata: ClusterMetadata, topic_name: str, coordinator: Elected) -> None:
    """Elect `coordinator` for the partitions that this broker leads, now and after every change.

    Call it on the event loop, after adding the listener that makes partitions leaders and
    followers, because a coordinator reads its log as leader.
    """
    loop = asyncio.get_running_loop()
    node_id = metadata.broker_config.node_id

    def follow(change: MetadataChange) -> None:
        # Listeners run on the control thread, a coordinator on the event loop. Deletions come
        # first, because the same change may create the topic again.
        for topic in change.deleted:
            if topic.name == topic_name:
                loop.call_soon_threadsafe(_resign_all, coordinator, topic)
        for topic in (*change.created, *change.grown, *change.moved):
            if topic.name == topic_name:
                loop.call_soon_threadsafe(_tell_leadership, coordinator, topic, node_id)

    metadata.add_listener(follow)
    present = metadata.image.topics_by_name.get(topic_name)
    if present is not None:
        _tell_leadership(coordinator, present, node_id)


def _tell_leadership(coordinator: Elected, topic: TopicImage, node_id: BrokerId) -> None:
    for partition in topic.partitions:
        if partition.leader == node_id:
            coordinator.on_election(partition.partition, partition.leader_epoch)
        else:
            is_hosted = node_id in partition.replicas
            epoch = partition.leader_epoch if is_hosted else None
            coordinator.on_resignation(partition.partition, epoch)


def _resign_all(coordinator: Elected, topic: TopicImage) -> None:
    for partition in topic.partitions:
        coordinator.on_resignation(partition.partition, None)


def embedded_topic_creator(controller: Controller, control_executor: Executor) -> TopicCreator:
    """Creates topics through the embedded controller, which gives each partition one replica."""

    def create_now(topic: InternalTopic) -> None:
        if topic.name in controller.image.topics_by_name:
            return
        new = NewTopic(
            name=topic.name, num_partitions=topic.partitions, configs=dict(topic.configs)
        )
        (created,) = controller.create_topics([new])
        if created.error is not None:
            raise created.error

    async def create(topic: InternalTopic) -> None:
        # The metadata listener calls `call_soon_threadsafe` before this future is completed in the
        # same way. So the coordinator is elected for the new partitions before this coroutine
        # continues.
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(control_executor, create_now, topic)

    return create


def offsets_topic(config: BrokerConfig) -> InternalTopic:
    """The settings of `__consumer_offsets`, as in Kafka's
    GroupCoordinatorService.groupMetadataTopicConfigs.
    """
    groups = config.groups
    return InternalTopic(
        name=OFFSETS_TOPIC,
        partitions=groups.offsets_topic_num_partitions,
        replication_factor=groups.offsets_topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(groups.offsets_topic_segment_bytes),
        },
    )


def open_group_coordinator(
    config: BrokerConfig,
    metadata: ClusterMetadata,
    replica_manager: ReplicaManager,
    create_topic: TopicCreator,
    surroundings: Surroundings,
) -> GroupCoordinator:
    """The group coordinator.

    It loads its partitions of `__consumer_offsets` now and whenever it is elected.
    """
    loop = asyncio.get_running_loop()
    topic = CoordinatorTopic(metadata, replica_manager, create_topic, offsets_topic(config))
    coordinator = GroupCoordinator(
        config.groups,
        OffsetsTopic(topic, surroundings.clock),
        metadata,
        surroundings.clock,
        surroundings.rng,
        loop,
    )

    def follow(change: MetadataChange) -> None:
        if change.deleted:
            loop.call_soon_threadsafe(coordinator.topics_deleted, change.deleted)

    follow_leadership(metadata, OFFSETS_TOPIC, coordinator)
    metadata.add_listener(follow)
    return coordinator


def transaction_state_topic(config: BrokerConfig) -> InternalTopic:
    """The settings of `__transaction_state`, as in Kafka's
    TransactionStateManager.transactionStateTopicConfigs.
    """
    transactions = config.transactions
    return InternalTopic(
        name=TRANSACTION_STATE_TOPIC,
        partitions=transactions.transaction_state_log_num_partitions,
        replication_factor=transactions.transaction_state_log_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(transactions.transaction_state_log_segment_bytes),
        },
        replica_configs={
            "min.insync.replicas": str(transactions.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        },
    )


def open_transaction_coordinator(
    config: BrokerConfig,
    metadata: ClusterMetadata,
    replica_manager: ReplicaManager,
    create_topic: TopicCreator,
    markers: MarkerWriter,
    new_producer_id: Callable[[], Awaitable[ProducerId]],
    *,
    clock: Clock,
) -> TransactionCoordinator:
    """The transaction coordinator. It loads its partitions of `__transaction_state` now and
    whenever it is elected."""
    topic = CoordinatorTopic(
        metadata, replica_manager, create_topic, transaction_state_topic(config)
    )
    coordinator = TransactionCoordinator(
        config.transactions,
        TransactionLog(config.transactions, topic, clock),
        markers,
        clock=clock,
        new_producer_id=new_producer_id,
    )
    follow_leadership(metadata, TRANSACTION_STATE_TOPIC, coordinator)
    return coordinator


def share_state_topic(config: BrokerConfig) -> InternalTopic:
    """The settings of `__share_group_state`, as in Kafka's
    ShareCoordinatorService.shareGroupStateTopicConfigs.
    """
    shares = config.share_coordinator
    return InternalTopic(
        name=SHARE_STATE_TOPIC,
        partitions=shares.share_coordinator_state_topic_num_partitions,
        replication_factor=shares.share_coordinator_state_topic_replication_factor,
        configs={
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.ms": "-1",
            "segment.bytes": str(shares.share_coordinator_state_topic_segment_bytes),
        },
        replica_configs={
            "min.insync.replicas": str(shares.share_coordinator_state_topic_min_isr),
        },
    )


def open_share_coordinator(
    config: BrokerConfig,
    metadata: ClusterMetadata,
    replica_manager: ReplicaManager,
    create_topic: TopicCreator,
    clock: Clock,
) -> ShareCoordinator:
    """The share coordinator. It loads its partitions of `__share_group_state` now and whenever it
    is elected."""
    loop = asyncio.get_running_loop()
    topic = CoordinatorTopic(metadata, replica_manager, create_topic, share_state_topic(config))
    log = ShareStateLog(config.share_coordinator, topic, clock)
    coordinator = ShareCoordinator(config.share_coordinator, log, metadata, clock)

    def follow(change: MetadataChange) -> None:
        if change.deleted:
            deleted = {topic.topic_id for topic in change.deleted}
            loop.call_soon_threadsafe(coordinator.topics_deleted, deleted)

    follow_leadership(metadata, SHARE_STATE_TOPIC, coordinator)
    metadata.add_listener(follow)
    return coordinator


class TransactionPeers(NamedTuple):
    """The requests about transactions to other brokers.

    `admission` is None without other brokers.
    """

    markers: MarkerWriter
    admission: RemoteAdmission | None
    batches: tuple[PeerBatches[Any, Any], ...] = ()

    async def stop(self) -> None:
        """Stop sending requests to other brokers. The coordinators must have stopped before."""
        for batch in self.batches:
            await batch.stop()


def no_transaction_peers(
    metadata: ClusterMetadata, markers: TransactionMarkers
) -> TransactionPeers:
    return TransactionPeers(LocalMarkers(metadata, markers), None)


def open_transaction_peers(
    config: BrokerConfig,
    metadata: ClusterMetadata,
    markers: TransactionMarkers,
    listener_name: str,
    clock: Clock,
) -> TransactionPeers:
    """The requests of a cluster member to other brokers, at their listener between brokers."""
    to_leaders = PeerBatches(
        "txn-marker-sender",
        connector(config, "txn-marker-sender"),
        send_markers,
        clock,
        queued_max=QUEUED_MARKERS_MAX,
        batch_max=MARKERS_PER_REQUEST_MAX,
    )
    to_coordinators = PeerBatches(
        "add-partitions-to-txn",
        connector(config, "add-partitions-to-txn"),
        ask_coordinator,
        clock,
        queued_max=QUEUED_QUESTIONS_MAX,
        batch_max=QUESTIONS_PER_REQUEST_MAX,
    )
    local = LocalMarkers(metadata, markers)
    return TransactionPeers(
        MarkerSender(metadata, local, to_leaders, listener_name),
        RemoteAdmission(metadata, to_coordinators, listener_name),
        (to_leaders, to_coordinators),
    )


def connector(config: BrokerConfig, purpose: str) -> Callable[[NodeAddress], NodeConnection]:
    """Makes connections to other brokers, for `PeerBatches`. Their client id names this broker and
    the purpose."""
    client_id = f"broker-{config.node_id}-{purpose}"
    security = inter_broker_security(config)

    def connect(address: NodeAddress) -> NodeConnection:
        return NodeConnection(
            address,
            client_id=client_id,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            request_timeout_s=REQUEST_TIMEOUT_S,
            response_bytes_max=RESPONSE_BYTES_MAX,
            security=security,
        )

    return connect
