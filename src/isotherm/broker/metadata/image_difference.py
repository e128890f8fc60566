"""The differences between two images of the cluster's metadata. Pure.

Images share unchanged maps and topics. So the cost grows with the number of changes, plus a few
nanoseconds per existing topic. The new image may also come from a snapshot and share nothing with
the old one. Source: Kafka TopicsDelta.
"""

from __future__ import annotations

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.image import MetadataImage, TopicImage
from isotherm.broker.metadata.metadata_records import TOPIC_RESOURCE


def change_between(old: MetadataImage, new: MetadataImage) -> MetadataChange:
    """The change from `old` to `new`. Topics are compared by id: a topic that was deleted and
    created again under its name is in `deleted` and in `created`.

    A topic may be in both `grown` and `moved`. This broker's configuration is not compared.
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
    """Whether nothing differs but the end offset."""
    return change == MetadataChange(change.image)


def _topics_of_one(image: MetadataImage, other: MetadataImage) -> tuple[TopicImage, ...]:
    if image.topics_by_id is other.topics_by_id:
        return ()
    others = other.topics_by_id
    return tuple(topic for id_, topic in image.topics_by_id.items() if id_ not in others)


def _changed_topics(old: MetadataImage, new: MetadataImage) -> list[tuple[TopicImage, TopicImage]]:
    """The topics that are in both images and differ, as (before, now)."""
    if old.topics_by_id is new.topics_by_id:
        return []
    pairs = ((old.topics_by_id.get(id_), topic) for id_, topic in new.topics_by_id.items())
    return [(before, now) for before, now in pairs if before is not None and before is not now]


def _has_moved(before: TopicImage, now: TopicImage) -> bool:
    # New partitions make a topic `grown`, not `moved`.
    return now.partitions[: len(before.partitions)] != before.partitions


def _reconfigured_topics(old: MetadataImage, new: MetadataImage) -> tuple[str, ...]:
    """The topics in both images whose settings differ."""
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
