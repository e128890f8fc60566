"""Reads a consumer group back from its records after a restart. `consumer_records` makes them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from isotherm.broker.coordinators.groups.assignors.assignor import AssignedPartition, Assignment
from isotherm.broker.coordinators.groups.classic_protocol import Protocol
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup
from isotherm.broker.coordinators.groups.consumer_member import (
    ClassicSupport,
    ConsumerMember,
    MemberState,
)
from isotherm.broker.coordinators.groups.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    CurrentTopicPartitions,
    GroupRecord,
)

logger = logging.getLogger(__name__)


def replay(group: ConsumerGroup, record: GroupRecord) -> None:
    """Apply one record. Records come in the order of the log."""
    key, value = record
    if isinstance(key, ConsumerGroupMetadataKey):
        group.group_epoch = value.epoch if value is not None else 0
        group.metadata_hash = value.metadata_hash if value is not None else 0
    elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
        group.target_epoch = value.assignment_epoch if value is not None else 0
    elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
        if value is None:
            group.target.pop(key.member_id, None)
        else:
            group.target[key.member_id] = _assignment(value.topic_partitions)
    elif isinstance(key, ConsumerGroupMemberMetadataKey):
        _replay_member(group, key.member_id, value)
    elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
        _replay_current(group, key.member_id, value)


def _replay_member(
    group: ConsumerGroup, member_id: str, value: ConsumerGroupMemberMetadataValue | None
) -> None:
    if value is None:
        group.members.pop(member_id, None)
        return
    member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
    group.members[member_id] = replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=_classic_support(value.classic_member_metadata),
    )


def _replay_current(
    group: ConsumerGroup, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> None:
    if value is None:
        # The tombstone of the member's metadata follows.
        return
    # Compaction may leave this record before the member's metadata.
    member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
    group.members[member_id] = replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_assignment(value.assigned_partitions),
        pending_revocation=_assignment(value.partitions_pending_revocation),
        assignment_epochs=_assignment_epochs(
            group.group_id,
            (*value.assigned_partitions, *value.partitions_pending_revocation),
            value.member_epoch,
        ),
    )


def _classic_support(stored: ClassicMemberMetadata | None) -> ClassicSupport | None:
    if stored is None or not stored.supported_protocols:
        return None
    return ClassicSupport(
        stored.session_timeout_ms,
        tuple(
            Protocol(protocol.name, bytes(protocol.metadata))
            for protocol in stored.supported_protocols
        ),
    )


def _assignment(items: Iterable[Any]) -> Assignment:
    return frozenset((item.topic_id, index) for item in items for index in item.partitions)


def _assignment_epochs(
    group_id: str, items: Iterable[CurrentTopicPartitions], member_epoch: int
) -> dict[AssignedPartition, int]:
    """The assignment epochs.

    The member's epoch replaces missing ones: brokers before 4.3 do not write them.
    """
    # A static member that has left has a negative epoch, at which nothing was assigned.
    default = max(member_epoch, 0)
    assignment_epochs: dict[AssignedPartition, int] = {}
    for item in items:
        epochs = item.assignment_epochs
        if epochs is not None and len(epochs) != len(item.partitions):
            logger.error(
                "assignment epochs do not fit the partitions and are replaced"
                " group_id=%s topic_id=%s epochs=%d partitions=%d epoch=%d",
                group_id,
                item.topic_id,
                len(epochs),
                len(item.partitions),
                default,
            )
            epochs = None
        for place, index in enumerate(item.partitions):
            epoch = default if epochs is None else epochs[place]
            assignment_epochs[item.topic_id, index] = epoch  # type: ignore[index]
    return assignment_epochs
