"""Topics in the metadata of a single broker, and its view of the cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from isotherm.broker.metadata.image import PartitionImage, TopicImage
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.clock import Clock
from isotherm.config.topic import TopicConfig
from isotherm.types import TopicIdPartition

BROKER_ID = 1


def alone(clock: Clock) -> ClusterView:
    return ClusterView(BROKER_ID, clock)


def led(index: int = 0, leader_epoch: int = 0, **more: Any) -> PartitionImage:
    """A partition with its only replica on BROKER_ID."""
    values: dict[str, Any] = {
        "partition": index,
        "replicas": (BROKER_ID,),
        "isr": (BROKER_ID,),
        "leader": BROKER_ID,
        "leader_epoch": leader_epoch,
        "partition_epoch": leader_epoch,
    }
    return PartitionImage(**{**values, **more})


def led_topic(name: str, topic_id: uuid.UUID, leader_epochs: Mapping[int, int]) -> TopicImage:
    images = tuple(led(index, epoch) for index, epoch in leader_epochs.items())
    return TopicImage(name, topic_id, images)


def lead_topic(
    manager: ReplicaManager,
    name: str,
    topic_id: uuid.UUID,
    leader_epochs: Mapping[int, int],
    config: TopicConfig,
) -> None:
    """Lead the partitions of a new topic, as `ReplicaRoles` would."""
    topic = led_topic(name, topic_id, leader_epochs)
    taken = manager.take_roles(topic, topic.partitions, config, is_new=True)
    manager.notify_remote_tier(each.partition for each in taken)


def delete_topic(manager: ReplicaManager, name: str) -> None:
    topic = manager.topic(name)
    assert topic is not None
    places = [
        TopicIdPartition(topic.topic_id, name, index)
        for index in (*topic.partitions, *topic.offline)
    ]
    manager.stop_partitions(places, delete_remote=True)


class NobodyWaits:
    """Stands in for a purgatory without delayed operations."""

    watched: frozenset[object] = frozenset()

    def notify(self, key: object) -> None:
        return
