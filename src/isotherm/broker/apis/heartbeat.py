"""Heartbeat (key 12).

Versions  0-4. 1 throttle time · 3 static members · 4 flexible
Behaviour Begins the member's session timeout again. REBALANCE_IN_PROGRESS tells it to join anew.
Not done  -
KIPs      345 static members
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()
FIRST_STATIC_VERSION = 3


def handle(context: RequestContext, request: Any) -> Any:
    is_static = context.header.api_version >= FIRST_STATIC_VERSION
    error = context.services.group_coordinator.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id if is_static else None,
        request.generation_id,
    )
    return error_response(context, request, error)


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return entity_of(
        response_class(ApiKey.HEARTBEAT, context.header.api_version),
        {"throttle_time": NO_THROTTLE, "error_code": error_code},
    )
