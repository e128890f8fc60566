"""The partitions of this broker, by topic name and topic id, and the purgatory of fetches.

The controller's changes arrive on the control thread. Requests look partitions up on the event
loop. A topic is replaced as a whole, so a lookup finds either all its partitions or none. A partition
with a failed log directory or a damaged log is offline until the broker restarts with a repaired
directory; its lookups raise an error. Source: Kafka ReplicaManager.scala.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    LogDirFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.log.offline_logs import OfflineLog
from isotherm.log.partition_log import PartitionLog
from isotherm.log.tiering import is_remote_log_enabled
from isotherm.types import (
    LeaderEpoch,
    TopicIdPartition,
    TopicPartition,
    uuid_to_text,
)

if TYPE_CHECKING:
    from isotherm.remote.remote_log_manager import RemoteLogManager

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostedTopic:
    """`partitions` are those that are served. `offline` has the indexes of the others."""

    name: str
    topic_id: uuid.UUID
    config: TopicConfig
    partitions: Mapping[int, Partition]
    offline: frozenset[int] = frozenset()

    def topic_id_partitions(self) -> list[TopicIdPartition]:
        return [
            TopicIdPartition(self.topic_id, self.name, index)
            for index in (*self.partitions, *self.offline)
        ]


class ReplicaManager:
    def __init__(
        self,
        log_manager: LogManager,
        fetch_purgatory: Purgatory[TopicPartition],
    ) -> None:
        self.fetch_purgatory = fetch_purgatory
        self._log_manager = log_manager
        self._remote_log_manager: RemoteLogManager | None = None
        self._topics: dict[str, HostedTopic] = {}
        self._names: dict[uuid.UUID, str] = {}

    # ---- look-ups, any thread

    def find_partition(
        self, topic: str | None, topic_id: uuid.UUID | None, partition: int
    ) -> Partition:
        """Find a partition by topic id if the request has one, else by name.

        UnknownTopicIdError and UnknownTopicOrPartitionError make the client refresh its metadata.
        LogDirFailedError: the partition is offline.
        """
        if topic is None:
            topic = self._name_of(topic_id)
        hosted = self._topics.get(topic)
        found = hosted.partitions.get(partition) if hosted is not None else None
        if found is None:
            if hosted is not None and partition in hosted.offline:
                raise LogDirFailedError(
                    "the partition is offline, its log directory or a file of its log is damaged"
                    f" topic={topic} partition={partition}"
                )
            raise UnknownTopicOrPartitionError(
                f"no such partition topic={topic} partition={partition}"
            )
        return found

    def _name_of(self, topic_id: uuid.UUID | None) -> str:
        name = self._names.get(topic_id) if topic_id is not None else None
        if name is None:
            text = "none" if topic_id is None else uuid_to_text(topic_id)
            raise UnknownTopicIdError(f"no topic has this id topic_id={text}")
        return name

    def is_offline(self, topic: str, partition: int) -> bool:
        hosted = self._topics.get(topic)
        return hosted is not None and partition in hosted.offline

    def topics(self) -> tuple[HostedTopic, ...]:
        return tuple(self._topics.values())

    def logs(self) -> tuple[PartitionLog, ...]:
        """Every log of this broker, including the cluster metadata log and offline logs."""
        return self._log_manager.logs()

    def log_dirs(self) -> tuple[LogDir, ...]:
        return self._log_manager.log_dirs()

    def damaged_logs(self) -> tuple[OfflineLog, ...]:
        return self._log_manager.offline_logs()

    # ---- changes, on the control thread

    def start_tiering(self, remote_log_manager: RemoteLogManager) -> None:
        """Give every tiered partition to `remote_log_manager`, now and in the future.

        Called after the topics are added, since one of them stores its metadata.
        """
        self._remote_log_manager = remote_log_manager
        for topic in self.topics():
            self._notify_remote(topic.partitions.values())

    def add_topic(
        self,
        name: str,
        topic_id: uuid.UUID,
        leader_epochs: Mapping[int, LeaderEpoch],
        config: TopicConfig,
        *,
        is_new: bool = True,
    ) -> None:
        """Become leader of these partitions of a topic, at these epochs. Creates missing logs.

        If the topic is known, only new partitions are added. In a topic that is not new, a partition
        without a log may have it in an offline directory, so it is offline too: a new, empty log
        would hide its records. A partition with a damaged log is offline as well.
        """
        known = self._topics.get(name) or HostedTopic(name, topic_id, config, {})
        may_be_offline = not is_new and bool(self._log_manager.offline_log_dirs())
        added: dict[int, Partition] = {}
        offline = set(known.offline)
        for index, epoch in leader_epochs.items():
            if index in known.partitions or index in known.offline:
                continue
            topic_partition = TopicPartition(name, index)
            log = self._log_manager.log(topic_partition)
            is_away = may_be_offline and (log is None or not log.log_dir.is_online)
            if is_away or self._log_manager.is_damaged(topic_partition):
                offline.add(index)
            else:
                added[index] = self._lead(TopicIdPartition(topic_id, name, index), epoch, config)
        if offline != known.offline:
            logger.error("partitions are offline topic=%s partitions=%s", name, sorted(offline))
        self._topics[name] = replace(
            known, partitions={**known.partitions, **added}, offline=frozenset(offline)
        )
        self._names[topic_id] = name
        self._notify_remote(added.values())

    def _lead(
        self, topic_id_partition: TopicIdPartition, epoch: LeaderEpoch, config: TopicConfig
    ) -> Partition:
        topic_partition = topic_id_partition.topic_partition
        topic_id = topic_id_partition.topic_id
        log = self._log_manager.create_log(topic_partition, topic_id, config)
        partition = Partition(topic_id_partition, log, epoch, self.fetch_purgatory.notify)
        partition.make_leader()
        return partition

    def bring_online(self, topic_id_partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        """Become leader of a partition whose damaged log was repaired. No effect on a deleted topic.

        Raises CorruptDataError if the log is still damaged, and LogDirFailedError.
        """
        name, index = topic_id_partition.topic, topic_id_partition.partition
        hosted = self._topics.get(name)
        if hosted is None or index not in hosted.offline:
            return
        self._log_manager.load_again(topic_id_partition.topic_partition)
        partition = self._lead(topic_id_partition, leader_epoch, hosted.config)
        self._topics[name] = replace(
            hosted,
            partitions={**hosted.partitions, index: partition},
            offline=hosted.offline - {index},
        )
        logger.info("partition is served again partition=%s", topic_id_partition)
        self._notify_remote([partition])

    def take_offline(self, log_dir: LogDir) -> None:
        """Stop serving the partitions of a failed directory, and complete waiting requests.

        Their segments in the remote tier stay. Nothing is copied or deleted meanwhile.
        """
        for topic in self.topics():
            failed = {
                index: partition
                for index, partition in topic.partitions.items()
                if partition.log.log_dir is log_dir
            }
            if not failed:
                continue
            served = {i: each for i, each in topic.partitions.items() if i not in failed}
            # Replaced before waiters wake up: their second read must find the partition offline.
            self._topics[topic.name] = replace(
                topic, partitions=served, offline=topic.offline | failed.keys()
            )
            logger.error(
                "partitions are offline topic=%s partitions=%s", topic.name, sorted(failed)
            )
            for partition in failed.values():
                partition.leave()
            if self._remote_log_manager is not None:
                self._remote_log_manager.stop_partitions(
                    [
                        partition.topic_id_partition
                        for partition in failed.values()
                        if partition.log.remote_log_enabled
                    ],
                    delete_remote=False,
                )

    def remove_topic(self, name: str) -> None:
        """Stop serving a deleted topic, and delete its logs in both tiers.

        The remote tier is deleted in the background, as it may take long or need retries.
        """
        # Removed first, so that no new request finds the topic. Then waiting requests complete.
        hosted = self._topics.pop(name)
        del self._names[hosted.topic_id]
        for partition in hosted.partitions.values():
            partition.leave()
        is_tiered = is_remote_log_enabled(
            name, hosted.config, system_enabled=self._remote_log_manager is not None
        )
        if self._remote_log_manager is not None and is_tiered:
            self._remote_log_manager.stop_partitions(
                hosted.topic_id_partitions(), delete_remote=True
            )
        for each in hosted.topic_id_partitions():
            self._log_manager.delete_log(each.topic_partition)

    def update_config(self, name: str, config: TopicConfig) -> None:
        """Give a topic's logs their new configuration. Tiering starts if it is now enabled.

        If tiering was disabled, the remote segments are deleted and the log starts at the local log
        start (KIP-950, remote.log.delete.on.disable).
        """
        newly_tiered, untiered = [], []
        self._topics[name] = replace(self._topics[name], config=config)
        for partition in self._topics[name].partitions.values():
            was_tiered = partition.log.remote_log_enabled
            self._log_manager.update_log_config(partition.log, config)
            if partition.log.remote_log_enabled and not was_tiered:
                newly_tiered.append(partition)
            elif was_tiered and not partition.log.remote_log_enabled:
                untiered.append(partition)
        self._notify_remote(newly_tiered)
        self._leave_remote(untiered)

    def _leave_remote(self, partitions: Sequence[Partition]) -> None:
        if self._remote_log_manager is None or not partitions:
            return
        self._remote_log_manager.stop_partitions(
            [partition.topic_id_partition for partition in partitions], delete_remote=True
        )
        for partition in partitions:
            log = partition.log
            log.maybe_increment_log_start_offset(log.local_log_start_offset)

    def _notify_remote(self, partitions: Iterable[Partition]) -> None:
        logs = [partition.log for partition in partitions if partition.log.remote_log_enabled]
        if self._remote_log_manager is not None and logs:
            self._remote_log_manager.on_leadership_change(logs)
