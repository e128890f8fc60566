"""Opens the log directories at the start: locks, identity, cluster metadata, logs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.cluster_metadata_topic import METADATA_LOG_CONFIG, METADATA_TOPIC_ID
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.startup.bootstrap_checkpoint import read_bootstrap_credentials
from isotherm.broker.startup.identity import directory_id_of, establish_identity
from isotherm.broker.surroundings import Surroundings
from isotherm.config.broker import BrokerConfig
from isotherm.errors import ConfigError
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.types import TopicPartition

_TOPICS_SHOWN = 10


class LocalTier(NamedTuple):
    log_manager: LogManager
    controller: Controller
    cluster_id: str


def open_local_tier(
    config: BrokerConfig,
    surroundings: Surroundings,
    *,
    on_log_dir_failure: Callable[[LogDir], None],
) -> LocalTier:
    """Open the directories and load everything in them. The caller shuts the log manager down.

    Raises IsothermError with the cause; then no directory stays locked.
    """
    clock, fs, rng = surroundings.clock, surroundings.fs, surroundings.rng
    # The controller needs the metadata log, which the log manager opens. The log manager needs the
    # configurations of all other logs, which the controller has. Hence the lambdas below.
    log_manager = LogManager(
        config.log_dirs,
        config=config,
        topic_config_for=lambda topic: controller.topic_config(topic),
        clock=clock,
        fs=fs,
        rng=rng,
        on_log_dir_failure=on_log_dir_failure,
        catalog=_Catalog(lambda: controller),
    )
    try:
        metadata_log = log_manager.open_metadata_log(METADATA_LOG_CONFIG, METADATA_TOPIC_ID)
        cluster_id = establish_identity(fs, log_manager.live_log_dirs(), config.node_id, rng)
        controller = Controller(
            metadata_log,
            config=config,
            clock=clock,
            rng=rng,
            directory_id=directory_id_of(fs, metadata_log.log_dir.path),
            first_records=lambda: read_bootstrap_credentials(fs, config.metadata_log_dir),
        )
        check_tiered_topics(controller)
        # After the controller exists, because loading the logs needs the topics' configurations.
        log_manager.startup()
    except BaseException:
        log_manager.shutdown()
        raise
    return LocalTier(log_manager, controller, cluster_id)


def check_tiered_topics(metadata: ClusterMetadata) -> None:
    """Raises ConfigError if topics are tiered but the broker has no remote tier, as in Kafka.

    Without this check readers would skip the offsets that are only in the remote tier.
    """
    if metadata.broker_config.remote.remote_log_storage_system_enable:
        return
    tiered = sorted(
        name
        for name in metadata.image.topics_by_name
        if metadata.topic_config(name).remote_storage_enable
    )
    if tiered:
        shown = ",".join(tiered[:_TOPICS_SHOWN]) + (",..." if len(tiered) > _TOPICS_SHOWN else "")
        raise ConfigError(
            "all topics with the property remote.storage.enable=true have to be deleted before"
            " tiered storage is disabled cluster-wide: set"
            f" remote.log.storage.system.enable=true topics={shown} count={len(tiered)}"
        )


class _Catalog:
    """See `PartitionCatalog`. This broker has all partitions, so none is elsewhere."""

    def __init__(self, controller: Callable[[], Controller]) -> None:
        self._controller = controller

    def topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        topic = self._controller().image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return None
        return topic.topic_id

    def was_removed(self, topic_id: uuid.UUID) -> bool:
        return topic_id in self._controller().topics_removed

    def is_elsewhere(self, topic_partition: TopicPartition) -> bool:
        return False
