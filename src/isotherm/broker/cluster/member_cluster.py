"""A cluster of several brokers with Apache Kafka's controllers.

See ClusterSide and QuorumMember.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis import alter_configs, api_versions, incremental_alter_configs
from isotherm.broker.apis.config_forwarding import checked_forwarding
from isotherm.broker.coordinators.coordinator_elections import (
    TransactionPeers,
    open_transaction_peers,
)
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.scram_changes import Refused, ScramUpsertion
from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.cluster_metadata_topic import METADATA_LOG_CONFIG, METADATA_TOPIC_ID
from isotherm.broker.metadata.directory_ids import MIGRATING
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, TopicImage
from isotherm.broker.metadata.internal_topics import TopicCreator
from isotherm.broker.metadata.metadata_records import METADATA_VERSION_FEATURE
from isotherm.broker.metadata.quorum.controller_channel import ControllerChannel
from isotherm.broker.metadata.quorum.member import QuorumMember
from isotherm.broker.metadata.quorum.quorum_metadata import QuorumMetadata
from isotherm.broker.metadata.quorum.registration import DECLARED_FEATURES
from isotherm.broker.metadata.quorum.topic_creation import MemberTopicCreator
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import ReplicaFetchers
from isotherm.broker.partitions.replica_tasks import (
    high_watermark_checkpoint,
    isr_shrinking,
)
from isotherm.broker.partitions.replication.alter_partition import AlterPartitionManager
from isotherm.broker.partitions.replication.cluster_view import ClusterView, OnIsrAnswer
from isotherm.broker.partitions.replication.configured_quotas import follower_quota
from isotherm.broker.partitions.replication.in_sync_replicas import IsrChange
from isotherm.broker.partitions.replication.leader_endpoint import LeaderEndpoint
from isotherm.broker.partitions.replication.replica_fetcher import (
    FetcherContext,
    LogChange,
    TierFollower,
)
from isotherm.broker.partitions.replication.replica_fetcher_manager import (
    LeaderToFetch,
    ReplicaFetcherManager,
    connect_to_leaders,
)
from isotherm.broker.partitions.replication.tier_follower import TierHistoryFollower
from isotherm.broker.server.authentication.unknown_users import recording_request
from isotherm.broker.server.dispatch.auto_creation import TopicAutoCreation
from isotherm.broker.server.dispatch.forwarding import Forward, Forwarder, forwarding_apis
from isotherm.broker.server.requests.guarding import guarded_apis
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.share_peers import SharePeers, open_share_peers
from isotherm.broker.startup.identity import read_identity
from isotherm.broker.startup.local_tier import check_tiered_topics
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.broker.tier.member_remote_metadata import member_remote_metadata
from isotherm.broker.tier.remote_tier import OwnMetadata
from isotherm.client.listener_security import inter_broker_security
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import RemoteStorageNotReadyError
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.api_keys import ApiKey
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import (
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicIdPartition,
    TopicPartition,
    random_uuid,
)

# The longest wait of a stop for the controller to move this broker's leaderships.
CONTROLLED_SHUTDOWN_TIMEOUT_S = 30.0
FETCHERS_STOP_TIMEOUT_S = 10.0
# A start waits no longer for the controller to record a credential.
CREDENTIAL_TIMEOUT_S = 10.0

# One batch may exceed the limit of a fetch. It can be no larger than a produce request, so this is
# the default of socket.request.max.bytes, 100 MiB.
BATCH_BYTES_MAX = 100 * 1024 * 1024


class MemberCluster:
    embedded_controller = None
    partitions_removed_last: Sequence[TopicIdPartition] = ()

    def __init__(
        self,
        config: BrokerConfig,
        surroundings: Surroundings,
        *,
        on_log_dir_failure: Callable[[LogDir], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Opens nothing yet.

        `on_failure` is called once, on any thread, if the membership ends with an error.
        """
        self._config = config
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._on_failure = on_failure
        self._is_given_up = threading.Event()
        # The metadata is looked up late: it comes from one of these logs, and configures the
        # others.
        self.log_manager = LogManager(
            config.log_dirs,
            config=config,
            topic_config_for=lambda topic: self.metadata.topic_config(topic),
            clock=surroundings.clock,
            fs=surroundings.fs,
            rng=surroundings.rng,
            on_log_dir_failure=on_log_dir_failure,
            catalog=_Catalog(config.node_id, lambda: self.metadata),
        )
        self._tier = _TierSlot()
        self._member: QuorumMember | None = None
        self._alter_partition: AlterPartitionManager | None = None

    def open(self) -> None:
        """Follow the cluster's metadata, and load the logs with the topics' configurations.

        Blocks until the metadata has caught up, or until `give_up`. Raises IsothermError with the
        cause, after it has released the locks of the log directories.
        """
        try:
            metadata_log = self.log_manager.open_metadata_log(
                METADATA_LOG_CONFIG, METADATA_TOPIC_ID
            )
            identity = read_identity(
                self._surroundings.fs,
                self.log_manager.live_log_dirs(),
                self._config.node_id,
                self._surroundings.rng,
                metadata_log_dir=self._config.metadata_log_dir,
            )
            self.cluster_id = identity.cluster_id
            self._directory_ids = identity.directory_ids
            self._member = QuorumMember(
                self._config,
                metadata_log,
                identity,
                self._surroundings,
                incarnation_id=random_uuid(self._surroundings.rng),
                previous_broker_epoch=self.log_manager.previous_broker_epoch(),
                on_failure=self._on_failure,
            )
            self._member.start()
            # `give_up` may have come before there was a member to abort.
            if self._is_given_up.is_set():
                self._member.give_up()
            self.metadata: QuorumMetadata = self._member.wait_until_caught_up()
            check_tiered_topics(self.metadata)
            self.log_manager.startup()
        except BaseException:
            self.close()
            raise

    def give_up(self) -> None:
        """Abort the start: waits for the controllers end with an error.

        Any thread, before or after `open`.
        """
        self._is_given_up.set()
        if self._member is not None:
            self._member.give_up()

    @property
    def inter_broker_listener(self) -> str:
        return self._config.listener_layout.inter_broker

    @property
    def member(self) -> QuorumMember:
        assert self._member is not None, "it was opened"
        return self._member

    def register(self, endpoints: Sequence[Endpoint]) -> None:
        self.log_manager.broker_epoch = self.member.register(endpoints)

    def view(self) -> ClusterView:
        self._alter_partition = AlterPartitionManager(
            self._config.node_id,
            self.member.open_channel("alter-partition").send,
            broker_epoch=lambda: self.member.broker_epoch,
            clock=self._clock,
        )
        self._alter_partition.start()
        directories = {
            self._directory_ids[log_dir.path]: log_dir
            for log_dir in self.log_manager.log_dirs()
            if log_dir.path in self._directory_ids
        }
        return _MemberView(
            self._config,
            self._clock,
            self.member,
            self.metadata,
            self._alter_partition,
            directories,
        )

    def open_fetchers(self, replica_manager: ReplicaManager) -> ReplicaFetchers:
        config = self._config.replication
        manager = ReplicaFetcherManager(
            FetcherContext(
                self.log_manager,
                config,
                self._config.node_id,
                self._clock,
                follower_quota(self.metadata, self._clock),
                self._tier,
            ),
            connect_to_leaders(
                config,
                broker_id=self._config.node_id,
                broker_epoch=lambda: self.member.broker_epoch,
                metadata_version=lambda: self.metadata.image.features[METADATA_VERSION_FEATURE],
                batch_bytes_max=BATCH_BYTES_MAX,
                security=inter_broker_security(self._config),
            ),
        )
        manager.resize(self.metadata.broker_config.replication.num_replica_fetchers)

        def resize(change: MetadataChange) -> None:
            if change.broker_config is not None:
                manager.resize(change.broker_config.replication.num_replica_fetchers)

        self.metadata.add_listener(resize)
        tasks = (
            high_watermark_checkpoint(self.log_manager, config, self._clock),
            isr_shrinking(replica_manager, config.replica_lag_time_max_ms, self._clock),
        )
        for task in tasks:
            task.start()
        return _ReplicaFetchers(manager, tasks)

    def follow_tier(self, tier: RemoteTierAccess) -> None:
        self._tier.follow(
            TierHistoryFollower(
                self.log_manager,
                tier.metadata,
                tier.storage,
                lambda: self.metadata.broker_config.replication,
            )
        )

    def own_metadata(
        self,
        replica_manager: ReplicaManager,
        control_executor: ThreadPoolExecutor,
    ) -> OwnMetadata:
        remote = self._config.remote
        return member_remote_metadata(
            self.metadata,
            replica_manager,
            self._config,
            _sender(self.member.requests),
            self._surroundings,
            listener_name=remote.remote_log_metadata_manager_listener_name
            or self.inter_broker_listener,
        )

    def topic_creator(self, control_executor: ThreadPoolExecutor) -> TopicCreator:
        return MemberTopicCreator(_sender(self.member.requests), self._clock)

    def new_producer_id(
        self, control_executor: ThreadPoolExecutor
    ) -> Callable[[], Awaitable[ProducerId]]:
        async def generate() -> ProducerId:
            return self.member.generate_producer_id()

        return generate

    def transaction_peers(self, markers: TransactionMarkers) -> TransactionPeers:
        return open_transaction_peers(
            self._config, self.metadata, markers, self.inter_broker_listener, self._clock
        )

    def share_peers(self, shares: ShareCoordinator, replica_manager: ReplicaManager) -> SharePeers:
        return open_share_peers(
            self._config,
            self.metadata,
            shares,
            replica_manager,
            self.inter_broker_listener,
            self._clock,
        )

    def apis(self, apis: Mapping[int, Api], authorizer: Authorizer | None) -> Mapping[int, Api]:
        apis = guarded_apis(apis, authorizer)
        forward = self._forwarder.forward
        local: dict[int, Forward] = {
            ApiKey.ALTER_CONFIGS: checked_forwarding(
                apis[ApiKey.ALTER_CONFIGS].handle, alter_configs.changes_of, forward
            ),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: checked_forwarding(
                apis[ApiKey.INCREMENTAL_ALTER_CONFIGS].handle,
                incremental_alter_configs.changes_of,
                forward,
            ),
        }
        versions = api_versions.declare(
            [api for key, api in apis.items() if key != ApiKey.API_VERSIONS],
            DECLARED_FEATURES,
            self.member.controller_versions,
        )
        served = {**apis, ApiKey.API_VERSIONS: versions}
        return forwarding_apis(served, forward, local)

    def auto_creation(self) -> TopicAutoCreation:
        return TopicAutoCreation(self._forwarder)

    @functools.cached_property
    def _forwarder(self) -> Forwarder:
        return Forwarder(self.member.requests)

    async def record_credential(
        self, control_executor: ThreadPoolExecutor, upsertion: ScramUpsertion
    ) -> Refused | None:
        answer = self.member.requests.send(
            recording_request(upsertion), timeout_s=CREDENTIAL_TIMEOUT_S
        )
        (result,) = (await asyncio.wrap_future(answer)).results
        if result.error_code is ErrorCode.none:
            return None
        return Refused(result.error_code, result.error_message or "")

    async def begin(self, control_executor: ThreadPoolExecutor) -> None:
        # Before the heartbeats, which report the offset of the published image: the controller
        # waits until that includes this broker's registration.
        self.member.publish_on(control_executor)
        self.member.start_heartbeats()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.member.wait_until_unfenced)

    async def leave(self) -> None:
        self.member.begin_controlled_shutdown()
        await asyncio.get_running_loop().run_in_executor(
            None, self.member.wait_until_let_go, CONTROLLED_SHUTDOWN_TIMEOUT_S
        )

    def end_changes(self) -> None:
        self.member.stop_publishing()

    def note_log_dir_failure(self, path: Path) -> None:
        self.member.note_log_dir_failure(path)

    def close(self) -> None:
        if self._member is not None:
            self._member.stop()
        # After its channel, which the member has stopped: it may wait for an answer.
        if self._alter_partition is not None:
            self._alter_partition.stop()
        self.log_manager.shutdown()


