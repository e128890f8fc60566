"""A member of a share group, its heartbeat, and the answer (KIP-932). Immutable.

Source: Kafka ShareGroupMember, ShareGroupHeartbeatRequest, ShareGroupAssignmentBuilder.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment
from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH, NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """`assigned`: the partitions whose records the member may acquire, beside other members."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    assigned: Assignment = NOTHING

    def updated(self, beat: ShareHeartbeat) -> ShareMember:
        """The member with the fields that the heartbeat sets."""
        return replace(
            self,
            rack_id=self.rack_id if beat.rack_id is None else beat.rack_id,
            topic_names=self.topic_names if beat.topic_names is None else beat.topic_names,
            client_id=beat.client_id,
            client_host=beat.client_host,
        )

    def reconciled(
        self,
        target: Assignment,
        target_epoch: int,
        topic_ids: Collection[uuid.UUID],
        *,
        is_forced: bool,
    ) -> ShareMember:
        """The member with its target, at once: nobody else must release a partition before.

        `topic_ids` are those of its topics; of others it gets nothing, whatever the target has.
        `is_forced` applies the target again although the member has its epoch.
        """
        if self.epoch == target_epoch and not is_forced:
            return self
        assigned = frozenset(partition for partition in target if partition[0] in topic_ids)
        if self.epoch == target_epoch:
            return replace(self, assigned=assigned)
        return replace(self, assigned=assigned, epoch=target_epoch, previous_epoch=self.epoch)


class ShareHeartbeat(NamedTuple):
    """A heartbeat. None means unchanged since the last one."""

    member_id: str
    epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] | None = None


class TopicPartitions(NamedTuple):
    """Partitions of a topic, with the name that the topic has had."""

    name: str
    partitions: frozenset[int]


class ShareHeartbeatResult(NamedTuple):
    """`assigned` is None if the assignment has not changed since the last response. The caller
    begins the state of the partitions in `uninitialized`, by topic, with `group_epoch` as their
    state epoch, once the records of the heartbeat are committed; see `ShareGroup.initialized`."""

    member_id: str
    epoch: int
    assigned: Assignment | None
    group_epoch: int
    uninitialized: Mapping[uuid.UUID, TopicPartitions]
