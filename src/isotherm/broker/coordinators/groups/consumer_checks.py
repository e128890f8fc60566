"""Checks whether a member of a consumer group may commit or fetch offsets. Pure functions.

Each returns the error code that Kafka returns. Source: Kafka ConsumerGroup.validateOffsetCommit,
validateOffsetFetch; KIP-1251 (commits with an earlier member epoch).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_protocol import NO_MEMBER_ID, UNKNOWN_GENERATION
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup
from isotherm.broker.coordinators.groups.consumer_member import ConsumerMember

# The first version of OffsetCommit whose clients know the error codes about member epochs.
FIRST_EPOCH_VERSION = 9

# The error of one partition, by topic id and partition. The caller refuses the whole commit by it.
PartitionCheck: TypeAlias = Callable[[uuid.UUID | None, int], ErrorCode]


def offset_commit_check(
    group: ConsumerGroup,
    member_id: str,
    group_instance_id: str | None,
    epoch: int,
    *,
    is_transactional: bool,
    api_version: int,
) -> PartitionCheck:
    """The check for each partition of an OffsetCommit or TxnOffsetCommit request."""
    if epoch < 0 and group.is_empty:
        # A consumer with a manual assignment uses the group only to store offsets.
        return _always(ErrorCode.none)
    has_no_member = member_id == NO_MEMBER_ID and group_instance_id is None
    if is_transactional and epoch == UNKNOWN_GENERATION and has_no_member:
        # Transactional producers of clients before KIP-447 do not send group metadata.
        return _always(ErrorCode.none)
    member = group.members.get(member_id)
    if member is None:
        return _always(ErrorCode.unknown_member_id)
    if not is_transactional and member.classic is None and api_version < FIRST_EPOCH_VERSION:
        return _always(ErrorCode.unsupported_version)
    if epoch == member.epoch:
        return _always(ErrorCode.none)
    wrong_epoch = _wrong_epoch(member)
    if epoch > member.epoch:
        # The coordinator has never returned this epoch.
        return _always(wrong_epoch)

    def check(topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """Accept an earlier epoch if the member has owned the partition ever since (KIP-1251)."""
        if topic_id is None:
            return wrong_epoch
        since = member.assignment_epochs.get((topic_id, partition))
        return ErrorCode.none if since is not None and since <= epoch else wrong_epoch

    return check


def offset_fetch_error(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    if member_id is None and epoch < 0:
        return ErrorCode.none
    member = group.members.get(member_id or NO_MEMBER_ID)
    if member is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if member.epoch == epoch else _wrong_epoch(member)


def _wrong_epoch(member: ConsumerMember) -> ErrorCode:
    """The error code for a wrong epoch in the member's protocol."""
    is_classic = member.classic is not None
    return ErrorCode.illegal_generation if is_classic else ErrorCode.stale_member_epoch


def _always(error: ErrorCode) -> PartitionCheck:
    return lambda _topic_id, _partition: error
