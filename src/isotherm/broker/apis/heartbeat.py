"""Heartbeat (key 12).

Versions  0-4. 1 throttle time · 3 static members · 4 flexible
Behaviour Restarts the member's session timeout. REBALANCE_IN_PROGRESS makes the member join again.
Not done  -
KIPs      345 static members
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_STATIC_VERSION = 3


def handle(context: RequestContext, request: Any) -> Any:
    is_static = context.header.api_version >= FIRST_STATIC_VERSION
    error = context.services.group_coordinator.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id if is_static else None,
        request.generation_id,
    )
    return context.response({"error_code": error})


API = Api(
    ApiKey.HEARTBEAT,
    VersionRange(0, 4),
    handle,
    access=Access([on_group(Operation.READ)]),
)
