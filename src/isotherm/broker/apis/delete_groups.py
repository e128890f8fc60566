"""DeleteGroups (key 42).

Versions  0-2. 1 as 0 · 2 flexible
Behaviour Only groups without members are deleted, with their offsets; others get NON_EMPTY_GROUP.
Not done  -
KIPs      229
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.errors import IsothermError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()


async def handle(context: RequestContext, request: Any) -> Any:
    await context.services.group_coordinator.ensure_topic()
    names = dict.fromkeys(request.groups_names)
    return _response(context, [(group_id, _delete(context, group_id)) for group_id in names])


def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    try:
        return context.services.group_coordinator.delete_group(group_id)
    except IsothermError as error:
        return code_of(error)


def _response(context: RequestContext, codes: list[tuple[str, ErrorCode]]) -> Any:
    return entity_of(
        response_class(ApiKey.DELETE_GROUPS, context.header.api_version),
        {
            "throttle_time": NO_THROTTLE,
            "results": [{"group_id": group_id, "error_code": code} for group_id, code in codes],
        },
    )


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Every group is answered with `error_code`."""
    return _response(context, [(group_id, error_code) for group_id in request.groups_names])
