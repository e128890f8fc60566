"""Keeps the partitions of this broker in line with the cluster's metadata."""

from __future__ import annotations

from isotherm.broker.controller.controller import Controller, MetadataChange
from isotherm.broker.controller.image import TopicImage
from isotherm.broker.partitions.replica_manager import ReplicaManager


def lead_partitions(controller: Controller, replica_manager: ReplicaManager) -> None:
    """Become leader of every partition, and apply every metadata change.

    Called once per start, after the registration of the broker and before requests are served.
    """

    def add(topic: TopicImage, *, is_new: bool) -> None:
        leader_epochs = {each.partition: each.leader_epoch for each in topic.partitions}
        config = controller.topic_config(topic.name)
        replica_manager.add_topic(topic.name, topic.topic_id, leader_epochs, config, is_new=is_new)

    def follow(change: MetadataChange) -> None:
        for topic in change.deleted:
            replica_manager.remove_topic(topic.name)
        for topic in (*change.created, *change.grown):
            add(topic, is_new=True)
        for name in change.reconfigured:
            replica_manager.update_config(name, controller.topic_config(name))
        if change.broker_config is not None:
            # The defaults for topics may have changed.
            for name in change.image.topics_by_name:
                replica_manager.update_config(name, controller.topic_config(name))

    for topic in controller.image.topics_by_name.values():
        add(topic, is_new=False)
    controller.add_listener(follow)
