"""DeleteGroups (key 42).

Versions  0-2. 1 as 0 · 2 flexible
Behaviour Deletes groups without members, with their offsets, or with the states of a share group's
          partitions. Other groups get NON_EMPTY_GROUP.
Not done  -
KIPs      229 · 932 share groups
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    await context.services.group_coordinator.ensure_topic()
    names = dict.fromkeys(request.groups_names)
    results = [{"group_id": name, "error_code": await _delete(context, name)} for name in names]
    return context.response({"results": results})


async def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    coordinator = context.services.group_coordinator
    try:
        if coordinator.is_share_group(group_id):
            return await context.services.share_group_states.delete_group(group_id)
        code = coordinator.delete_group(group_id)
        if (waiting := coordinator.uncommitted(group_id)) is not None:
            await waiting
    except MemberRejectedError as error:
        return error.code
    except IsothermError as error:
        return code_of(error)
    return code


API = Api(
    ApiKey.DELETE_GROUPS,
    VersionRange(0, 2),
    handle,
    access=Access(
        [Check(Operation.DELETE, ResourceType.GROUP, ["groups_names"], Denial.REFUSES_ITEM)]
    ),
    items=(Items(("groups_names",), ("results",), named="group_id"),),
)