class _TierSlot:
    """The TierFollower of the fetchers.

    They start before the remote tier is open, and use it afterwards.
    """

    def __init__(self) -> None:
        self._tier: TierFollower | None = None

    def follow(self, tier: TierFollower) -> None:
        self._tier = tier

    def begins_behind_uploads(self, log: PartitionLog, leader_end_offset: Offset) -> bool:
        return self._tier is not None and self._tier.begins_behind_uploads(log, leader_end_offset)

    def plan(
        self,
        place: TopicIdPartition,
        log: PartitionLog,
        leader_epoch: LeaderEpoch,
        leader: LeaderEndpoint,
    ) -> LogChange:
        if self._tier is None:
            raise RemoteStorageNotReadyError(f"the remote tier is not open yet partition={place}")
        return self._tier.plan(place, log, leader_epoch, leader)


class _ReplicaFetchers:
    """Implements ReplicaFetchers. `stop` also stops the periodic tasks on replicas."""

    def __init__(self, manager: ReplicaFetcherManager, tasks: Sequence[PeriodicTask]) -> None:
        self._manager = manager
        self._tasks = tasks

    def add(self, fetches: Iterable[LeaderToFetch]) -> None:
        self._manager.add(fetches)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        self._manager.remove(partitions)

    def lags(self) -> Mapping[TopicPartition, Offset]:
        return self._manager.lags()

    def failed_partitions(self) -> Collection[TopicPartition]:
        return self._manager.failed_partitions()

    def stop(self) -> None:
        self._manager.stop(FETCHERS_STOP_TIMEOUT_S)
        for task in self._tasks:
            task.stop()


