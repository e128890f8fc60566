"""The remote tier's metadata of a cluster member, in the cluster's `__remote_log_metadata`.

A new cluster in which all brokers support level 1 starts at level 1. Otherwise the topic has
Kafka's own records and stays at level 0 for ever, because the consumer of a Kafka broker fails at a
null value. At level 1, each broker cleans up the leftovers of the partitions that it leads. The
leader of a metadata partition resumes deletions of partitions (docs/decisions/0103). Source: Kafka
TopicBasedRemoteLogMetadataManager.initializeResources.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.features import METADATA_COMPACTION_FEATURE
from isotherm.broker.metadata.image import BrokerImage
from isotherm.broker.metadata.internal_topics import InternalTopic
from isotherm.broker.metadata.quorum.topic_creation import creation_request
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.peers.leader_requests import LeaderRequests
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.broker.tier.remote_metadata_topics import compacted_settings, deleted_settings
from isotherm.broker.tier.remote_metadata_upkeep import Upkeep, UpkeepTasks
from isotherm.broker.tier.remote_tier import OwnMetadata
from isotherm.broker.tier.replicated_remote_metadata_topic import ReplicatedRemoteMetadataTopic
from isotherm.client.listener_security import inter_broker_security
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError, RemoteStorageNotReadyError
from isotherm.protocol.code_names import code_name
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.outages import Outage
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPICS,
    BrokerId,
)

_logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 30_000
# The interval of creation requests. They fail until enough brokers for the topic's replicas have
# joined.
CREATION_INTERVAL_S = 1.0

Send = Callable[[Any, float], Future[Any]]


def member_remote_metadata(
    cluster_metadata: ClusterMetadata,
    replica_manager: ReplicaManager,
    config: BrokerConfig,
    send: Send,
    surroundings: Surroundings,
    *,
    listener_name: str,
) -> OwnMetadata:
    """The metadata manager and its tasks. `send` sends a request to the active controller, with a
    timeout in seconds.

    Leaders of metadata partitions are reached at their listener `listener_name`.
    """
    clock = surroundings.clock
    settings = TopicBasedSettings.from_config(config.remote.rlmm_config)
    for warning in client_key_warnings(config):
        _logger.warning("%s", warning)
    leaders = LeaderRequests(
        cluster_metadata,
        listener_name,
        client_id=f"{REMOTE_LOG_METADATA_TOPIC}_client_{config.node_id}",
        request_timeout_s=REQUEST_TIMEOUT_MS / 1000,
        security=inter_broker_security(config),
    )
    topic, audit_topic = _metadata_topics(
        cluster_metadata,
        replica_manager,
        leaders,
        settings.remote_log_metadata_topic_num_partitions,
    )
    levels = MemberMetadataLevels(cluster_metadata)
    metadata = TopicBasedRemoteLogMetadataManager(
        topic,
        clock=clock,
        metrics=surroundings.metrics,
        settings=settings,
        keyed=KeyedMetadata(audit_topic, levels.level, levels.check_writable),
    )
    initial_level = config.remote.remote_log_metadata_compaction_initial_level
    creation = MetadataTopicCreation(
        cluster_metadata,
        settings,
        send,
        first_level=lambda: levels.first_level(
            initial_level, settings.remote_log_metadata_topic_replication_factor
        ),
        clock=clock,
    )

    def leads_metadata(number: int) -> bool:
        topic_image = cluster_metadata.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)
        return topic_image is not None and topic_image.partitions[number].leader == config.node_id

    def upkeep(remote_log_manager: RemoteLogManager) -> list[Upkeep]:
        task = PeriodicTask(
            "isotherm-remote-log-metadata-topic",
            creation.run,
            clock,
            initial_delay_s=0,
            interval_s=CREATION_INTERVAL_S,
        )
        tasks = UpkeepTasks(remote_log_manager, config, settings, surroundings, is_alone=False)
        cleanup = tasks.cleanup(topic, metadata, leads_metadata)
        return [cleanup, Upkeep(task, topic.close)]

    return OwnMetadata(metadata, settings, upkeep)


def _metadata_topics(
    cluster_metadata: ClusterMetadata,
    replica_manager: ReplicaManager,
    leaders: LeaderRequests,
    partition_count: int,
) -> tuple[ReplicatedRemoteMetadataTopic, ReplicatedRemoteMetadataTopic]:
    """The metadata topic and its audit topic."""
    topic, audit_topic = (
        ReplicatedRemoteMetadataTopic(
            replica_manager,
            leaders,
            partition_count,
            partial(_partition_count, cluster_metadata, name),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            topic=name,
        )
        for name in REMOTE_LOG_METADATA_TOPICS
    )
    return topic, audit_topic


def client_key_warnings(config: BrokerConfig) -> list[str]:
    """A warning for each client key in the configuration. Kafka's manager reads and writes the
    topic with clients; here requests go to the topic's leaders on the listener between brokers, so
    such keys have no effect."""
    listener = config.listener_layout.inter_broker
    remote = config.remote
    keys = [
        f"{remote.remote_log_metadata_manager_impl_prefix}{name}"
        for name in sorted(TopicBasedSettings.from_config(remote.rlmm_config).client_properties)
    ]
    return [
        f"configuration key has no effect key={key} reason='the metadata topic is reached through"
        f" the listener between brokers' listener={listener}"
        for key in keys
    ]


class MetadataTopicCreation:
    """Asks the controller for the topic until the metadata has it. At level 1 it asks for the audit
    topic first, so that the compacted topic never exists without it."""

    def __init__(
        self,
        cluster_metadata: ClusterMetadata,
        settings: TopicBasedSettings,
        send: Send,
        *,
        first_level: Callable[[], int | None],
        clock: Clock,
    ) -> None:
        self._cluster_metadata = cluster_metadata
        self._settings = settings
        self._send = send
        self._first_level = first_level
        self._outage = Outage(
            _logger,
            clock,
            failing="metadata topic is not created yet",
            working="metadata topic is created",
        )

    def run(self) -> None:
        """No effect if the topic exists."""
        if _partition_count(self._cluster_metadata) is not None:
            self._outage.worked()
            return
        settings, level = self._settings, self._first_level()
        if level is None:
            self._outage.failed("fewer brokers are registered than the topic has replicas")
            return
        if level == 0:
            retention_ms = settings.remote_log_metadata_topic_retention_ms
            self._create(REMOTE_LOG_METADATA_TOPIC, deleted_settings(retention_ms))
            return
        retention_ms = settings.remote_log_metadata_audit_topic_retention_ms
        if self._create(REMOTE_LOG_METADATA_AUDIT_TOPIC, deleted_settings(retention_ms)):
            self._create(REMOTE_LOG_METADATA_TOPIC, compacted_settings(settings))

    def _create(self, name: str, configs: Mapping[str, str]) -> bool:
        """Create a topic, and return whether the cluster has it now."""
        settings = self._settings
        topic = InternalTopic(
            name=name,
            partitions=settings.remote_log_metadata_topic_num_partitions,
            replication_factor=settings.remote_log_metadata_topic_replication_factor,
            configs=configs,
            replica_configs={
                "min.insync.replicas": str(settings.remote_log_metadata_topic_min_isr)
            },
        )
        timeout_s = REQUEST_TIMEOUT_MS / 1000
        try:
            (result,) = self._send(creation_request(topic), timeout_s).result().topics
        except (PeerDisconnectedError, PeerTimeoutError) as error:
            self._outage.failed(str(error))
            return False
        if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            self._outage.failed(f"{code_name(result.error_code)}: {result.error_message}")
            return False
        return True


def _partition_count(
    cluster_metadata: ClusterMetadata, name: str = REMOTE_LOG_METADATA_TOPIC
) -> int | None:
    topic = cluster_metadata.image.topics_by_name.get(name)
    return None if topic is None else len(topic.partitions)


class MemberMetadataLevels:
    """The level of the remote tier's metadata, in a cluster of controllers that do not know it.

    declared    by each broker in its registration: the feature remote.log.metadata.compaction, 0
                to 1
    chosen      when the topics are created: level 1 if every registered broker declares it
    stored      as topics in the controllers' metadata: `__remote_log_metadata` is compacted and
                its audit topic exists. Final, because compaction has removed the events that
                level 0 needs

    Any thread may call it. Source: docs/decisions/0103.
    """

    def __init__(self, cluster_metadata: ClusterMetadata) -> None:
        self._cluster_metadata = cluster_metadata
        self._is_compacted = False
        self._reported: list[BrokerId] = []

    def level(self, _: int = 0) -> int:
        """The level, which all metadata partitions share."""
        # Looked up until it holds: the level is final, and every write asks for it.
        if not self._is_compacted:
            topics = self._cluster_metadata.image.topics_by_name
            self._is_compacted = (
                REMOTE_LOG_METADATA_TOPIC in topics
                and REMOTE_LOG_METADATA_AUDIT_TOPIC in topics
                and self._cluster_metadata.topic_config(REMOTE_LOG_METADATA_TOPIC).compacts
            )
        return int(self._is_compacted)

    def first_level(self, level_max: int, replication_factor: int) -> int | None:
        """The level at which the topics are to be created: 1 if it is wanted and every registered
        broker supports it.

        None while there are fewer brokers than replicas, because the controller could not create
        the topics yet.
        """
        if len(self._cluster_metadata.image.brokers) < replication_factor:
            return None
        return 0 if self._brokers_without() else min(level_max, 1)

    def check_writable(self) -> None:
        """Raises RemoteStorageNotReadyError while a registered broker does not support level 1.
        Such a broker could not read the records and, as leader, would ignore the condition of an
        append."""
        brokers = self._brokers_without()
        if not brokers:
            self._reported = []
            return
        message = (
            "the compacted metadata topic is not written to while registered brokers do not"
            f" support it brokers={','.join(map(str, brokers))}"
            f" feature={METADATA_COMPACTION_FEATURE}"
        )
        if brokers != self._reported:
            _logger.error(
                "%s hint='stop them for good, then kafka-cluster.sh unregister --id N: until then"
                " the remote tier neither copies nor deletes segments'",
                message,
            )
            self._reported = brokers
        raise RemoteStorageNotReadyError(message)

    def _brokers_without(self) -> list[BrokerId]:
        brokers = self._cluster_metadata.image.brokers
        return sorted(
            broker_id for broker_id, broker in brokers.items() if not _knows_level_1(broker)
        )


def _knows_level_1(broker: BrokerImage) -> bool:
    return any(
        feature.name == METADATA_COMPACTION_FEATURE
        and feature.min_supported_version <= 1 <= feature.max_supported_version
        for feature in broker.features
    )
