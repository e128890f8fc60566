"""Assigns partitions to the members of a share group. Pure.

A partition may have several members. Each has as many as it takes for every member to have work,
and members have equal numbers of partitions. What a member has it keeps, unless that is too much.

If all members have the same subscription, all partitions are shared at once. Otherwise the
partitions of each topic are shared among its subscribers. Kafka visits members and partitions in
the order of its hash tables; here they are visited in the order of their names and numbers.

Source: Kafka SimpleAssignor, SimpleHomogeneousAssignmentBuilder,
SimpleHeterogeneousAssignmentBuilder.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from isotherm.broker.coordinators.groups.assignors.assignor import (
    AssignedPartition,
    Assignment,
    MemberSubscription,
    topic_order,
)

NAME = "simple"


def assign(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, Sequence[int]]
) -> dict[str, Assignment]:
    """`topics` has the assignable partitions of each topic that a member subscribes to."""
    order = sorted(members)
    subscribed = {topic_id for member in members.values() for topic_id in member.topics}
    if not subscribed:
        return {}
    kept = {
        member_id: {
            partition for partition in members[member_id].assigned if partition[0] in subscribed
        }
        for member_id in order
    }
    if all(member.topics == subscribed for member in members.values()):
        partitions = [
            (topic_id, index)
            for topic_id in sorted(subscribed, key=topic_order)
            for index in topics[topic_id]
        ]
        _share(order, partitions, kept)
    else:
        # As in Kafka, what a member has of topics that nobody subscribes to is left.
        for member_id in order:
            kept[member_id] = set(members[member_id].assigned)
        for topic_id in sorted(subscribed, key=topic_order):
            subscribers = [
                member_id for member_id in order if topic_id in members[member_id].topics
            ]
            of_topic = {
                member_id: {partition for partition in kept[member_id] if partition[0] == topic_id}
                for member_id in order
            }
            for member_id in order:
                kept[member_id] -= of_topic[member_id]
            _share(subscribers, [(topic_id, index) for index in topics[topic_id]], of_topic)
            for member_id in order:
                kept[member_id] |= of_topic[member_id]
    return {member_id: frozenset(partitions) for member_id, partitions in kept.items()}


def _share(
    subscribers: Sequence[str],
    partitions: Sequence[AssignedPartition],
    assigned: dict[str, set[AssignedPartition]],
) -> None:
    """Share partitions among subscribers. Changes `assigned`: what each member has."""
    sharing = -(-len(subscribers) // len(partitions)) if partitions else 0
    desired = dict.fromkeys(assigned, 0)
    desired.update(_desired_counts(subscribers, sharing * len(partitions)))
    holders: dict[AssignedPartition, set[str]] = {}
    for member_id, own in assigned.items():
        for surplus in sorted(own, key=_partition_order)[: max(0, len(own) - desired[member_id])]:
            own.remove(surplus)
        for partition in own:
            holders.setdefault(partition, set()).add(member_id)
    for partition, own_holders in holders.items():
        for member_id in sorted(own_holders)[: max(0, len(own_holders) - sharing)]:
            own_holders.remove(member_id)
            assigned[member_id].remove(partition)
    _fill(subscribers, partitions, assigned, desired, holders, sharing)


def _desired_counts(subscribers: Sequence[str], total: int) -> dict[str, int]:
    """How many partitions each subscriber is to have; they differ by one at most."""
    count = len(subscribers)
    ends = [-(-total * position // count) for position in range(count + 1)]
    return {
        member_id: ends[position + 1] - ends[position]
        for position, member_id in enumerate(subscribers)
    }


def _fill(
    subscribers: Sequence[str],
    partitions: Sequence[AssignedPartition],
    assigned: dict[str, set[AssignedPartition]],
    desired: Mapping[str, int],
    holders: Mapping[AssignedPartition, set[str]],
    sharing: int,
) -> None:
    """Give what too few members have to members that have too little, each in turn.

    As in Kafka, the turns end with the first round in which nobody could be given anything.
    """
    unfilled = [
        subscriber for subscriber in subscribers if len(assigned[subscriber]) < desired[subscriber]
    ]
    turn = 0
    was_given = False
    for partition in partitions:
        own_holders = holders.get(partition, set())
        missing = sharing - len(own_holders)
        while missing > 0:
            if turn == len(unfilled):
                if not was_given:
                    break
                turn = 0
                was_given = False
                if not unfilled:
                    return
            member_id = unfilled[turn]
            turn += 1
            if member_id in own_holders:
                continue
            own_holders.add(member_id)
            assigned[member_id].add(partition)
            missing -= 1
            was_given = True
            if len(assigned[member_id]) >= desired[member_id]:
                turn -= 1
                del unfilled[turn]


def _partition_order(partition: AssignedPartition) -> tuple[int, int]:
    return topic_order(partition[0]), partition[1]
