"""ListPartitionReassignments (key 46).

Versions  0
Behaviour None is ever going on: each partition has its one replica here.
Not done  -
KIPs      455
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()


def handle(context: RequestContext, request: Any) -> Any:
    return error_response(context, request, ErrorCode.none)


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return entity_of(
        response_class(ApiKey.LIST_PARTITION_REASSIGNMENTS, context.header.api_version),
        {
            "throttle_time": NO_THROTTLE,
            "error_code": error_code,
            "error_message": None,
            "topics": (),
        },
    )
