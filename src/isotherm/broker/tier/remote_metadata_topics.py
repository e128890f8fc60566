"""The two topics of the remote tier's metadata, and the feature level of each partition.

    level   __remote_log_metadata                           __remote_log_metadata_audit
    0       events, cleanup.policy=delete, kept for ever    does not exist
    1       states by key, cleanup.policy=compact           events, cleanup.policy=delete

The feature `remote.log.metadata.compaction` is the target level of the cluster. A metadata
partition is written at level 1 once the topic is compacted, or once its own live state has been
migrated. Until then its records without keys are needed, and additional ones are harmless
(docs/decisions/0027).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.features import METADATA_COMPACTION_FEATURE
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import UNLIMITED, TopicConfig
from isotherm.errors import ConfigError
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings, keys_without_effect
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC

_logger = logging.getLogger(__name__)

_RETENTION_KEY = "remote.log.metadata.topic.retention.ms"
_AUDIT_RETENTION_KEY = "remote.log.metadata.audit.topic.retention.ms"


class MetadataLevels:
    """The levels of the metadata partitions. Thread-safe. A level is never lowered."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._migrated: set[int] = set()
        self._is_compacted = False

    @property
    def feature_level(self) -> int:
        return self._controller.image.features.get(METADATA_COMPACTION_FEATURE, 0)

    @property
    def is_compacted(self) -> bool:
        """Whether the whole topic is at level 1.

        Final, because its records cannot be read at level 0.
        """
        if not self._is_compacted and self.feature_level > 0:
            self._is_compacted = self._controller.topic_config(REMOTE_LOG_METADATA_TOPIC).compacts
        return self._is_compacted

    def level(self, metadata_partition: int) -> int:
        return int(self.is_compacted or metadata_partition in self._migrated)

    def set_migrated(self, metadata_partition: int) -> None:
        """Note that the live state exists as keyed records.

        The caller excludes writers until this returns.
        """
        self._migrated.add(metadata_partition)


def ensure_metadata_topics(
    controller: Controller, settings: TopicBasedSettings, levels: MetadataLevels
) -> None:
    """Create the topics that the feature level needs. Control thread only.

    Raises ConfigError if one exists with another partition count, because events would be looked
    for in the wrong partition.
    """
    is_keyed = levels.feature_level > 0
    _ensure(
        controller,
        REMOTE_LOG_METADATA_TOPIC,
        settings,
        compacted_settings(settings)
        if is_keyed
        else deleted_settings(settings.remote_log_metadata_topic_retention_ms),
    )
    if is_keyed:
        _ensure(
            controller,
            REMOTE_LOG_METADATA_AUDIT_TOPIC,
            settings,
            deleted_settings(settings.remote_log_metadata_audit_topic_retention_ms),
        )


def metadata_topic_warnings(
    prefix: str, explicit: Mapping[str, str], topic: TopicConfig, audit_topic: TopicConfig | None
) -> list[str]:
    """Warnings about keys and topics with unexpected effects. `explicit` has the configured keys
    without `prefix`.

    `audit_topic` is None at level 0.
    """
    warnings = [
        f"configuration key has no effect key={prefix}{name} reason={reason}"
        for name, reason in keys_without_effect(explicit).items()
    ]
    retentions = [(_RETENTION_KEY, topic)]
    if audit_topic is not None:
        retentions.append((_AUDIT_RETENTION_KEY, audit_topic))
    for name, config in retentions:
        if name not in explicit:
            continue
        if config.compacts:
            reason = "the topic is compacted"
        elif config.retention_ms != int(explicit[name]):
            reason = f"the topic exists already, with retention.ms={config.retention_ms}"
        else:
            continue
        warnings.append(f"configuration key has no effect key={prefix}{name} reason={reason}")
    bounds = {"retention.ms": topic.retention_ms, "retention.bytes": topic.retention_bytes}
    bounded = {name: value for name, value in bounds.items() if value != UNLIMITED}
    if topic.deletes and bounded:
        shown = " ".join(f"{name}={value}" for name, value in bounded.items())
        warnings.append(
            "metadata topic has finite retention: segments whose events expire become unreadable,"
            f" and their objects are never deleted topic={REMOTE_LOG_METADATA_TOPIC} {shown}"
        )
    return warnings


def warn_of_metadata_topics(
    controller: Controller, config: RemoteLogManagerConfig, levels: MetadataLevels
) -> None:
    """Log the warnings at a start. The topics must exist."""
    audit_topic = None
    if levels.feature_level > 0:
        audit_topic = controller.topic_config(REMOTE_LOG_METADATA_AUDIT_TOPIC)
    topic = controller.topic_config(REMOTE_LOG_METADATA_TOPIC)
    prefix, explicit = config.remote_log_metadata_manager_impl_prefix, config.rlmm_config
    for warning in metadata_topic_warnings(prefix, explicit, topic, audit_topic):
        _logger.warning("%s", warning)


def compact_metadata_topic(controller: Controller, settings: TopicBasedSettings) -> None:
    """Enable compaction.

    Call it once every live state exists as a keyed record. Control thread only.
    """
    changes = [
        ConfigChange(name, ConfigOperation.SET, value)
        for name, value in compacted_settings(settings).items()
    ]
    controller.alter_topic_config(REMOTE_LOG_METADATA_TOPIC, changes)


def compacted_settings(settings: TopicBasedSettings) -> Mapping[str, str]:
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": str(
            settings.remote_log_metadata_topic_min_cleanable_dirty_ratio
        ),
        "delete.retention.ms": str(settings.remote_log_metadata_topic_delete_retention_ms),
        "segment.ms": str(settings.remote_log_metadata_topic_segment_ms),
        "remote.storage.enable": "false",
    }


def deleted_settings(retention_ms: int) -> Mapping[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "remote.storage.enable": "false",
    }


def _ensure(
    controller: Controller, name: str, settings: TopicBasedSettings, configs: Mapping[str, str]
) -> None:
    partition_count = settings.remote_log_metadata_topic_num_partitions
    topic = controller.image.topics_by_name.get(name)
    if topic is not None:
        if len(topic.partitions) != partition_count:
            raise ConfigError(
                "the metadata topic has another number of partitions"
                " key=rlmm.config.remote.log.metadata.topic.num.partitions"
                f" value={partition_count} topic={name} partitions={len(topic.partitions)}"
            )
        return
    (created,) = controller.create_topics(
        [NewTopic(name=name, num_partitions=partition_count, configs=configs)]
    )
    if created.error is not None:
        raise created.error
