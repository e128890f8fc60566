"""ConsumerGroupHeartbeat (key 68).

Versions  0-1. 1 regular expressions, and member ids that the client generates
Behaviour Joins (epoch 0), leaves (-1; -2 for a static member that will return) and keeps
          membership. The broker assigns partitions with `uniform` (default) or `range`. Patterns
          are RE2's and match whole names; as in Kafka the client excludes internal topics. A member
          gets the topics that its principal may describe. The first member that joins a
          classic group in this way converts it to the consumer protocol. If the group has members,
          group.consumer.migration.policy must allow that; otherwise the answer is
          GROUP_ID_NOT_FOUND.
Not done  Assignments ignore racks, as in Kafka 4.3.
KIPs      848 · 1082 client-made member ids
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.heartbeat_assignments import heartbeat_assignment
from isotherm.broker.coordinators.groups.consumer_group import ASSIGNORS
from isotherm.broker.coordinators.groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
)
from isotherm.broker.coordinators.groups.member_heartbeat import (
    HeartbeatResult,
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.topic_selection import Viewer
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRegularExpressionError
from isotherm.protocol.api_keys import ApiKey, VersionRange

NO_THROTTLE = datetime.timedelta()
ONE_MS = datetime.timedelta(milliseconds=1)
FIRST_REGEX_VERSION = 1


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    try:
        _check(context, request)
        await coordinator.ensure_topic()
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            result = coordinator.consumer.leave(
                request.group_id, request.member_id, request.instance_id, request.member_epoch
            )
        else:
            beat = _heartbeat(context, request)
            viewer = Viewer(context.principal, context.client_address, context.header)
            beat = await coordinator.consumer.with_selections(
                request.group_id, beat, viewer, context.services.authorizer
            )
            result = await coordinator.consumer.heartbeat(request.group_id, beat)
        if (waiting := coordinator.uncommitted(request.group_id)) is not None:
            await waiting
    except MemberRejectedError as error:
        return _error(context, error.code, str(error))
    except InvalidRegularExpressionError as error:
        return _error(context, code_of(error), str(error))
    return await _response(context, request.group_id, result)


def _check(context: RequestContext, request: Any) -> None:
    """Check the fields that do not depend on the group. Raises MemberRejectedError."""
    version = context.header.api_version
    is_join = request.member_epoch == JOIN_EPOCH
    if not request.group_id.strip():
        _refuse("the group id is empty")
    # As in Kafka, a text of spaces counts as empty.
    if not request.member_id.strip() and (version >= FIRST_REGEX_VERSION or not is_join):
        _refuse("the member id is empty")
    if request.member_epoch < LEAVE_STATIC_EPOCH:
        _refuse(f"no such member epoch epoch={request.member_epoch}")
    if request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        _refuse("only a static member may leave temporarily")
    texts = (request.instance_id, request.rack_id)
    if any(text is not None and not text.strip() for text in texts):
        _refuse("the instance id or the rack id is empty")
    if is_join:
        _check_join(request, _regex(context, request))
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise MemberRejectedError(
            ErrorCode.unsupported_assignor,
            f"no such assignor assignor={request.server_assignor} known={','.join(ASSIGNORS)}",
        )


def _check_join(request: Any, regex: str | None) -> None:
    if request.rebalance_timeout < NO_THROTTLE:
        _refuse("a joining member has no rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        _refuse("a joining member owns partitions")
    if request.subscribed_topic_names is None and regex is None:
        _refuse("a joining member has no subscription")


def _refuse(message: str) -> None:
    raise MemberRejectedError(ErrorCode.invalid_request, message)


def _regex(context: RequestContext, request: Any) -> str | None:
    if context.header.api_version < FIRST_REGEX_VERSION:
        return None
    regex: str | None = request.subscribed_topic_regex
    return regex


def _heartbeat(context: RequestContext, request: Any) -> MemberHeartbeat:
    names = request.subscribed_topic_names
    owned = request.topic_partitions
    return MemberHeartbeat(
        request.member_id or context.services.group_coordinator.consumer.new_member_id(),
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        context.header.client_id or "",
        f"/{context.client_address}",
        request.rebalance_timeout // ONE_MS,
        None if names is None else frozenset(names),
        _regex(context, request),
        request.server_assignor,
        None
        if owned is None
        else frozenset((topic.topic_id, index) for topic in owned for index in topic.partitions),
    )


async def _response(context: RequestContext, group_id: str, result: HeartbeatResult) -> Any:
    interval_ms = context.services.group_coordinator.consumer.heartbeat_interval_ms(group_id)
    assignment = None
    if result.assigned is not None:
        assignment = await heartbeat_assignment(context, result.assigned)
    return _entity(
        context,
        {
            "error_code": ErrorCode.none,
            "error_message": None,
            "member_id": result.member_id,
            "member_epoch": result.epoch,
            "heartbeat_interval": interval_ms * ONE_MS,
            "assignment": assignment,
        },
    )


def _error(context: RequestContext, code: ErrorCode, message: str | None) -> Any:
    return _entity(
        context,
        {
            "error_code": code,
            "error_message": message,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": NO_THROTTLE,
            "assignment": None,
        },
    )


def _entity(context: RequestContext, fields: dict[str, Any]) -> Any:
    return context.response(fields)


API = Api(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    VersionRange(0, 1),
    handle,
    access=Access(
        [
            on_group(Operation.READ),
            Check(Operation.DESCRIBE, ResourceType.TOPIC, ["subscribed_topic_names"]),
        ],
        unchecked={
            "topic_partitions/topic_id": "the member's own partitions",
            "subscribed_topic_regex": "selects of the topics that the member may describe",
            "assignment/topic_partitions/topic_id": "topics that the member may describe",
        },
    ),
)