class _MemberView(ClusterView):
    """`directories` are this broker's log directories by id."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        member: QuorumMember,
        metadata: QuorumMetadata,
        alter_partition: AlterPartitionManager,
        directories: Mapping[uuid.UUID, LogDir],
    ) -> None:
        super().__init__(
            config.node_id, clock, lag_time_max_ms=config.replication.replica_lag_time_max_ms
        )
        self._member = member
        self._metadata = metadata
        self._directories = directories
        self._ids = {log_dir.path: directory_id for directory_id, log_dir in directories.items()}
        self._alter_partition = alter_partition

    def broker_epoch(self) -> int:
        return self._member.broker_epoch

    def find_broker(self, broker_id: BrokerId) -> BrokerImage | None:
        return self._metadata.image.brokers.get(broker_id)

    def find_topic(self, topic: str | uuid.UUID) -> TopicImage | None:
        return self._metadata.image.topic(topic)

    def find_log_dir(self, directory_id: uuid.UUID) -> LogDir | None:
        log_dir = self._directories.get(directory_id)
        return log_dir if log_dir is not None and log_dir.is_online else None

    def alter_isr(
        self, partition: TopicIdPartition, change: IsrChange, on_answer: OnIsrAnswer
    ) -> None:
        self._alter_partition.submit(partition, change, on_answer)

    def note_directory(self, place: TopicIdPartition, log_dir: LogDir) -> None:
        self._member.note_directory(place, log_dir.path)

    def is_recorded(self, place: TopicIdPartition, log_dir: LogDir) -> bool:
        topic = self.find_topic(place.topic_id)
        if topic is None or place.partition >= len(topic.partitions):
            return False
        recorded = topic.partitions[place.partition].directory(self.broker_id)
        # None: a metadata.version before 3.7 has no directories, so there is nothing to record.
        return recorded in (None, MIGRATING, self._ids.get(log_dir.path))


class _Catalog:
    """Implements PartitionCatalog with the metadata image."""

    def __init__(self, broker_id: BrokerId, metadata: Callable[[], QuorumMetadata]) -> None:
        self._broker_id = broker_id
        self._metadata = metadata

    def topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        topic = self._metadata().image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return topic.topic_id

    def was_removed(self, topic_id: uuid.UUID) -> bool:
        """Whether the topic was deleted while this broker was down. True for every topic that the
        metadata lacks, since it has caught up."""
        return topic_id not in self._metadata().image.topics_by_id

    def is_elsewhere(self, topic_partition: TopicPartition) -> bool:
        topic = self._metadata().image.topics_by_name[topic_partition.topic]
        return self._broker_id not in topic.partitions[topic_partition.partition].replicas


def _sender(channel: ControllerChannel) -> Callable[[Any, float], Future[Any]]:
    return lambda request, timeout_s: channel.send(request, timeout_s=timeout_s)
