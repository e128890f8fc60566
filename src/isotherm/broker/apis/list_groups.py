"""ListGroups (key 16).

Versions  0-5. 1 throttle time · 3 flexible · 4 states, and a filter by them · 5 types, with a
          filter too
Behaviour Filters ignore case. While groups are being loaded the answer is
          COORDINATOR_LOAD_IN_PROGRESS, so that no list lacks a group.
Not done  -
KIPs      518 states · 848 types · 932 share groups
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_STATE_VERSION = 4
FIRST_TYPE_VERSION = 5


def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    states = _lowered(request.states_filter) if version >= FIRST_STATE_VERSION else set()
    types = _lowered(request.types_filter) if version >= FIRST_TYPE_VERSION else set()
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type or "",
            "group_state": group.shown_state,
            "group_type": group.group_type,
        }
        for group in context.services.group_coordinator.all_groups()
        if not states or group.shown_state.lower() in states
        if not types or group.group_type in types
    ]
    return context.response({"error_code": ErrorCode.none, "groups": groups})


def _lowered(texts: tuple[str, ...]) -> set[str]:
    return {text.lower() for text in texts}


API = Api(
    ApiKey.LIST_GROUPS,
    VersionRange(0, 5),
    handle,
    access=Access(
        [
            Check(
                Operation.DESCRIBE,
                ResourceType.GROUP,
                denial=Denial.LEAVES_OUT,
                shows=["groups/group_id"],
                unless_cluster=Operation.DESCRIBE,
                is_logged=False,
            )
        ]
    ),
)
