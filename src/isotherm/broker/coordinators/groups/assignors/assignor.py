"""The interface of server-side assignors (KIP-848). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

# (topic id, partition). Assignors do not use topic names.
AssignedPartition: TypeAlias = tuple[uuid.UUID, int]
Assignment: TypeAlias = frozenset[AssignedPartition]


def by_topic(partitions: Iterable[AssignedPartition]) -> list[tuple[uuid.UUID, list[int]]]:
    """The partitions of each topic, both in order.

    UUIDs compare and hash in Python, so their numbers stand for them here.
    """
    topics: dict[int, tuple[uuid.UUID, list[int]]] = {}
    for topic_id, index in partitions:
        number = topic_id.int
        if number in topics:
            topics[number][1].append(index)
        else:
            topics[number] = (topic_id, [index])
    for _, indexes in topics.values():
        indexes.sort()
    return [topics[number] for number in sorted(topics)]


def topic_order(topic_id: uuid.UUID) -> int:
    """The key that sorts topic ids as they compare."""
    return topic_id.int


class MemberSubscription(NamedTuple):
    """A member as an assignor sees it. `assigned` is its current target assignment, which an
    assignor may try to keep."""

    instance_id: str | None
    topics: frozenset[uuid.UUID]
    assigned: Assignment


# Takes member subscriptions by member id, and partition counts by topic id for every subscribed
# topic that exists. Returns an assignment for every member.
Assignor: TypeAlias = Callable[
    [Mapping[str, MemberSubscription], Mapping[uuid.UUID, int]], dict[str, Assignment]
]
