"""The `range` assignor: consecutive partitions of each topic for each subscriber, in a fixed order.

Members with equal subscriptions get the same partition numbers of topics with equal partition
counts, so that the topics can be joined. The previous assignment plays no part; a stable order of
members keeps most of it. Source: Kafka RangeAssignor.java.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from isotherm.broker.coordinators.groups.assignors.assignor import (
    AssignedPartition,
    Assignment,
    MemberSubscription,
)

NAME = "range"


def assign(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, int]
) -> dict[str, Assignment]:
    # Static members come first, by instance id, so that a restart with a new member id changes no
    # places.
    order = sorted(
        members, key=lambda id_: (members[id_].instance_id is None, members[id_].instance_id or id_)
    )
    given: dict[str, set[AssignedPartition]] = {member_id: set() for member_id in members}
    for topic_id, partition_count in topics.items():
        subscribers = [id_ for id_ in order if topic_id in members[id_].topics]
        if not subscribers:
            continue
        quota, extra = divmod(partition_count, len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (position < extra)
            given[member_id].update((topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}
