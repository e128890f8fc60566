"""SyncGroup (key 14).

Versions  0-5. 1 throttle time · 3 static members · 4 flexible · 5 protocol type and name
Behaviour The leader's request has the assignments of all members. Each member is answered with its
          own assignment once it is in the log.
Not done  -
KIPs      345 static members · 559 protocol type and name
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_protocol import SyncRequest
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_STATIC_VERSION = 3
FIRST_PROTOCOL_VERSION = 5


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    has_protocol = version >= FIRST_PROTOCOL_VERSION
    if _lacks_protocol(request):
        return API.refuse(context, request, ErrorCode.inconsistent_group_protocol)
    syncing = SyncRequest(
        request.member_id,
        request.group_instance_id if version >= FIRST_STATIC_VERSION else None,
        request.generation_id,
        request.protocol_type if has_protocol else None,
        request.protocol_name if has_protocol else None,
        {assignment.member_id: assignment.assignment for assignment in request.assignments},
    )
    result = await context.services.group_coordinator.sync(request.group_id, syncing)
    return context.response(
        {
            "error_code": result.error,
            "protocol_type": result.protocol_type,
            "protocol_name": result.protocol_name,
            "assignment": result.assignment,
        }
    )


def _lacks_protocol(request: Any) -> bool:
    return hasattr(request, "protocol_type") and None in (
        request.protocol_type,
        request.protocol_name,
    )


API = Api(
    ApiKey.SYNC_GROUP,
    VersionRange(0, 5),
    handle,
    access=Access([on_group(Operation.READ)], unless=_lacks_protocol),
)
