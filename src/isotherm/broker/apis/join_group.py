"""JoinGroup (key 11).

Versions  0-9. 1 rebalance timeout · 2 throttle time · 4 MEMBER_ID_REQUIRED · 5 static members ·
          6 flexible · 7 protocol type · 8 reason · 9 skip assignment
Behaviour Answered when all members have joined the rebalance. The leader's answer has all members
          with their metadata for the chosen protocol. Version 0 has no rebalance timeout; the
          session timeout replaces it, as in Kafka. The topic `__consumer_offsets` is created first
          if it does not exist. In a group of the consumer protocol the request is answered at once,
          with the member's epoch as generation and without a leader.
Not done  -
KIPs      62 · 134 initial delay · 345 static members · 394 known member ids · 559 protocol type ·
          800 reason · 814 skip assignment · 848 members of both protocols
"""

from __future__ import annotations

import datetime
from typing import Any

from isotherm.broker.coordinators.groups.classic_protocol import JoinResult, Protocol
from isotherm.broker.coordinators.groups.group_coordinator import Joining
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_REBALANCE_TIMEOUT_VERSION = 1
FIRST_KNOWN_MEMBER_VERSION = 4
FIRST_STATIC_VERSION = 5
FIRST_NULLABLE_PROTOCOL_VERSION = 7
FIRST_SKIPPING_VERSION = 9


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    await coordinator.ensure_topic()
    return _response(context, await coordinator.join(_joining(context, request)))


def _joining(context: RequestContext, request: Any) -> Joining:
    version = context.header.api_version
    instance_id = request.group_instance_id if version >= FIRST_STATIC_VERSION else None
    timeout = (
        request.rebalance_timeout
        if version >= FIRST_REBALANCE_TIMEOUT_VERSION
        else request.session_timeout
    )
    return Joining(
        request.group_id,
        request.member_id,
        instance_id,
        context.header.client_id or "",
        f"/{context.client_address}",
        request.protocol_type,
        tuple(Protocol(protocol.name, protocol.metadata) for protocol in request.protocols),
        _milliseconds(request.session_timeout),
        _milliseconds(timeout),
        version >= FIRST_KNOWN_MEMBER_VERSION,
        version >= FIRST_SKIPPING_VERSION,
    )


def _milliseconds(value: datetime.timedelta) -> int:
    return value // datetime.timedelta(milliseconds=1)


def _response(context: RequestContext, result: JoinResult) -> Any:
    version = context.header.api_version
    # Before version 7 the name cannot be null.
    protocol_name = result.protocol_name
    if protocol_name is None and version < FIRST_NULLABLE_PROTOCOL_VERSION:
        protocol_name = ""
    return context.response(
        {
            "error_code": result.error,
            "generation_id": result.generation_id,
            "protocol_type": result.protocol_type,
            "protocol_name": protocol_name,
            "leader": result.leader,
            "skip_assignment": result.skip_assignment,
            "member_id": result.member_id,
            "members": [member._asdict() for member in result.members],
        }
    )


API = Api(
    ApiKey.JOIN_GROUP,
    VersionRange(0, 9),
    handle,
    access=Access([on_group(Operation.READ)]),
    echoed=("member_id",),
)
