"""The partitions of this broker, by topic name and topic id, and the purgatory of waiting requests.

Metadata changes arrive on the control thread, as plans of `replica_roles`. Requests look partitions
up on the event loop. A change replaces the `HostedTopic` of a topic as a whole, so a look-up needs
no lock and sees the state before or after it. A partition with a failed log directory is offline
until the broker restarts; one with a damaged log until the log is repaired. Look-ups of an offline
partition raise an error.
Source: Kafka ReplicaManager.scala.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from isotherm.broker.metadata.directory_ids import MIGRATING, UNASSIGNED
from isotherm.broker.metadata.image import PartitionImage, TopicImage
from isotherm.broker.partitions.adopted_history import begin_behind, is_replicated
from isotherm.broker.partitions.log_dir_moves import FutureReplica, LogDirMoves, RunControl
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
from isotherm.clock import Clock
from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    LogDirFailedError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.log.offline_logs import OfflineLog
from isotherm.log.partition_log import PartitionLog
from isotherm.log.tiering import is_remote_log_enabled
from isotherm.types import (
    Offset,
    TopicIdPartition,
    TopicPartition,
    uuid_to_text,
)

if TYPE_CHECKING:
    from isotherm.remote.remote_log_manager import RemoteLogManager

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostedTopic:
    """A topic of this broker.

    `partitions` are served; `offline` has the indexes of those that are not.
    """

    name: str
    topic_id: uuid.UUID
    config: TopicConfig
    partitions: Mapping[int, Partition]
    offline: frozenset[int] = frozenset()


class TakenRole(NamedTuple):
    """A partition whose image was applied. `is_news`: this broker has begun to lead it, or follows
    it in a new leader epoch."""

    partition: Partition
    image: PartitionImage
    is_news: bool


class ReplicaManager:
    def __init__(
        self,
        log_manager: LogManager,
        purgatory: Purgatory[Hashable],
        cluster: ClusterView,
    ) -> None:
        """`purgatory` holds requests by the partition, or the fetch session, whose changes they
        wait for.
        """
        self.purgatory = purgatory
        self._log_manager = log_manager
        self._cluster = cluster
        self._remote_log_manager: RemoteLogManager | None = None
        self._moves: LogDirMoves | None = None
        # Directories from AlterReplicaLogDirs for replicas that are not on this broker yet.
        # At most one for each partition of the cluster.
        self._wanted_log_dirs: dict[TopicPartition, LogDir] = {}
        self._topics: dict[str, HostedTopic] = {}
        self._names: dict[uuid.UUID, str] = {}

    # ---- histories that a job has written (AdoptsHistories), any thread

    def durable_log_start(self, partition: TopicIdPartition) -> Offset:
        replica = self.find_partition(None, partition.topic_id, partition.partition)
        return replica.log.durable_log_start_offset

    def begin_behind(
        self, partition: TopicIdPartition, start_offset: Offset, end_offset: Offset
    ) -> None:
        replica = self.find_partition(None, partition.topic_id, partition.partition)
        begin_behind(replica, self._log_manager, start_offset, end_offset)

    def is_replicated(self, partition: TopicIdPartition, end_offset: Offset) -> bool:
        replica = self.find_partition(None, partition.topic_id, partition.partition)
        return is_replicated(replica, end_offset)

    # ---- look-ups, any thread

    def find_partition(
        self, topic: str | None, topic_id: uuid.UUID | None, partition: int
    ) -> Partition:
        """Find a partition by topic id if the request has one, else by name.

        Raises UnknownTopicIdError, UnknownTopicOrPartitionError, NotLeaderOrFollowerError (only
        other brokers have it), which make the client refresh its metadata, and LogDirFailedError
        (it is offline).
        """
        if topic is None:
            topic = self._name_of(topic_id)
        hosted = self._topics.get(topic)
        hosted_partition = hosted.partitions.get(partition) if hosted is not None else None
        if hosted_partition is None:
            raise self._why_missing(hosted, topic, partition)
        return hosted_partition

    def _why_missing(
        self, hosted: HostedTopic | None, topic: str, partition: int
    ) -> LogDirFailedError | NotLeaderOrFollowerError | UnknownTopicOrPartitionError:
        place = f"topic={topic} partition={partition}"
        if hosted is not None and partition in hosted.offline:
            return LogDirFailedError(
                "the partition is offline, its log directory or a file of its log is damaged"
                f" {place}"
            )
        image = self._cluster.find_topic(topic)
        if image is not None and 0 <= partition < len(image.partitions):
            return NotLeaderOrFollowerError(f"this broker has no replica of the partition {place}")
        return UnknownTopicOrPartitionError(f"no such partition {place}")

    def _name_of(self, topic_id: uuid.UUID | None) -> str:
        name = self._names.get(topic_id) if topic_id is not None else None
        if name is not None:
            return name
        image = self._cluster.find_topic(topic_id) if topic_id is not None else None
        if image is not None:
            return image.name
        text = "none" if topic_id is None else uuid_to_text(topic_id)
        raise UnknownTopicIdError(f"no topic has this id topic_id={text}")

    def is_offline(self, topic: str, partition: int) -> bool:
        hosted = self._topics.get(topic)
        return hosted is not None and partition in hosted.offline

    def local_replica(self, topic_partition: TopicPartition) -> Partition | None:
        """This broker's online replica, as leader or follower; None if there is none."""
        hosted = self._topics.get(topic_partition.topic)
        return None if hosted is None else hosted.partitions.get(topic_partition.partition)

    def topic(self, name: str) -> HostedTopic | None:
        return self._topics.get(name)

    def topics(self) -> tuple[HostedTopic, ...]:
        return tuple(self._topics.values())

    def logs(self) -> tuple[PartitionLog, ...]:
        """Every log of this broker, including the cluster metadata log and offline logs."""
        return self._log_manager.logs()

    def log_dirs(self) -> tuple[LogDir, ...]:
        return self._log_manager.log_dirs()

    def damaged_logs(self) -> tuple[OfflineLog, ...]:
        return self._log_manager.offline_logs()

    def future_replicas(self) -> list[FutureReplica]:
        """The unfinished copies of logs that are moved to another directory."""
        return [] if self._moves is None else self._moves.future_replicas()

    # ---- changes, on the control thread

    def start_moves(
        self, run_control: RunControl, quota: ReplicationQuota, clock: Clock, *, thread_count: int
    ) -> LogDirMoves:
        """Continue the moves between directories that the last process did not finish. The caller
        stops the returned object."""
        self._moves = LogDirMoves(
            self._log_manager,
            self._cluster,
            run_control,
            quota,
            clock,
            thread_count=thread_count,
            on_moved=self._on_moved,
            on_lost=lambda lost: self._take_offline([lost]),
        )
        for topic_partition, log_dir in self._log_manager.interrupted_moves.items():
            partition = self.local_replica(topic_partition)
            if partition is not None:
                self._moves.move(partition, log_dir)
        return self._moves

    def move_replica(self, topic_partition: TopicPartition, log_dir: LogDir) -> None:
        """Begin to move a replica to this directory, which is online.

        Raises NotLeaderOrFollowerError if the replica is not here; the directory is then kept for a
        future replica. Raises LogDirFailedError while any directory is offline, as in Kafka,
        because that directory may have another copy. Raises as `find_partition` does.
        """
        assert self._moves is not None, "start_moves was called"
        try:
            partition = self.find_partition(topic_partition.topic, None, topic_partition.partition)
        except NotLeaderOrFollowerError:
            self._wanted_log_dirs[topic_partition] = log_dir
            raise
        if partition.log.log_dir is not log_dir and self._log_manager.offline_log_dirs():
            raise LogDirFailedError(
                "no replica is moved while a log directory is offline"
                f" partition={topic_partition} dir={log_dir.path}"
            )
        self._moves.move(partition, log_dir)

    def _on_moved(self, partition: Partition) -> None:
        """Restart the tasks of the remote tier with the log that is used now."""
        if self._remote_log_manager is not None and partition.log.remote_log_enabled:
            places = [partition.topic_id_partition]
            self._remote_log_manager.stop_partitions(places, delete_remote=False)
            self.notify_remote_tier([partition])
        self.purgatory.notify(partition.topic_partition)

    def start_tiering(self, remote_log_manager: RemoteLogManager) -> None:
        """Hand every tiered partition to `remote_log_manager`, now and in the future.

        Called after the roles are taken, since one of the topics stores the metadata of the remote
        tier.
        """
        self._remote_log_manager = remote_log_manager
        for topic in self.topics():
            self.notify_remote_tier(topic.partitions.values())

    def take_roles(
        self,
        topic: TopicImage,
        images: Iterable[PartitionImage],
        config: TopicConfig,
        *,
        is_new: bool,
    ) -> list[TakenRole]:
        """Lead or follow these partitions of a topic, as their images say. Creates missing logs.

        A partition whose log may be in an offline directory is offline too, because a new, empty
        log would hide its records. That is possible if the directory in the metadata is not online,
        or if the metadata names no directory and the topic is not new. A partition with a damaged
        log is offline as well.
        """
        hosted_topic = self._topics.get(topic.name) or HostedTopic(
            topic.name, topic.topic_id, config, {}
        )
        if hosted_topic.topic_id != topic.topic_id:
            raise AssertionError(
                f"an earlier topic of this name was not deleted topic={topic.name}"
                f" topic_id={uuid_to_text(topic.topic_id)}"
                f" known={uuid_to_text(hosted_topic.topic_id)}"
            )
        partitions, offline = dict(hosted_topic.partitions), set(hosted_topic.offline)
        taken = []
        for image in images:
            # Stays offline until `bring_online` or a restart: another image does not repair it.
            if image.partition in hosted_topic.offline:
                continue
            partition = partitions.get(image.partition)
            try:
                if partition is None:
                    partition = self._open(topic, image, config, is_new=is_new)
                taken.append(self._take_role(partition, image))
            except LogDirFailedError as error:
                logger.warning("partition is offline: %s", error)
                offline.add(image.partition)
                continue
            partitions[image.partition] = partition
        if offline != hosted_topic.offline:
            logger.error(
                "partitions are offline topic=%s partitions=%s", topic.name, sorted(offline)
            )
        # Once, at the end: a look-up finds a new partition only after it has its role.
        self._topics[topic.name] = replace(
            hosted_topic, partitions=partitions, offline=frozenset(offline)
        )
        self._names[topic.topic_id] = topic.name
        return taken

    def _open(
        self, topic: TopicImage, image: PartitionImage, config: TopicConfig, *, is_new: bool
    ) -> Partition:
        place = TopicIdPartition(topic.topic_id, topic.name, image.partition)
        topic_partition = place.topic_partition
        directory_id = image.directory(self._cluster.broker_id)
        log_dir = None
        if directory_id in (None, MIGRATING):
            may_be_away = not is_new
        else:
            log_dir = self._cluster.find_log_dir(directory_id)
            may_be_away = log_dir is None and directory_id != UNASSIGNED
        known_log = self._log_manager.log(topic_partition)
        if known_log is not None:
            known_log.log_dir.check_online()
        elif directory_id == UNASSIGNED:
            log_dir = self._wanted_log_dir(topic_partition)
        elif may_be_away and self._log_manager.offline_log_dirs():
            raise LogDirFailedError(
                f"the log may be in a directory that is offline partition={topic_partition}"
            )
        if self._log_manager.is_damaged(topic_partition):
            raise LogDirFailedError(f"the log is damaged partition={topic_partition}")
        log = self._log_manager.create_log(topic_partition, topic.topic_id, config, log_dir=log_dir)
        if log.log_dir is not log_dir:
            self._cluster.note_directory(place, log.log_dir)
        return Partition(place, log, self._cluster, self.purgatory)

    def _wanted_log_dir(self, topic_partition: TopicPartition) -> LogDir | None:
        directory = self._wanted_log_dirs.pop(topic_partition, None)
        return directory if directory is not None and directory.is_online else None

    def _take_role(self, partition: Partition, image: PartitionImage) -> TakenRole:
        if image.leader == self._cluster.broker_id:
            return TakenRole(partition, image, partition.make_leader(image))
        return TakenRole(partition, image, partition.make_follower(image))

    def bring_online(self, topic: TopicImage, index: int) -> TakenRole | None:
        """Serve a partition whose damaged log was repaired. Returns None if it is not here any
        more.

        Raises CorruptDataError if the log is still damaged, and LogDirFailedError.
        """
        return self._serve_again(topic, index, self._log_manager.load_again)

    def begin_anew(self, topic: TopicImage, index: int) -> TakenRole | None:
        """Serve a partition with a damaged log again, with a new, empty log in the same directory.

        The directory of the damaged log gets the suffix `-stray`. Returns None if the partition is
        not here any more. Raises LogDirFailedError.
        """

        def replace_log(topic_partition: TopicPartition) -> PartitionLog:
            log_dir = self._log_manager.set_aside(topic_partition)
            config = self._topics[topic.name].config
            return self._log_manager.create_log(
                topic_partition, topic.topic_id, config, log_dir=log_dir
            )

        return self._serve_again(topic, index, replace_log)

    def _serve_again(
        self, topic: TopicImage, index: int, open_log: Callable[[TopicPartition], PartitionLog]
    ) -> TakenRole | None:
        hosted = self._topics.get(topic.name)
        if hosted is None or hosted.topic_id != topic.topic_id or index not in hosted.offline:
            return None
        place = TopicIdPartition(topic.topic_id, topic.name, index)
        log = open_log(place.topic_partition)
        image = topic.partitions[index]
        if not self._cluster.is_recorded(place, log.log_dir):
            self._cluster.note_directory(place, log.log_dir)
        partition = Partition(place, log, self._cluster, self.purgatory)
        taken = self._take_role(partition, image)
        self._topics[topic.name] = replace(
            hosted,
            partitions={**hosted.partitions, index: partition},
            offline=hosted.offline - {index},
        )
        logger.info("partition is served again partition=%s", place)
        self.notify_remote_tier([taken.partition])
        return taken

    def take_offline(self, log_dir: LogDir) -> None:
        """Stop serving the partitions of a failed directory, and complete waiting requests.

        Their remote segments stay; nothing of them is copied or deleted while they are offline.
        """
        self._take_offline(
            partition
            for topic in self.topics()
            for partition in topic.partitions.values()
            if partition.log.log_dir is log_dir
        )

    def _take_offline(self, failed: Iterable[Partition]) -> None:
        by_topic: dict[str, dict[int, Partition]] = {}
        for partition in failed:
            name, index = partition.topic_partition
            by_topic.setdefault(name, {})[index] = partition
        for name, lost in by_topic.items():
            topic = self._topics[name]
            served = {i: partition for i, partition in topic.partitions.items() if i not in lost}
            # Replaced before waiting requests wake: their second read must find the partition
            # offline.
            self._topics[name] = replace(
                topic, partitions=served, offline=topic.offline | lost.keys()
            )
            logger.error("partitions are offline topic=%s partitions=%s", name, sorted(lost))
            for partition in lost.values():
                self._cancel_move(partition.topic_partition)
                partition.leave()
            if self._remote_log_manager is not None:
                self._remote_log_manager.stop_partitions(
                    [
                        partition.topic_id_partition
                        for partition in lost.values()
                        if partition.log.remote_log_enabled
                    ],
                    delete_remote=False,
                )

    def _cancel_move(self, topic_partition: TopicPartition) -> None:
        if self._moves is not None:
            self._moves.cancel(topic_partition)

    def stop_partitions(self, stopped: Iterable[TopicIdPartition], *, delete_remote: bool) -> None:
        """Stop serving these partitions and delete their logs. Partitions of a topic that was
        created again under the same name, with another id, are left alone. A log whose directory
        fails stays there: the next start with the directory finds that it is not needed.

        With `delete_remote` their remote segments are deleted too, in the background, since that
        may take long or need retries.
        """
        by_topic: dict[str, list[TopicIdPartition]] = {}
        for partition in stopped:
            hosted = self._topics.get(partition.topic)
            if hosted is not None and hosted.topic_id == partition.topic_id:
                by_topic.setdefault(partition.topic, []).append(partition)
        for name, places in by_topic.items():
            self._stop(self._topics[name], places, delete_remote=delete_remote)

    def _stop(
        self, hosted: HostedTopic, places: list[TopicIdPartition], *, delete_remote: bool
    ) -> None:
        indexes = {place.partition for place in places}
        left = {i: partition for i, partition in hosted.partitions.items() if i not in indexes}
        # Removed first, so that no new request finds them. Waiting requests complete after that.
        if left or hosted.offline - indexes:
            self._topics[hosted.name] = replace(
                hosted, partitions=left, offline=hosted.offline - indexes
            )
        else:
            del self._topics[hosted.name]
            del self._names[hosted.topic_id]
        for index in indexes & hosted.partitions.keys():
            hosted.partitions[index].leave()
        for place in places:
            self._cancel_move(place.topic_partition)
        is_tiered = is_remote_log_enabled(
            hosted.name, hosted.config, system_enabled=self._remote_log_manager is not None
        )
        # Before the logs are deleted: their remote deletion is on the disk then. Until that, the
        # directories are the only trace by which a start can resume it.
        if self._remote_log_manager is not None and is_tiered:
            self._remote_log_manager.stop_partitions(places, delete_remote=delete_remote)
        for place in places:
            # A failed directory must not keep the other logs from being deleted, nor end the
            # broker, which serves its other directories.
            try:
                self._log_manager.delete_log(place.topic_partition)
            except LogDirFailedError as error:
                logger.warning("log is not deleted partition=%s reason='%s'", place, error)

    def update_config(self, name: str, config: TopicConfig) -> None:
        """Apply a topic's new configuration to its logs. Tiering starts if it is now enabled.

        If tiering was disabled, the leader deletes the remote segments, and the log start moves to
        the local log start (KIP-950, remote.log.delete.on.disable). A log whose directory fails
        goes offline with it.
        """
        newly_tiered, untiered = [], []
        if name not in self._topics:
            return  # it has no replica here
        self._topics[name] = replace(self._topics[name], config=config)
        for partition in self._topics[name].partitions.values():
            was_tiered = partition.log.remote_log_enabled
            try:
                self._log_manager.update_log_config(partition.log, config)
            except LogDirFailedError as error:
                _warn_of_config(partition, error)
                continue
            if partition.log.remote_log_enabled and not was_tiered:
                newly_tiered.append(partition)
            elif was_tiered and not partition.log.remote_log_enabled:
                untiered.append(partition)
        self.notify_remote_tier(newly_tiered)
        self._leave_remote(untiered)

    def _leave_remote(self, partitions: Sequence[Partition]) -> None:
        if self._remote_log_manager is None or not partitions:
            return
        led = [partition for partition in partitions if partition.is_leader]
        for group, is_led in ((led, True), ([p for p in partitions if not p.is_leader], False)):
            places = [partition.topic_id_partition for partition in group]
            self._remote_log_manager.stop_partitions(places, delete_remote=is_led)
        for partition in led:
            log = partition.log
            try:
                log.maybe_increment_log_start_offset(log.local_log_start_offset)
            except LogDirFailedError as error:
                _warn_of_config(partition, error)

    def notify_remote_tier(self, partitions: Iterable[Partition]) -> None:
        """Start the remote tier's tasks for the tiered partitions, each for its role."""
        tiered = [partition for partition in partitions if partition.log.remote_log_enabled]
        if self._remote_log_manager is not None and tiered:
            self._remote_log_manager.on_leadership_change(
                [partition.log for partition in tiered if partition.is_leader],
                [partition.log for partition in tiered if not partition.is_leader],
            )


def _warn_of_config(partition: Partition, error: LogDirFailedError) -> None:
    logger.warning(
        "a topic's configuration is not in effect partition=%s reason='%s'",
        partition.topic_partition,
        error,
    )
