"""Creates this broker's remote tier from its configuration: storage, metadata, cache, tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.image import TopicImage
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import ReplicaRoles
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.embedded_remote_metadata_topic import (
    EmbeddedRemoteMetadataTopic,
)
from isotherm.broker.tier.lineage_restorer import (
    LineageRestorer,
    RunControl,
    restorer_upkeep,
)
from isotherm.broker.tier.remote_metadata_topics import (
    MetadataLevels,
    ensure_metadata_topics,
    warn_of_metadata_topics,
)
from isotherm.broker.tier.remote_metadata_upgrade import MetadataUpgrade
from isotherm.broker.tier.remote_metadata_upkeep import (
    RemoteMetadataUpkeep,
    Upkeep,
    UpkeepTasks,
)
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.log.tiering import is_remote_log_enabled
from isotherm.metrics.registry import Metrics
from isotherm.remote.indexes.index_cache import DIRECTORY_NAME, RemoteIndexCache
from isotherm.remote.indexes.index_cache_statistics import CacheStatistics
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.metadata.checked_metadata_manager import (
    checked_metadata,
    load_metadata_manager,
)
from isotherm.remote.metadata.topic.event_writer import (
    LOST_TOMBSTONES,
    LOST_TOMBSTONES_TEXT,
    KeyedMetadata,
)
from isotherm.remote.metadata.topic.metadata_partition_reader import (
    SKIPPED_RECORDS,
    SKIPPED_RECORDS_TEXT,
)
from isotherm.remote.metadata.topic_based import (
    FOLLOW_ERRORS,
    FOLLOW_ERRORS_TEXT,
    TopicBasedRemoteLogMetadataManager,
)
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.plugin import place_config
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.rewriting.finisher import (
    FINISH_ERRORS,
    FINISH_ERRORS_TEXT,
    REPLACED,
    REPLACED_TEXT,
)
from isotherm.remote.scrub.rebuilt_transactions import TransactionIndexRebuild
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.checked_storage_manager import checked_storage, load_storage_manager
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.tasks.cleanup import (
    CLEANED,
    CLEANED_TEXT,
    CLEANUP_ERRORS,
    CLEANUP_ERRORS_TEXT,
    LeftOver,
)
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.tasks.retried_work import TASK_ERRORS, TASK_ERRORS_TEXT, TASKS
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, BrokerId, LeaderEpoch, TopicIdPartition


class RemoteTier(NamedTuple):
    """The running remote tier. Stop `upkeep` before closing the manager."""

    remote_log_manager: RemoteLogManager
    upkeep: RemoteMetadataUpkeep


class OwnMetadata(NamedTuple):
    """A metadata manager on a topic of this cluster. `upkeep` creates its periodic tasks."""

    metadata: TopicBasedRemoteLogMetadataManager
    settings: TopicBasedSettings
    upkeep: Callable[[RemoteLogManager], list[Upkeep]]


def open_remote_tier(
    config: BrokerConfig,
    cluster_id: str,
    cluster_metadata: ClusterMetadata,
    replica_manager: ReplicaManager,
    surroundings: Surroundings,
    *,
    open_own_metadata: Callable[[], OwnMetadata],
    partitions_removed_last: Iterable[TopicIdPartition],
    roles: ReplicaRoles,
    run_control: RunControl,
) -> RemoteTier:
    """Create the remote tier and assign the partitions to it. The caller closes it.

    `open_own_metadata` is called unless the metadata manager is a plug-in. `roles` bring partitions
    online whose leader epochs were restored, on the control thread, which `run_control` uses. Call
    this function on that thread, or before that thread has work. Raises ConfigError with the wrong
    key, the unusable class or the fault of the bucket, and RemoteStorageError if the store does not
    answer.
    """
    clock, fs, metrics = surroundings.clock, surroundings.fs, surroundings.metrics
    parts = _open_parts(config, cluster_id, open_own_metadata, clock)
    own, metadata, storage = parts.own, parts.metadata, checked_storage(parts.storage, clock)
    remote_log_manager = RemoteLogManager(
        config.remote,
        broker_id=config.node_id,
        storage=storage,
        metadata=metadata,
        index_cache=open_index_cache(config, storage, metadata, surroundings),
        pending_deletions=PendingDeletions(config.log_dirs[0], fs),
        leader_epoch_of=lambda partition: _leader_epoch(cluster_metadata, partition),
        is_tiered=lambda partition: _is_tiered(cluster_metadata, partition),
        clock=clock,
        rng=surroundings.rng,
        metrics=metrics,
    )
    work = _upkeep(
        parts, remote_log_manager, replica_manager, config, surroundings, cluster_metadata
    )
    if own is not None:
        own.metadata.start()
    restorer = LineageRestorer(
        cluster_metadata,
        replica_manager.damaged_logs,
        metadata,
        storage,
        roles,
        broker_id=config.node_id,
        run_control=run_control,
        fs=fs,
    )
    if restorer.has_work:
        work.append(restorer_upkeep(restorer, clock))
    upkeep = RemoteMetadataUpkeep(work)
    _publish_counters(metrics)
    # Before the partitions are assigned: one that is tiered again waits for the deletion of its
    # old segments (docs/decisions/0035).
    remote_log_manager.resume_deletions(partitions_removed_last)
    replica_manager.start_tiering(remote_log_manager)
    # Last: its tasks use the partitions that the manager has been given.
    upkeep.start()
    return RemoteTier(remote_log_manager, upkeep)


class _Parts(NamedTuple):
    """The metadata and storage managers, each a plug-in or Isotherm's own. `own` is set if the
    metadata is on a topic of this cluster. `storage` is not wrapped by `checked_storage` yet,
    because compaction asks for its class."""

    own: OwnMetadata | None
    metadata: RemoteLogMetadataManager
    storage: RemoteStorageManager


def _open_parts(
    config: BrokerConfig,
    cluster_id: str,
    open_own_metadata: Callable[[], OwnMetadata],
    clock: Clock,
) -> _Parts:
    remote = config.remote
    place = partial(
        place_config,
        broker_id=config.node_id,
        cluster_id=cluster_id,
        log_dir=str(config.log_dirs[0]),
    )
    own: OwnMetadata | None = None
    metadata: RemoteLogMetadataManager
    if remote.keeps_metadata_in_topic:
        own = open_own_metadata()
        metadata = own.metadata
    else:
        plugin = load_metadata_manager(
            remote.remote_log_metadata_manager_class_name, place(remote.rlmm_config)
        )
        metadata = checked_metadata(plugin, clock)
    storage = load_storage_manager(
        remote.remote_log_storage_manager_class_name, place(remote.rsm_config)
    )
    # A bucket that cannot be used stops the start, not each copy (docs/decisions/0076).
    if isinstance(storage, ObjectStoreRemoteStorageManager):
        storage.check_usable()
    return _Parts(own, metadata, storage)


def _upkeep(
    parts: _Parts,
    remote_log_manager: RemoteLogManager,
    replica_manager: ReplicaManager,
    config: BrokerConfig,
    surroundings: Surroundings,
    cluster_metadata: ClusterMetadata,
) -> list[Upkeep]:
    """The periodic tasks of the metadata and of runs in the bucket."""
    own = parts.own
    work = [] if own is None else own.upkeep(remote_log_manager)
    # With other brokers, compaction must look up and record in one step. A plug-in need not support
    # that.
    if own is not None or config.has_embedded_controller:
        tasks = UpkeepTasks(
            remote_log_manager,
            config,
            own.settings if own is not None else TopicBasedSettings(),
            surroundings,
            is_alone=config.has_embedded_controller,
        )
        work += tasks.rewriting(
            parts.storage,
            parts.metadata,
            lambda partition: _replicas(cluster_metadata, partition),
            replica_manager,
        )
    return work


def embedded_metadata(
    controller: Controller,
    replica_manager: ReplicaManager,
    config: BrokerConfig,
    surroundings: Surroundings,
    *,
    run_control: Callable[[Callable[[], None]], Future[None]],
) -> OwnMetadata:
    """The metadata manager on topics of this broker. Creates missing topics. Raises ConfigError."""
    remote, clock = config.remote, surroundings.clock
    settings = TopicBasedSettings.from_config(remote.rlmm_config)
    levels = MetadataLevels(controller)
    ensure_metadata_topics(controller, settings, levels)
    warn_of_metadata_topics(controller, remote, levels)
    partition_count = settings.remote_log_metadata_topic_num_partitions
    topic, audit_topic = (
        EmbeddedRemoteMetadataTopic(replica_manager, clock, partition_count, name)
        for name in REMOTE_LOG_METADATA_TOPICS
    )
    metadata = TopicBasedRemoteLogMetadataManager(
        topic,
        clock=clock,
        metrics=surroundings.metrics,
        settings=settings,
        keyed=KeyedMetadata(audit_topic, levels.level),
    )

    def upkeep(remote_log_manager: RemoteLogManager) -> list[Upkeep]:
        upgrade = MetadataUpgrade(
            controller, levels, topic, metadata, settings, run_control=run_control, clock=clock
        )
        tasks = UpkeepTasks(remote_log_manager, config, settings, surroundings, is_alone=True)
        return [tasks.cleanup(topic, metadata, lambda _: True), tasks.upgrade(upgrade)]

    return OwnMetadata(metadata, settings, upkeep)


def _publish_counters(metrics: Metrics) -> None:
    """Register the counters of errors and repairs, so that they are exported as 0 before the
    first event.
    """
    for name, text in (
        (FOLLOW_ERRORS, FOLLOW_ERRORS_TEXT),
        (SKIPPED_RECORDS, SKIPPED_RECORDS_TEXT),
        (LOST_TOMBSTONES, LOST_TOMBSTONES_TEXT),
        (CLEANUP_ERRORS, CLEANUP_ERRORS_TEXT),
        (REPLACED, REPLACED_TEXT),
        (FINISH_ERRORS, FINISH_ERRORS_TEXT),
    ):
        metrics.counter(name, text)
    for reason in LeftOver:
        metrics.counter(CLEANED, CLEANED_TEXT, ("reason",)).labels(reason=reason.value)
    for task in TASKS:
        metrics.counter(TASK_ERRORS, TASK_ERRORS_TEXT, ("task",)).labels(task=task)


def open_index_cache(
    config: BrokerConfig,
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    surroundings: Surroundings,
) -> RemoteIndexCache:
    statistics = None
    if config.remote.remote_log_index_file_cache_statistics_enable:
        statistics = CacheStatistics()
        statistics.publish(surroundings.metrics)
    return RemoteIndexCache(
        config.log_dirs[0] / DIRECTORY_NAME,
        storage,
        total_size_bytes=config.remote.remote_log_index_file_cache_total_size_bytes,
        ttl_ms=config.remote.remote_log_index_file_cache_ttl_ms,
        clock=surroundings.clock,
        fs=surroundings.fs,
        statistics=statistics,
        rebuild_transactions=TransactionIndexRebuild(storage, metadata),
    )


def _leader_epoch(metadata: ClusterMetadata, partition: TopicIdPartition) -> LeaderEpoch | None:
    topic = _topic_with(metadata, partition)
    return None if topic is None else topic.partitions[partition.partition].leader_epoch


def _replicas(metadata: ClusterMetadata, partition: TopicIdPartition) -> frozenset[BrokerId]:
    topic = _topic_with(metadata, partition)
    return (
        frozenset() if topic is None else frozenset(topic.partitions[partition.partition].replicas)
    )


def _is_tiered(metadata: ClusterMetadata, partition: TopicIdPartition) -> bool:
    topic = _topic_with(metadata, partition)
    return topic is not None and is_remote_log_enabled(
        topic.name, metadata.topic_config(topic.name), system_enabled=True
    )


def _topic_with(metadata: ClusterMetadata, partition: TopicIdPartition) -> TopicImage | None:
    """The topic; None if it is deleted or does not have the partition."""
    topic = metadata.image.topics_by_id.get(partition.topic_id)
    return topic if topic is not None and partition.partition < len(topic.partitions) else None
