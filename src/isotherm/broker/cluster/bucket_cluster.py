"""The cluster of a read replica without a cluster: the bucket's manifests are the metadata.

Groups are kept in the scratch folder: consumers can share partitions and commit, until the replica
stops. See ReplicaCluster.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from isotherm.broker.cluster.replica_cluster import (
    HISTORY_SETTINGS,
    ReplicaCluster,
    begin_history,
)
from isotherm.broker.coordinators.coordinator_elections import offsets_topic
from isotherm.broker.metadata.image import NO_LEADER, PartitionImage, TopicImage
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.tier.tiered_history import TieredHistory, last_segment, read_history
from isotherm.errors import ConfigError, CorruptDataError, RemoteResourceNotFoundError
from isotherm.remote.metadata.manifest_metadata import (
    ManifestMetadataManager,
    newest_topics,
    read_manifests,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_check import check_store
from isotherm.types import (
    REMOTE_LOG_METADATA_TOPICS,
    TopicIdPartition,
    random_uuid,
    uuid_to_text,
)

_logger = logging.getLogger(__name__)

HISTORY_READ_THREADS = 16
"""Histories that are read at once: each is two small objects, so reading is mostly waiting."""


class BucketCluster(ReplicaCluster):
    def open_tier(self) -> None:
        settings = ObjectStoreSettings.from_config(self._config.remote.rsm_config)
        check_store(settings, writes=False)
        # First: it refuses a folder that does not exist, where the storage manager makes one.
        segments = newest_topics(read_manifests(settings, _is_served))
        if not segments:
            raise ConfigError(
                f"no segment of a topic is in the bucket url={settings.url}"
                f" layout={settings.layout} key.prefix={settings.key_prefix or ''}"
                " hint='check the path, key.prefix and layout'"
            )
        self.tier_metadata = ManifestMetadataManager(segments)
        self.storage = ObjectStoreRemoteStorageManager(settings)
        self.cluster_id = uuid_to_text(random_uuid(self._surroundings.rng))
        self._histories = self._read_histories(self.tier_metadata)
        topics = [*_topic_images(self._histories, self._config.node_id), self._offsets_topic()]
        offsets = offsets_topic(self._config)
        configs = {topic.name: HISTORY_SETTINGS for topic in topics}
        self.publish(topics=topics, configs={**configs, offsets.name: offsets.configs})

    def _read_histories(
        self, metadata: ManifestMetadataManager
    ) -> dict[TopicIdPartition, TieredHistory]:
        def read(partition: TopicIdPartition) -> TieredHistory | None:
            last = last_segment(metadata.list_remote_log_segments(partition))
            try:
                return (
                    None if last is None else read_history(partition, last, metadata, self.storage)
                )
            except (CorruptDataError, RemoteResourceNotFoundError) as error:
                _logger.error(  # noqa: TRY400 - one line: the error names the place
                    "partition is left out, its last segment is damaged partition=%s reason='%s'",
                    partition,
                    error,
                )
                return None

        with ThreadPoolExecutor(HISTORY_READ_THREADS, "isotherm-histories") as pool:
            histories = zip(metadata.partitions, pool.map(read, metadata.partitions), strict=True)
            return {partition: history for partition, history in histories if history is not None}

    def _offsets_topic(self) -> TopicImage:
        topic, own = offsets_topic(self._config), (self._config.node_id,)
        return TopicImage(
            topic.name,
            random_uuid(self._surroundings.rng),
            tuple(PartitionImage(n, own, own, own[0], 0, 0) for n in range(topic.partitions)),
        )

    def begin_histories(
        self, replica_manager: ReplicaManager, control_executor: ThreadPoolExecutor
    ) -> None:
        for place, history in self._histories.items():
            begin_history(
                replica_manager.find_partition(place.topic, None, place.partition), history
            )
        _logger.info("history is served partitions=%d", len(self._histories))


def _is_served(topic: str) -> bool:
    return topic not in REMOTE_LOG_METADATA_TOPICS


def _topic_images(
    histories: Mapping[TopicIdPartition, TieredHistory], node_id: int
) -> list[TopicImage]:
    """The topics. Partition numbers have no gaps, so a partition without a history between others
    is there without a leader."""
    owned: dict[tuple[str, object], dict[int, TopicIdPartition]] = defaultdict(dict)
    for place in histories:
        owned[place.topic, place.topic_id][place.partition] = place
    images = []
    for places in owned.values():
        any_place = next(iter(places.values()))
        partitions = []
        for number in range(max(places) + 1):
            own = (node_id,)
            if number in places:
                epoch = histories[places[number]].leader_epochs[-1].epoch
                partitions.append(PartitionImage(number, own, own, node_id, epoch, 0))
            else:
                partitions.append(PartitionImage(number, own, (), NO_LEADER, 0, 0))
        images.append(TopicImage(any_place.topic, any_place.topic_id, tuple(partitions)))
    return images
