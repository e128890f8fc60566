"""ShareGroupDescribe (key 77).

Versions  1.
Behaviour Describes share groups, each once. Others get GROUP_ID_NOT_FOUND. Partitions of deleted
          topics are left out. Refused while share.version is 0.
Not done  -
KIPs      932
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.described_assignments import (
    assignment_fields,
    error_fields,
    handle_visible,
)
from isotherm.broker.apis.share_version import share_api
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.share_member import ShareMember
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.authorized_operations import group_operations
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Api
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    await context.services.group_coordinator.ensure_topic()
    groups = [_described(context, group_id) for group_id in dict.fromkeys(request.group_ids)]
    for group in groups:
        if request.include_authorized_operations and group["error_code"] is ErrorCode.none:
            group["authorized_operations"] = group_operations(context, group["group_id"])
    return context.response({"groups": groups})


def _described(context: RequestContext, group_id: str) -> dict[str, Any]:
    if not group_id:
        return error_fields(group_id, ErrorCode.invalid_group_id, "the group id is empty")
    try:
        group = context.services.group_coordinator.share.find(group_id)
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
        "members": [_member_fields(context, member) for member in group.members.values()],
    }


def _member_fields(context: RequestContext, member: ShareMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": tuple(sorted(member.topic_names)),
        "assignment": assignment_fields(context, member.assigned),
    }


_GROUPS = Check(Operation.DESCRIBE, ResourceType.GROUP, ["group_ids"], Denial.REFUSES_ITEM)
_TOPICS = Check(
    Operation.DESCRIBE,
    ResourceType.TOPIC,
    denial=Denial.LEAVES_OUT,
    shows=[
        f"groups/members/assignment/topic_partitions/{field}"
        for field in ("topic_name", "topic_id")
    ],
)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    return handle_visible(authorizer, api, context, request, _GROUPS, _TOPICS)


API = share_api(
    ApiKey.SHARE_GROUP_DESCRIBE,
    VersionRange(1, 1),
    handle,
    [_GROUPS, _TOPICS],
    guard=_guard,
    unchecked={"groups/members/subscribed_topic_names": "as in Kafka, of who describes the group"},
    items=(Items(("group_ids",), ("groups",), named="group_id", answered_once=True),),
)
