"""The level of the remote tier's metadata in a cluster of KRaft controllers, which do not know the
level.

    declared    by each broker in its registration: the feature remote.log.metadata.compaction, 0 to
                1
    chosen      when the topics are created: level 1 if every registered broker declares it
    stored      as topics in the controllers' metadata: `__remote_log_metadata` is compacted and its
                audit topic exists. Final, because compaction has removed the events that level 0
                needs

Source: docs/decisions/0103.
"""

from __future__ import annotations

import logging

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.features import METADATA_COMPACTION_FEATURE
from isotherm.broker.metadata.image import BrokerImage
from isotherm.errors import RemoteStorageNotReadyError
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    BrokerId,
)

_logger = logging.getLogger(__name__)


class MemberMetadataLevels:
    """Reads the level from the cluster's metadata. Any thread may call it."""

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

    def first_level(self, wanted: int, replication_factor: int) -> int | None:
        """The level at which the topics are to be created: 1 if it is wanted and every registered
        broker supports it.

        None while there are fewer brokers than replicas, because the controller could not create
        the topics yet.
        """
        if len(self._cluster_metadata.image.brokers) < replication_factor:
            return None
        return 0 if self._brokers_without() else min(wanted, 1)

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
        return sorted(each for each, broker in brokers.items() if not _knows_level_1(broker))


def _knows_level_1(broker: BrokerImage) -> bool:
    return any(
        each.name == METADATA_COMPACTION_FEATURE
        and each.min_supported_version <= 1 <= each.max_supported_version
        for each in broker.features
    )
