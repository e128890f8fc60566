"""ShareGroupHeartbeat (key 76).

Versions  1.
Behaviour Joins (epoch 0), leaves (-1) and keeps membership of a share group. The broker assigns
          partitions as Kafka's simple assignor does, several members may have the same ones. A
          partition is assigned once its state is begun at the share coordinator, after the
          heartbeat that first names its topic. Refused while share.version is 0.
Not done  Assignments ignore racks, as in Kafka 4.3.
KIPs      932
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.heartbeat_assignments import heartbeat_assignment
from isotherm.broker.apis.share_version import MEMBER_ID_LENGTH_MAX, share_api
from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.share_member import ShareHeartbeat, ShareHeartbeatResult
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.protocol.api_keys import ApiKey, VersionRange

ONE_MS = datetime.timedelta(milliseconds=1)


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    group_id, member_id = request.group_id, request.member_id
    try:
        _check(request)
        await coordinator.ensure_topic()
        if request.member_epoch == LEAVE_EPOCH:
            coordinator.share.leave(group_id, member_id)
            if (waiting := coordinator.uncommitted(group_id)) is not None:
                await waiting
            return context.response(_fields(member_id, LEAVE_EPOCH))
        result = await coordinator.share.heartbeat(group_id, _heartbeat(context, request))
        if (waiting := coordinator.uncommitted(group_id)) is not None:
            await waiting
    except MemberRejectedError as error:
        return API.refuse(context, request, error.code, str(error))
    context.services.share_group_states.begin_initialization(group_id, result)
    return await _response(context, group_id, result)


def _check(request: Any) -> None:
    """Check the fields that do not depend on the group. Raises MemberRejectedError."""
    if not 0 < len(request.member_id) <= MEMBER_ID_LENGTH_MAX:
        _refuse("Invalid member id in the request.")
    if not request.group_id.strip():
        _refuse("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        _refuse("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        _refuse("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        _refuse("MemberEpoch is invalid.")


def _refuse(message: str) -> None:
    raise MemberRejectedError(ErrorCode.invalid_request, message)


def _heartbeat(context: RequestContext, request: Any) -> ShareHeartbeat:
    names = request.subscribed_topic_names
    return ShareHeartbeat(
        request.member_id,
        request.member_epoch,
        request.rack_id,
        context.header.client_id or "",
        f"/{context.client_address}",
        None if names is None else frozenset(names),
    )


async def _response(context: RequestContext, group_id: str, result: ShareHeartbeatResult) -> Any:
    settings = context.services.group_coordinator.shards.share_settings(group_id)
    fields = _fields(result.member_id, result.epoch)
    fields["heartbeat_interval"] = settings.heartbeat_interval_ms * ONE_MS
    if result.assigned is not None:
        fields["assignment"] = await heartbeat_assignment(context, result.assigned)
    return context.response(fields)


def _fields(member_id: str, epoch: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "member_id": member_id,
        "member_epoch": epoch,
        "heartbeat_interval": 0 * ONE_MS,
        "assignment": None,
    }


API = share_api(
    ApiKey.SHARE_GROUP_HEARTBEAT,
    VersionRange(1, 1),
    handle,
    [
        on_group(Operation.READ),
        Check(Operation.DESCRIBE, ResourceType.TOPIC, ["subscribed_topic_names"]),
    ],
    unchecked={
        "assignment/topic_partitions/topic_id": "topics that the member may describe",
    },
)
