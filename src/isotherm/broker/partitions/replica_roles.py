"""Makes this broker the leader or a follower of its partitions, as the metadata says.

    MetadataChange ──► plan_roles (pure) ──► deletions ──► leaders ──► followers ──► remote tier
                                                              │            │
                                                    fetchers removed   fetchers restarted, where the
                                                                       leader epoch is new

Deletions come first, because a topic may be created again under the same name in the same change.
Each plan is for one image, and images are applied in order, on the control thread. `Partition`
refuses an image whose partition epoch is older than that of a controller's answer.

With the embedded controller the same code runs: this broker leads every partition, and none has a
follower.
Source: Kafka ReplicaManager.applyDelta, TopicDelta.localChanges.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata, MetadataChange
from isotherm.broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager, TakenRole
from isotherm.broker.partitions.replication.replica_fetcher_manager import LeaderToFetch
from isotherm.types import BrokerId, Offset, TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)


class ReplicaFetchers(Protocol):
    """Fetches the partitions that this broker follows.

    `add` and `remove` wait for a fetcher that is appending to one of the partitions. Records that
    were fetched before are appended before the call returns, or never.
    """

    def add(self, fetches: Iterable[LeaderToFetch]) -> None:
        """Fetch each partition from its leader, in the partition's current leader epoch."""

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. Partitions that are not fetched are ignored."""

    def stop(self) -> None:
        """Stop fetching. Returns when every append has ended."""

    def lags(self) -> Mapping[TopicPartition, Offset]:
        """The lag of each partition in offsets, where it is known."""

    def failed_partitions(self) -> Collection[TopicPartition]:
        """The partitions that are not fetched before a new leader epoch."""


class NoFetchers:
    """The fetchers of a broker that leads all of its partitions."""

    def add(self, fetches: Iterable[LeaderToFetch]) -> None:
        raise AssertionError(f"nothing can be followed fetches={list(fetches)}")

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        return

    def stop(self) -> None:
        return

    def lags(self) -> Mapping[TopicPartition, Offset]:
        return {}

    def failed_partitions(self) -> Collection[TopicPartition]:
        return ()


class TopicRoles(NamedTuple):
    """Partitions of one topic that take the same role.

    `is_new`: the topic is new or has more partitions than before. So a partition without a log here
    cannot have one in an offline directory.
    """

    topic: TopicImage
    partitions: tuple[PartitionImage, ...]
    is_new: bool


class RolePlan(NamedTuple):
    """The steps of a change, in the order in which they are carried out.

    `deleted` are partitions that this broker led when their topic was deleted; their remote
    segments are deleted too. `unassigned` lose only the local log.
    """

    deleted: tuple[TopicIdPartition, ...]
    unassigned: tuple[TopicIdPartition, ...]
    leaders: tuple[TopicRoles, ...]
    followers: tuple[TopicRoles, ...]


HostedPartitions = Mapping[uuid.UUID, Mapping[int, PartitionImage | None]]
"""The partitions of this broker, by topic id and partition index: the image that was last applied,
or None for an offline partition."""


def plan_roles(broker_id: BrokerId, change: MetadataChange, hosted: HostedPartitions) -> RolePlan:
    """The steps that `change` requires of this broker, without partitions whose image is applied
    already.
    """
    deleted: list[TopicIdPartition] = []
    unassigned: list[TopicIdPartition] = []
    leaders: list[TopicRoles] = []
    followers: list[TopicRoles] = []
    for topic in change.deleted:
        for image in _hosted_of(topic, hosted):
            was_led = image.leader == broker_id
            # One broker deletes the remote segments of a partition: the one that led it last.
            (deleted if was_led else unassigned).append(_place(topic, image))
    grown = {topic.topic_id for topic in (*change.created, *change.grown)}
    changed = {topic.topic_id: topic for topic in (*change.created, *change.grown, *change.moved)}
    for topic in changed.values():
        unassigned += [
            _place(topic, image)
            for image in _hosted_of(topic, hosted)
            if broker_id not in image.replicas
        ]
        here, is_new = hosted.get(topic.topic_id, {}), topic.topic_id in grown
        taken = [
            image
            for image in topic.partitions
            if broker_id in image.replicas and here.get(image.partition) != image
        ]
        led = tuple(image for image in taken if image.leader == broker_id)
        followed = tuple(image for image in taken if image.leader != broker_id)
        leaders += [TopicRoles(topic, led, is_new)] if led else []
        followers += [TopicRoles(topic, followed, is_new)] if followed else []
    return RolePlan(tuple(deleted), tuple(unassigned), tuple(leaders), tuple(followers))


def _hosted_of(topic: TopicImage, hosted: HostedPartitions) -> list[PartitionImage]:
    here = hosted.get(topic.topic_id, {})
    return [image for image in topic.partitions if image.partition in here]


def _place(topic: TopicImage, image: PartitionImage) -> TopicIdPartition:
    return TopicIdPartition(topic.topic_id, topic.name, image.partition)


def may_discard_log(
    broker_id: BrokerId, topic: TopicImage, index: int, image: MetadataImage
) -> bool:
    """Whether this broker can discard its log of a partition without losing acknowledged records.

    It can if another, unfenced broker leads, and the controller would elect this replica in no
    election.
    """
    partition = topic.partitions[index]
    leader = image.brokers.get(partition.leader)
    safe_to_elect = {*partition.isr, *partition.elr, *partition.last_known_elr}
    return (
        broker_id in partition.replicas
        and broker_id not in safe_to_elect
        and partition.leader != broker_id
        and leader is not None
        and not leader.fenced
    )


class ReplicaRoles:
    """Keeps the partitions of this broker in line with the cluster's metadata.

    Control thread only.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: ClusterMetadata,
        replica_manager: ReplicaManager,
        fetchers: ReplicaFetchers,
        *,
        inter_broker_listener: str,
    ) -> None:
        """`inter_broker_listener` is the name of the listener at which fetchers connect to
        leaders.
        """
        self._broker_id = broker_id
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._fetchers = fetchers
        self._listener = inter_broker_listener
        self._applied_offset = -1
        # Followed partitions whose leader has no endpoint yet. They are fetched once it is
        # registered.
        self._waiting: dict[TopicPartition, Partition] = {}

    def start(self) -> None:
        """Take every role of the current image, and apply each later change.

        Called once per start, after the logs are loaded and before requests are served.
        """
        image = self._metadata.image
        self._carry_out(
            image,
            plan_roles(
                self._broker_id,
                MetadataChange(image, moved=tuple(image.topics_by_name.values())),
                {},
            ),
        )
        self._metadata.add_listener(self.apply)

    def apply(self, change: MetadataChange) -> None:
        """Carry out a change.

        An image older than the last one is ignored: its plan would undo newer roles.
        """
        image = change.image
        if image.end_offset < self._applied_offset:
            logger.warning(
                "metadata is older than what is applied end_offset=%d applied=%d",
                image.end_offset,
                self._applied_offset,
            )
            return
        self._carry_out(image, plan_roles(self._broker_id, change, self._hosted(change)))
        if change.brokers_changed:
            self._fetch(list(self._waiting.values()), image)
        for name in change.reconfigured:
            self._replica_manager.update_config(name, self._metadata.topic_config(name))
        if change.broker_config is not None:
            # The defaults for topics may have changed.
            for topic in self._replica_manager.topics():
                config = self._metadata.topic_config(topic.name)
                self._replica_manager.update_config(topic.name, config)

    def _hosted(self, change: MetadataChange) -> HostedPartitions:
        hosted: dict[uuid.UUID, Mapping[int, PartitionImage | None]] = {}
        for topic in (*change.deleted, *change.created, *change.grown, *change.moved):
            here = self._replica_manager.topic(topic.name)
            if here is not None:
                # By the id that is here: a topic that was created again has another one.
                hosted[here.topic_id] = {
                    **{index: partition.image for index, partition in here.partitions.items()},
                    **dict.fromkeys(here.offline),
                }
        return hosted

    # ---- partitions that were offline

    def bring_online(self, place: TopicIdPartition) -> None:
        """Lead or follow a partition whose damaged log was repaired. A partition that is not here
        is ignored.

        Raises CorruptDataError if the log is still damaged, and LogDirFailedError.
        """
        topic = self._metadata.image.topic(place.topic_id)
        if topic is not None:
            self._rejoin(self._replica_manager.bring_online(topic, place.partition))

    def begin_anew(self, place: TopicIdPartition) -> bool:
        """Replace a damaged log by an empty one and follow the leader, if no acknowledged record is
        lost by it.

        Returns whether it did so (`may_discard_log`). Raises LogDirFailedError.
        """
        image = self._metadata.image
        topic = image.topic(place.topic_id)
        if topic is None or not may_discard_log(self._broker_id, topic, place.partition, image):
            return False
        self._rejoin(self._replica_manager.begin_anew(topic, place.partition))
        return True

    def _rejoin(self, taken: TakenRole | None) -> None:
        if taken is not None and not taken.partition.is_leader:
            self._fetch([taken.partition], self._metadata.image)

    # ---- a change

    def _carry_out(self, image: MetadataImage, plan: RolePlan) -> None:
        self._applied_offset = image.end_offset
        self._stop(plan.deleted, delete_remote=True)
        self._stop(plan.unassigned, delete_remote=False)
        # Before this broker leads: no fetcher may append to a log that takes appends of producers.
        self._remove_fetchers(
            TopicPartition(roles.topic.name, partition.partition)
            for roles in plan.leaders
            for partition in roles.partitions
        )
        led = [taken for roles in plan.leaders for taken in self._take(roles)]
        followed = [taken for roles in plan.followers for taken in self._take(roles)]
        # In the same leader epoch, as after a change of the ISR, fetching goes on: the answer in
        # flight is still of the right leader.
        restarted = [taken.partition for taken in followed if taken.is_news]
        if restarted:
            # The fetcher of the old leader ends first: two fetchers must not append to one log.
            self._remove_fetchers(partition.topic_partition for partition in restarted)
            self._fetch(restarted, image)
        self._replica_manager.notify_remote_tier(taken.partition for taken in (*led, *followed))

    def _stop(self, places: tuple[TopicIdPartition, ...], *, delete_remote: bool) -> None:
        if places:
            self._remove_fetchers(place.topic_partition for place in places)
            self._replica_manager.stop_partitions(places, delete_remote=delete_remote)

    def _take(self, roles: TopicRoles) -> list[TakenRole]:
        config = self._metadata.topic_config(roles.topic.name)
        return self._replica_manager.take_roles(
            roles.topic, roles.partitions, config, is_new=roles.is_new
        )

    def _remove_fetchers(self, partitions: Iterable[TopicPartition]) -> None:
        removed = list(partitions)
        for partition in removed:
            self._waiting.pop(partition, None)
        if removed:
            self._fetchers.remove(removed)

    def _fetch(self, partitions: Iterable[Partition], image: MetadataImage) -> None:
        fetches = []
        for partition in partitions:
            broker = image.brokers.get(partition.leader)
            endpoint = None if broker is None else broker.endpoint(self._listener)
            if endpoint is None:
                self._waiting[partition.topic_partition] = partition
                continue
            self._waiting.pop(partition.topic_partition, None)
            fetches.append(LeaderToFetch(partition, partition.leader, endpoint))
        if fetches:
            self._fetchers.add(fetches)
