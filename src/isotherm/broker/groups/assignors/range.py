"""The `range` assignor: each topic's partitions in runs, over its subscribers in a fixed order.

Members subscribed to the same topics get the same partition numbers of topics with as many
partitions, so that they can be joined. Nothing is kept from the assignment of before beyond what
the fixed order keeps. Source: Kafka RangeAssignor.java.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from isotherm.broker.groups.assignors.assignor import (
    AssignedPartition,
    Assignment,
    MemberSubscription,
)

NAME = "range"


def assign(
    members: Mapping[str, MemberSubscription], topics: Mapping[uuid.UUID, int]
) -> dict[str, Assignment]:
    # Static members first, by their instance ids: their places outlive a restart.
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
