"""The topics of a metadata image, as groups of the consumer protocol see them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from isotherm.broker.groups.assignors.assignor import Assignment
from isotherm.errors import InvalidRegularExpressionError
from isotherm.types import TopicPartition

if TYPE_CHECKING:
    from isotherm.broker.controller.image import MetadataImage, TopicImage

# A pattern this long is no person's; Kafka has no bound of its own.
PATTERN_LENGTH_MAX = 10_000


class TopicCatalog:
    """Immutable. `version` rises with every change of the metadata."""

    def __init__(self, image: MetadataImage) -> None:
        self.version = image.end_offset
        self._image = image

    def find(self, name: str) -> TopicImage | None:
        return self._image.topics_by_name.get(name)

    def assignment(self, partitions: Iterable[TopicPartition]) -> Assignment:
        """With topic ids; without topics that are not there."""
        return frozenset(
            (topic.topic_id, partition)
            for name, partition in partitions
            if (topic := self.find(name)) is not None
        )

    def partitions(self, assignment: Assignment) -> list[TopicPartition]:
        """With topic names; without topics that are not there any more."""
        return [
            TopicPartition(topic.name, partition)
            for topic_id, partition in assignment
            if (topic := self._image.topics_by_id.get(topic_id)) is not None
        ]

    def matching(self, pattern: str) -> frozenset[str]:
        """Names that `pattern` matches as a whole; see `matching_names`.

        Internal topics too: Kafka leaves it to the client to write a pattern without them.
        """
        return matching_names(pattern, self._image.topics_by_name)

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Changes whenever one of the topics is made, deleted or gets partitions.

        It goes into the group's record, where a restart compares it with its own; Kafka computes
        another one, and would take ours as a sign that something has changed.
        """
        digest = hashlib.blake2b(digest_size=8)
        for name in sorted(names):
            topic = self.find(name)
            if topic is not None:
                digest.update(f"{name}\0{topic.topic_id}\0{len(topic.partitions)}\n".encode())
        return int.from_bytes(digest.digest(), "big", signed=True)


def matching_names(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that `pattern`, in RE2's syntax (as in Kafka), matches from end to end.

    RE2 takes time linear in the names and bounded memory, whatever the pattern: Arrow brings it.
    Raises InvalidRegularExpressionError.
    """
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise InvalidRegularExpressionError(
            f"the pattern is too long length={len(pattern)} length_max={PATTERN_LENGTH_MAX}"
        )
    # Imported when first needed: it would otherwise slow every start down.
    import pyarrow as pa
    import pyarrow.compute as pc

    ordered = sorted(names)
    try:
        # By itself first: what closes our bracket and opens another is no pattern.
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
        mask = pc.match_substring_regex(
            pa.array(ordered, type=pa.string()), pattern=rf"\A(?:{pattern})\z"
        )
    except pa.ArrowInvalid as error:
        raise InvalidRegularExpressionError(
            f"not a regular expression pattern={pattern!r}"
        ) from error
    return frozenset(
        name for name, matches in zip(ordered, mask.to_pylist(), strict=True) if matches
    )
