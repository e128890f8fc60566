"""What a server-side assignor is given and gives (KIP-848). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

# (topic id, partition); the topic's name plays no part in an assignment.
AssignedPartition: TypeAlias = tuple[uuid.UUID, int]
Assignment: TypeAlias = frozenset[AssignedPartition]


class MemberSubscription(NamedTuple):
    """`assigned` is what the member has in the present target: an assignor may keep to it."""

    instance_id: str | None
    topics: frozenset[uuid.UUID]
    assigned: Assignment


# Member subscriptions by member id, and partition counts by topic id: every subscribed topic that
# exists. The result has every member.
Assignor: TypeAlias = Callable[
    [Mapping[str, MemberSubscription], Mapping[uuid.UUID, int]], dict[str, Assignment]
]
