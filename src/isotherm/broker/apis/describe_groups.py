"""DescribeGroups (key 15): groups of the classic protocol.

Versions  0-6. 1 throttle time · 3 authorized operations · 4 group instance ids · 5 flexible ·
          6 GROUP_ID_NOT_FOUND with a message
Behaviour A group that does not exist is shown as Dead, from version 6 on with GROUP_ID_NOT_FOUND.
          As in Kafka, metadata and assignments of members are included only while the group is
          Stable.
          A group that is named twice is answered once.
Not done  -
KIPs      345 · 430 · 1043
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.authorized_operations import group_operations
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_NOT_FOUND_VERSION = 6


async def handle(context: RequestContext, request: Any) -> Any:
    await context.services.group_coordinator.ensure_topic()
    shows_operations = getattr(request, "include_authorized_operations", False)
    groups = [_described(context, group_id) for group_id in dict.fromkeys(request.groups)]
    for group in groups:
        if shows_operations and group["error_code"] is ErrorCode.none:
            group["authorized_operations"] = group_operations(context, group["group_id"])
    return context.response({"groups": groups})


def _described(context: RequestContext, group_id: str) -> dict[str, Any]:
    try:
        group = context.services.group_coordinator.find(group_id)
    except IsothermError as error:
        return _group_fields(group_id, error=code_of(error))
    if group is not None:
        return _fields_of(group)
    if context.header.api_version < FIRST_NOT_FOUND_VERSION:
        return _group_fields(group_id, state=GroupState.DEAD.value)
    return _group_fields(
        group_id,
        error=ErrorCode.group_id_not_found,
        message=f"Group {group_id} not found.",
        state=GroupState.DEAD.value,
    )


def _fields_of(group: ClassicGroup) -> dict[str, Any]:
    is_stable = group.state is GroupState.STABLE
    return {
        **_group_fields(group.group_id, state=group.state.value),
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol_name or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol_name) if is_stable else b"",
                # In every state, as in Kafka: a rebalance replaces it at its end.
                "member_assignment": member.assignment,
            }
            for member in group.members.all()
        ],
    }


def _group_fields(
    group_id: str,
    *,
    error: ErrorCode = ErrorCode.none,
    message: str | None = None,
    state: str = "",
) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }


API = Api(
    ApiKey.DESCRIBE_GROUPS,
    VersionRange(0, 6),
    handle,
    access=Access([Check(Operation.DESCRIBE, ResourceType.GROUP, ["groups"], Denial.REFUSES_ITEM)]),
    items=(Items(("groups",), ("groups",), named="group_id", answered_once=True),),
)
