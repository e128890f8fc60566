"""The remote tier of this broker, from its configuration: storage, metadata, indexes, tasks."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from isotherm.broker.controller.controller import Controller
from isotherm.broker.embedded_metadata_topic import EmbeddedMetadataTopic
from isotherm.broker.remote_metadata_topics import MetadataLevels, ensure_metadata_topics
from isotherm.broker.remote_metadata_upgrade import MetadataUpgrade
from isotherm.broker.remote_metadata_upkeep import RemoteMetadataUpkeep
from isotherm.broker.replica_manager import ReplicaManager
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import ConfigError
from isotherm.log.fs import FileSystem
from isotherm.metrics.registry import Metrics
from isotherm.remote.index_cache import DIRECTORY_NAME, RemoteIndexCache
from isotherm.remote.index_cache_statistics import CacheStatistics
from isotherm.remote.metadata.event_writer import KeyedMetadata
from isotherm.remote.metadata.settings import TopicBasedSettings
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, LeaderEpoch, TopicIdPartition


class RemoteTier(NamedTuple):
    """Stop the upkeep before the manager is closed."""

    remote_log_manager: RemoteLogManager
    upkeep: RemoteMetadataUpkeep


def open_remote_tier(
    config: BrokerConfig,
    controller: Controller,
    replica_manager: ReplicaManager,
    *,
    run_control: Callable[[Callable[[], None]], Future[None]],
    clock: Clock,
    rng: random.Random,
    fs: FileSystem,
    metrics: Metrics,
) -> RemoteTier:
    """Make the remote tier and hand it the partitions; the caller closes it.

    Makes the metadata topics when they are not there. On the control thread, or before there is
    one. ConfigError names the key under `rsm.config.` or `rlmm.config.` that is wrong.
    """
    settings = TopicBasedSettings.from_config(config.remote.rlmm_config)
    storage = load_storage_manager(config.remote)
    levels = MetadataLevels(controller)
    ensure_metadata_topics(controller, settings, levels)
    partition_count = settings.remote_log_metadata_topic_num_partitions
    topic, audit_topic = (
        EmbeddedMetadataTopic(replica_manager, clock, partition_count, name)
        for name in REMOTE_LOG_METADATA_TOPICS
    )
    metadata = TopicBasedRemoteLogMetadataManager(
        topic,
        clock=clock,
        metrics=metrics,
        settings=settings,
        keyed=KeyedMetadata(audit_topic, levels.level),
    )
    remote_log_manager = RemoteLogManager(
        config.remote,
        broker_id=config.node_id,
        storage=storage,
        metadata=metadata,
        index_cache=_open_index_cache(config, storage, clock=clock, fs=fs, metrics=metrics),
        pending_deletions=PendingDeletions(config.log_dirs[0], fs),
        leader_epoch_of=lambda partition: _leader_epoch(controller, partition),
        clock=clock,
        rng=rng,
        metrics=metrics,
    )
    upkeep = RemoteMetadataUpkeep(
        MetadataUpgrade(
            controller, levels, topic, metadata, settings, run_control=run_control, clock=clock
        ),
        topic,
        metadata,
        remote_log_manager,
        storage,
        config,
        settings,
        clock=clock,
        metrics=metrics,
    )
    metadata.start()
    remote_log_manager.resume_deletions(controller.partitions_removed_last)
    replica_manager.start_tiering(remote_log_manager)
    upkeep.start()
    return RemoteTier(remote_log_manager, upkeep)


def _open_index_cache(
    config: BrokerConfig,
    storage: RemoteStorageManager,
    *,
    clock: Clock,
    fs: FileSystem,
    metrics: Metrics,
) -> RemoteIndexCache:
    statistics = None
    if config.remote.remote_log_index_file_cache_statistics_enable:
        statistics = CacheStatistics()
        statistics.publish(metrics)
    return RemoteIndexCache(
        config.log_dirs[0] / DIRECTORY_NAME,
        storage,
        total_size_bytes=config.remote.remote_log_index_file_cache_total_size_bytes,
        ttl_ms=config.remote.remote_log_index_file_cache_ttl_ms,
        clock=clock,
        fs=fs,
        statistics=statistics,
    )


def _leader_epoch(controller: Controller, partition: TopicIdPartition) -> LeaderEpoch | None:
    topic = controller.image.topics_by_id.get(partition.topic_id)
    if topic is None or partition.partition >= len(topic.partitions):
        return None
    return topic.partitions[partition.partition].leader_epoch


def load_storage_manager(config: RemoteLogManagerConfig) -> RemoteStorageManager:
    """The class that `remote.log.storage.manager.class.name` names, made by its `from_config`.

    It is given the keys under `rsm.config.` without the prefix, and is held to the contract of
    isotherm.testing.conformance. ConfigError when there is no such class.
    """
    module_name, _, class_name = config.remote_log_storage_manager_class_name.rpartition(".")
    try:
        storage_class = getattr(importlib.import_module(module_name), class_name)
        from_config = storage_class.from_config
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(
            "no such storage manager: a Python class with a from_config method is expected"
            " key=remote.log.storage.manager.class.name"
            f" value={config.remote_log_storage_manager_class_name}"
        ) from error
    storage: RemoteStorageManager = from_config(config.rsm_config)
    return storage
