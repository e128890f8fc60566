"""ConsumerGroupDescribe (key 69).

Versions  0-1. 1 member type
Behaviour Describes groups of the consumer protocol, each once. Others get GROUP_ID_NOT_FOUND, after
          which clients use DescribeGroups. Partitions of deleted topics are left out. A partition
          that a member must revoke is shown until the member has released it.
Not done  -
KIPs      848 · 1099 member type
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.described_assignments import (
    assignment_fields,
    error_fields,
    handle_visible,
)
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup
from isotherm.broker.coordinators.groups.consumer_member import NOTHING
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.authorized_operations import group_operations
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(context: RequestContext, request: Any) -> Any:
    await context.services.group_coordinator.ensure_topic()
    shows_operations = getattr(request, "include_authorized_operations", False)
    groups = [_described(context, group_id) for group_id in dict.fromkeys(request.group_ids)]
    for group in groups:
        if shows_operations and group["error_code"] is ErrorCode.none:
            group["authorized_operations"] = group_operations(context, group["group_id"])
    return context.response({"groups": groups})


def _described(context: RequestContext, group_id: str) -> dict[str, Any]:
    if not group_id:
        return error_fields(group_id, ErrorCode.invalid_group_id, "the group id is empty")
    try:
        group = context.services.group_coordinator.consumer.find(group_id)
    except MemberRejectedError as error:
        return error_fields(group_id, error.code, str(error))
    except IsothermError as error:
        return error_fields(group_id, code_of(error), None)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.shown_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": [_member_fields(context, group, member_id) for member_id in group.members],
    }


def _member_fields(context: RequestContext, group: ConsumerGroup, member_id: str) -> dict[str, Any]:
    member = group.members[member_id]
    return {
        "member_id": member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": tuple(sorted(member.topic_names)),
        "subscribed_topic_regex": member.topic_regex or "",
        "assignment": assignment_fields(context, member.held),
        "target_assignment": assignment_fields(context, group.target.get(member_id, NOTHING)),
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


_GROUPS = Check(Operation.DESCRIBE, ResourceType.GROUP, ["group_ids"], Denial.REFUSES_ITEM)
_TOPICS = Check(
    Operation.DESCRIBE,
    ResourceType.TOPIC,
    denial=Denial.LEAVES_OUT,
    shows=[
        f"groups/members/{assignment}/topic_partitions/{field}"
        for assignment in ("assignment", "target_assignment")
        for field in ("topic_name", "topic_id")
    ],
)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    return handle_visible(authorizer, api, context, request, _GROUPS, _TOPICS)


API = Api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    VersionRange(0, 1),
    handle,
    access=Access(
        [_GROUPS, _TOPICS],
        guard=_guard,
        unchecked={
            "groups/members/subscribed_topic_names": "as in Kafka, of who describes the group"
        },
    ),
    items=(Items(("group_ids",), ("groups",), named="group_id", answered_once=True),),
)
