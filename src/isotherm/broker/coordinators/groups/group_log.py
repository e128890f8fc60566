"""Log messages about rebalances of groups, at INFO and in Kafka's wording, which operators search
for.

Source: Kafka GroupMetadataManager.
"""

from __future__ import annotations

import logging

from isotherm.broker.coordinators.groups.classic_checks import RebalancingGroup
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup
from isotherm.broker.coordinators.groups.share_group import ShareGroup

logger = logging.getLogger(__name__)


def member_joins(group: RebalancingGroup, member_id: str) -> None:
    logger.info(
        "[GroupId %s] Member %s joins the group in %s state.",
        group.group_id,
        member_id,
        group.state.value,
    )


def member_left(group: RebalancingGroup, member_id: str) -> None:
    logger.info(
        "[GroupId %s] Member %s has left group through explicit `LeaveGroup` request.",
        group.group_id,
        member_id,
    )


def member_failed(group: RebalancingGroup, member_id: str) -> None:
    logger.info(
        "[GroupId %s] Member %s has failed, removing it from the group.", group.group_id, member_id
    )


def prepares_rebalance(group: RebalancingGroup) -> None:
    logger.info(
        "Preparing to rebalance group %s in state %s with old generation %d.",
        group.group_id,
        group.state.value,
        group.generation_id,
    )


def stabilized(group: RebalancingGroup) -> None:
    logger.info(
        "Stabilized group %s generation %d with %d members.",
        group.group_id,
        group.generation_id,
        len(group.members),
    )


def assigned(group: RebalancingGroup) -> None:
    members = group.members.all()
    logger.info(
        "Assignment received from leader %s for group %s for generation %d."
        " The group has %d members, %d of which are static.",
        group.members.leader_id,
        group.group_id,
        group.generation_id,
        len(group.members),
        sum(member.group_instance_id is not None for member in members),
    )


def became_empty(group: RebalancingGroup) -> None:
    logger.info("Group %s with generation %d is now empty.", group.group_id, group.generation_id)


def consumer_group_changed(before: ConsumerGroup, after: ConsumerGroup) -> None:
    """Log the members that joined and left a consumer group, and its new epochs."""
    group_id = after.group_id
    for member_id in after.members.keys() - before.members.keys():
        logger.info(
            "[GroupId %s] Member %s joins the consumer group using the %s protocol.",
            group_id,
            member_id,
            "consumer" if after.members[member_id].classic is None else "classic",
        )
    for member_id in before.members.keys() - after.members.keys():
        logger.info("[GroupId %s] Member %s left the consumer group.", group_id, member_id)
    _epochs_changed(before, after)


def share_group_changed(before: ShareGroup, after: ShareGroup) -> None:
    """As `consumer_group_changed`."""
    group_id = after.group_id
    for member_id in after.members.keys() - before.members.keys():
        logger.info(
            "[GroupId %s] Member %s joins the share group using the share protocol.",
            group_id,
            member_id,
        )
    for member_id in before.members.keys() - after.members.keys():
        logger.info("[GroupId %s] Member %s left the share group.", group_id, member_id)
    _epochs_changed(before, after)


def _epochs_changed(before: ConsumerGroup | ShareGroup, after: ConsumerGroup | ShareGroup) -> None:
    group_id = after.group_id
    if after.group_epoch != before.group_epoch:
        logger.info("[GroupId %s] Bumped group epoch to %d.", group_id, after.group_epoch)
    if after.target_epoch != before.target_epoch:
        logger.info(
            "[GroupId %s] Computed a new target assignment for epoch %d with '%s' assignor.",
            group_id,
            after.target_epoch,
            after.assignor,
        )
