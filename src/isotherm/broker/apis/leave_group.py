"""LeaveGroup (key 13).

Versions  0-5. 1 throttle time · 3 several members, with an error for each · 4 flexible · 5 reason
Behaviour A static member may be removed by its instance id alone. Before version 3 a request has
          one member, whose error is that of the response.
Not done  -
KIPs      345 static members · 800 reason
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_BATCHED_VERSION = 3


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    is_batched = context.header.api_version >= FIRST_BATCHED_VERSION
    members = (
        [(member.member_id, member.group_instance_id) for member in request.members]
        if is_batched
        else [(request.member_id, None)]
    )
    codes = coordinator.leave(request.group_id, members)
    if (waiting := coordinator.uncommitted(request.group_id)) is not None:
        await waiting
    if not is_batched:
        return API.refuse(context, request, codes[0])
    answers = [
        {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
        for (member_id, instance_id), code in zip(members, codes, strict=True)
    ]
    return context.response({"error_code": ErrorCode.none, "members": answers})


API = Api(
    ApiKey.LEAVE_GROUP,
    VersionRange(0, 5),
    handle,
    access=Access([on_group(Operation.READ)]),
    items=(Items(("members",), ("members",)),),
)
