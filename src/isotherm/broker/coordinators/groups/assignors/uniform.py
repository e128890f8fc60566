"""The `uniform` assignor: as balanced as the subscriptions allow, with as few moves as possible.

Members keep partitions of their previous target up to their quota. Free partitions go to the
members with the fewest. With equal subscriptions quotas differ by at most one. With different
subscriptions, partitions then move from members with more to members with fewer, as long as that
improves the balance.
Source: Kafka UniformAssignor.java (its two builders); KIP-848.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Iterable, Mapping, Sequence

from isotherm.broker.coordinators.groups.assignors.assignor import (
    AssignedPartition,
    Assignment,
    MemberSubscription,
    by_topic,
    topic_order,
)

NAME = "uniform"


def assign(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, int]
) -> dict[str, Assignment]:
    if not members:
        return {}
    # With different subscriptions there is no common quota. Members keep everything, and
    # `_even_out` balances.
    is_homogeneous = len({member.topics for member in members.values()}) == 1
    counts = _partition_counts(members, topics)
    shares = _even_shares(members, sum(counts.values())) if is_homogeneous else None
    given = _kept(members, topics, shares)
    _hand_out(_free(counts, given), given, members)
    if not is_homogeneous:
        _even_out(given, members)
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def _partition_counts(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, int]
) -> dict[uuid.UUID, int]:
    """Of all subscribed topics that exist, in the order of their ids."""
    subscribed = frozenset().union(*(member.topics for member in members.values()))
    return {
        topic_id: topics[topic_id]
        for topic_id in sorted(subscribed & topics.keys(), key=topic_order)
    }


def _even_shares(members: Mapping[str, MemberSubscription], partition_count: int) -> dict[str, int]:
    """The quota of each member.

    The members with the most partitions get the remainder, so that fewer move.
    """
    quota, extra = divmod(partition_count, len(members))
    fullest = sorted(members, key=lambda id_: (-len(members[id_].assigned), id_))
    return {member_id: quota + (place < extra) for place, member_id in enumerate(fullest)}


def _free(
    counts: Mapping[uuid.UUID, int], given: Mapping[str, set[AssignedPartition]]
) -> Iterable[tuple[uuid.UUID, Sequence[int]]]:
    """The partitions that nobody has, topic by topic."""
    taken: set[AssignedPartition] = set().union(*given.values())
    for topic_id, count in counts.items():
        if taken:
            yield topic_id, [index for index in range(count) if (topic_id, index) not in taken]
        else:
            yield topic_id, range(count)


def _kept(
    members: Mapping[str, MemberSubscription],
    topics: Mapping[uuid.UUID, int],
    shares: Mapping[str, int] | None,
) -> dict[str, set[AssignedPartition]]:
    given: dict[str, set[AssignedPartition]] = {}
    taken: set[AssignedPartition] = set()
    for member_id, member in members.items():
        kept = [
            partition
            for topic_id, indexes in by_topic(member.assigned)
            if topic_id in member.topics
            for partition in _below(topics.get(topic_id, 0), topic_id, indexes)
            if partition not in taken
        ]
        given[member_id] = set(kept if shares is None else kept[: shares[member_id]])
        taken |= given[member_id]
    return given


def _below(count: int, topic_id: uuid.UUID, indexes: list[int]) -> Iterable[AssignedPartition]:
    return [(topic_id, index) for index in indexes if index < count]


def _hand_out(
    free: Iterable[tuple[uuid.UUID, Sequence[int]]],
    given: dict[str, set[AssignedPartition]],
    members: Mapping[str, MemberSubscription],
) -> None:
    """Assign each free partition to the subscriber with the fewest partitions.

    Topics with the fewest subscribers come first, because they have the least choice.
    """
    subscribers: dict[uuid.UUID, list[str]] = {}
    for member_id, member in members.items():
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    # The sort is stable, so topics with as many subscribers stay in the order of their ids.
    for topic_id, indexes in sorted(free, key=lambda place: len(subscribers[place[0]])):
        if len(subscribers[topic_id]) == 1:
            (member_id,) = subscribers[topic_id]
            given[member_id].update((topic_id, index) for index in indexes)
            continue
        heap = [(len(given[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapq.heapify(heap)
        for index in indexes:
            size, member_id = heap[0]
            given[member_id].add((topic_id, index))
            heapq.heapreplace(heap, (size + 1, member_id))


def _even_out(
    given: dict[str, set[AssignedPartition]], members: Mapping[str, MemberSubscription]
) -> None:
    """Move partitions to subscribers that have at least two fewer, until there are none.

    Each move lowers the sum of the squares of the sizes, so the loop ends.
    """
    moved = True
    while moved:
        moved = False
        for fuller in sorted(given, key=lambda id_: (-len(given[id_]), id_)):
            for partition in sorted(given[fuller]):
                emptier = min(
                    (id_ for id_ in members if partition[0] in members[id_].topics),
                    key=lambda id_: (len(given[id_]), id_),
                )
                if len(given[emptier]) + 2 <= len(given[fuller]):
                    given[fuller].remove(partition)
                    given[emptier].add(partition)
                    moved = True
