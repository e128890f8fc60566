"""The topics of a metadata image, as consumer groups need them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment
from isotherm.types import TopicPartition

if TYPE_CHECKING:
    from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
    from isotherm.broker.metadata.image import MetadataImage, TopicImage


class NewestCatalog:
    """The catalog of the newest metadata. Event loop thread only."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._catalog: TopicCatalog | None = None

    def get(self) -> TopicCatalog:
        image = self._metadata.image
        if self._catalog is None or self._catalog.version != image.end_offset:
            self._catalog = TopicCatalog(image)
        return self._catalog


class TopicCatalog:
    """Immutable apart from a cache. `version` rises with every change of the metadata."""

    def __init__(self, image: MetadataImage) -> None:
        self.version = image.end_offset
        self._image = image
        # Of the last names: all members that subscribe to many topics subscribe to the same.
        self._hashed: tuple[frozenset[str], int] | None = None

    def find(self, name: str) -> TopicImage | None:
        return self._image.topics_by_name.get(name)

    def find_by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        return self._image.topics_by_id.get(topic_id)

    def assignment(self, partitions: Iterable[TopicPartition]) -> Assignment:
        """The assignment with topic ids. Unknown topics are left out."""
        return frozenset(
            (topic.topic_id, partition)
            for name, partition in partitions
            if (topic := self.find(name)) is not None
        )

    def partitions(self, assignment: Assignment) -> list[TopicPartition]:
        """The partitions with topic names. Deleted topics are left out."""
        return [
            TopicPartition(topic.name, partition)
            for topic_id, partition in assignment
            if (topic := self._image.topics_by_id.get(topic_id)) is not None
        ]

    def metadata_hash(self, names: frozenset[str]) -> int:
        """A hash that changes when a topic is created or deleted, or gets partitions.

        It is stored in the group's record, and a restart compares it with its own. Kafka computes a
        different hash, so a group that moves to Kafka is rebalanced once.
        """
        if self._hashed is not None and self._hashed[0] == names:
            return self._hashed[1]
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(names):
            topic = self.find(name)
            if topic is not None:
                digest.update(f"{name}\0{topic.topic_id}\0{len(topic.partitions)}\n".encode())
        number = int.from_bytes(digest.digest(), "big", signed=True)
        self._hashed = (names, number)
        return number
