"""The differences of two images of the cluster's metadata. Pure.

Images share the maps and topics that did not change, so the time goes with what changed, and a few
nanoseconds per topic that exists. The images may be of a log, one after the other, or the second of
a snapshot that has nothing in common with the first. Source: Kafka TopicsDelta.
"""

from __future__ import annotations

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.image import MetadataImage, TopicImage
from isotherm.broker.metadata.metadata_records import TOPIC_RESOURCE


def change_between(old: MetadataImage, new: MetadataImage) -> MetadataChange:
    """The change to `new`. Topics are named by id: one that was deleted and made again is both.

    A topic may be `grown` and `moved`. The configuration of this broker is not looked at.
    """
    kept = _changed_topics(old, new)
    return MetadataChange(
        new,
        created=_topics_of_one(new, old),
        deleted=_topics_of_one(old, new),
        grown=tuple(now for before, now in kept if len(now.partitions) > len(before.partitions)),
        moved=tuple(now for before, now in kept if _has_moved(before, now)),
        reconfigured=_reconfigured_topics(old, new),
        quotas_changed=old.client_quotas != new.client_quotas,
        features_changed=old.features != new.features,
        brokers_changed=old.brokers != new.brokers,
    )


def is_empty(change: MetadataChange) -> bool:
    """Whether only the end offset of the image is another."""
    return change == MetadataChange(change.image)


def _topics_of_one(image: MetadataImage, other: MetadataImage) -> tuple[TopicImage, ...]:
    if image.topics_by_id is other.topics_by_id:
        return ()
    others = other.topics_by_id
    return tuple(topic for id_, topic in image.topics_by_id.items() if id_ not in others)


def _changed_topics(old: MetadataImage, new: MetadataImage) -> list[tuple[TopicImage, TopicImage]]:
    """Each topic of both images that differs: before and now."""
    if old.topics_by_id is new.topics_by_id:
        return []
    pairs = ((old.topics_by_id.get(id_), topic) for id_, topic in new.topics_by_id.items())
    return [(before, now) for before, now in pairs if before is not None and before is not now]


def _has_moved(before: TopicImage, now: TopicImage) -> bool:
    return now.partitions[: len(before.partitions)] != before.partitions


def _reconfigured_topics(old: MetadataImage, new: MetadataImage) -> tuple[str, ...]:
    """Topics of both images with other settings."""
    if old.configs is new.configs:
        return ()
    resources = dict.fromkeys((*old.configs, *new.configs))
    return tuple(
        resource.name
        for resource in resources
        if resource.resource_type == TOPIC_RESOURCE
        and old.configs.get(resource) != new.configs.get(resource)
        and _is_same_topic(resource.name, old, new)
    )


def _is_same_topic(name: str, old: MetadataImage, new: MetadataImage) -> bool:
    before, now = old.topics_by_name.get(name), new.topics_by_name.get(name)
    return before is not None and now is not None and before.topic_id == now.topic_id
