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
from collections.abc import Iterable, Mapping

from isotherm.broker.coordinators.groups.assignors.assignor import (
    AssignedPartition,
    Assignment,
    MemberSubscription,
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
    shares = _even_shares(members, topics) if is_homogeneous else None
    given = _kept(members, topics, shares)
    taken = set().union(*given.values())
    free = [each for each in _partitions(members, topics) if each not in taken]
    _hand_out(free, given, members)
    if not is_homogeneous:
        _even_out(given, members)
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}


def _partitions(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, int]
) -> Iterable[AssignedPartition]:
    """All subscribed partitions, in a fixed order."""
    wanted = frozenset().union(*(member.topics for member in members.values()))
    for topic_id in sorted(wanted & topics.keys()):
        for index in range(topics[topic_id]):
            yield topic_id, index


def _even_shares(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, int]
) -> dict[str, int]:
    """The quota of each member.

    The members with the most partitions get the remainder, so that fewer move.
    """
    quota, extra = divmod(sum(1 for _ in _partitions(members, topics)), len(members))
    fullest = sorted(members, key=lambda id_: (-len(members[id_].assigned), id_))
    return {member_id: quota + (place < extra) for place, member_id in enumerate(fullest)}


def _kept(
    members: Mapping[str, MemberSubscription],
    topics: Mapping[uuid.UUID, int],
    shares: Mapping[str, int] | None,
) -> dict[str, set[AssignedPartition]]:
    given: dict[str, set[AssignedPartition]] = {}
    taken: set[AssignedPartition] = set()
    for member_id, member in members.items():
        kept = [
            (topic_id, index)
            for topic_id, index in sorted(member.assigned)
            if topic_id in member.topics
            and index < topics.get(topic_id, 0)
            and (topic_id, index) not in taken
        ]
        given[member_id] = set(kept if shares is None else kept[: shares[member_id]])
        taken |= given[member_id]
    return given


def _hand_out(
    free: Iterable[AssignedPartition],
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
    by_topic: dict[uuid.UUID, list[AssignedPartition]] = {}
    for partition in free:
        by_topic.setdefault(partition[0], []).append(partition)
    for topic_id in sorted(by_topic, key=lambda each: (len(subscribers[each]), each)):
        heap = [(len(given[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapq.heapify(heap)
        for partition in by_topic[topic_id]:
            size, member_id = heap[0]
            given[member_id].add(partition)
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
