"""The interface of server-side assignors (KIP-848). Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

# (topic id, partition). Assignors do not use topic names.
AssignedPartition: TypeAlias = tuple[uuid.UUID, int]
Assignment: TypeAlias = frozenset[AssignedPartition]


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
