"""The remote tier of this broker, from its configuration: storage, metadata, indexes, tasks."""

from __future__ import annotations

import importlib
import random

from isotherm.broker.controller.controller import Controller
from isotherm.broker.controller.topic_rules import NewTopic
from isotherm.broker.embedded_metadata_topic import EmbeddedMetadataTopic
from isotherm.broker.replica_manager import ReplicaManager
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import ConfigError
from isotherm.log.fs import FileSystem
from isotherm.metrics.registry import Metrics
from isotherm.remote.index_cache import DIRECTORY_NAME, RemoteIndexCache
from isotherm.remote.metadata.settings import TopicBasedSettings
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.types import REMOTE_LOG_METADATA_TOPIC


def open_remote_log_manager(
    config: BrokerConfig,
    controller: Controller,
    replica_manager: ReplicaManager,
    *,
    clock: Clock,
    rng: random.Random,
    fs: FileSystem,
    metrics: Metrics,
) -> RemoteLogManager:
    """Make the remote tier and hand it the partitions; the caller closes it.

    Makes `__remote_log_metadata` when it is not there. On the control thread, or before there is
    one. ConfigError names the key under `rsm.config.` or `rlmm.config.` that is wrong.
    """
    settings = TopicBasedSettings.from_config(config.remote.rlmm_config)
    storage = load_storage_manager(config.remote)
    ensure_metadata_topic(controller, settings)
    metadata = TopicBasedRemoteLogMetadataManager(
        EmbeddedMetadataTopic(
            replica_manager, clock, settings.remote_log_metadata_topic_num_partitions
        ),
        clock=clock,
        metrics=metrics,
        settings=settings,
    )
    index_cache = RemoteIndexCache(
        config.log_dirs[0] / DIRECTORY_NAME,
        storage,
        total_size_bytes=config.remote.remote_log_index_file_cache_total_size_bytes,
        ttl_ms=config.remote.remote_log_index_file_cache_ttl_ms,
        clock=clock,
        fs=fs,
    )
    remote_log_manager = RemoteLogManager(
        config.remote,
        broker_id=config.node_id,
        storage=storage,
        metadata=metadata,
        index_cache=index_cache,
        pending_deletions=PendingDeletions(config.log_dirs[0], fs),
        clock=clock,
        rng=rng,
        metrics=metrics,
    )
    metadata.start()
    remote_log_manager.resume_deletions()
    replica_manager.start_tiering(remote_log_manager)
    return remote_log_manager


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


def ensure_metadata_topic(controller: Controller, settings: TopicBasedSettings) -> None:
    """Make the metadata topic as Kafka does.

    ConfigError when it is there with another number of partitions: segments' events would be
    looked for in the wrong one.
    """
    partition_count = settings.remote_log_metadata_topic_num_partitions
    topic = controller.image.topics_by_name.get(REMOTE_LOG_METADATA_TOPIC)
    if topic is not None:
        if len(topic.partitions) != partition_count:
            raise ConfigError(
                f"the metadata topic has another number of partitions"
                f" key=rlmm.config.remote.log.metadata.topic.num.partitions"
                f" value={partition_count} partitions={len(topic.partitions)}"
            )
        return
    (created,) = controller.create_topics(
        [
            NewTopic(
                name=REMOTE_LOG_METADATA_TOPIC,
                num_partitions=partition_count,
                configs={
                    "cleanup.policy": "delete",
                    "retention.ms": str(settings.remote_log_metadata_topic_retention_ms),
                    "remote.storage.enable": "false",
                },
            )
        ]
    )
    if created.error is not None:
        raise created.error
