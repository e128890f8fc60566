"""ShareAcknowledge (key 79).

Versions  1-2. 2 renewals of locks, and how long locks last
Behaviour Acknowledges records that a member of a share group has acquired; the answer waits until
          that is written. A partition's acknowledgements count together or not at all. The last
          epoch ends the session, and releases what the member has acquired.
Not done  -
KIPs      932 · 1222 renewals
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.share_requests import (
    Acknowledging,
    begin_acknowledgements,
    checked_member,
    leader_hints,
    readable_topics,
    share_access,
    topic_name,
)
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.share_sessions import FINAL_EPOCH, MemberKey
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.share_fetch import NO_CURRENT_LEADER

_ONE_MS = datetime.timedelta(milliseconds=1)


def handle(context: RequestContext, request: Any) -> Any | Awaitable[Any]:
    member = checked_member(context, request)
    manager = context.services.share_partitions
    manager.sessions.acknowledge(member, request.share_session_epoch)
    named = {topic_name(context, topic.topic_id) for topic in request.topics if topic.topic_id}
    readable = readable_topics(context, {name for name in named if name is not None})
    settings = manager.settings_of(member.group_id)
    acknowledging = begin_acknowledgements(context, member, request, readable, settings)
    acknowledging.write(manager)
    if acknowledging.writes:
        return _respond_later(context, member, request, acknowledging)
    return _response(context, member, request, acknowledging)


async def _respond_later(
    context: RequestContext, member: MemberKey, request: Any, acknowledging: Acknowledging
) -> Any:
    await acknowledging.written()
    return _response(context, member, request, acknowledging)


def _response(
    context: RequestContext, member: MemberKey, request: Any, acknowledging: Acknowledging
) -> Any:
    manager = context.services.share_partitions
    answers = acknowledging.finished(context)
    if request.share_session_epoch == FINAL_EPOCH:
        manager.end_session(member)
    hints = leader_hints(context, {key: answer.error_code for key, answer in answers.items()})
    topics: dict[Any, list[dict[str, Any]]] = {}
    for key, answer in answers.items():
        leader = hints.leaders.get(key, NO_CURRENT_LEADER)
        topics.setdefault(key.topic_id, []).append(
            {
                "partition_index": key.partition,
                "error_code": ErrorCode(answer.error_code),
                "error_message": answer.error_message,
                "current_leader": {
                    "leader_id": leader.leader_id,
                    "leader_epoch": leader.leader_epoch,
                },
            }
        )
    lock_duration_ms = manager.settings_of(member.group_id).record_lock_duration_ms
    return context.response(
        {
            "error_code": ErrorCode.none,
            "error_message": None,
            "acquisition_lock_timeout": lock_duration_ms * _ONE_MS,
            "responses": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in topics.items()
            ],
            "node_endpoints": [endpoint._asdict() for endpoint in hints.endpoints],
        }
    )


API = Api(
    ApiKey.SHARE_ACKNOWLEDGE,
    VersionRange(1, 2),
    handle,
    access=share_access(topics=["topics/topic_id"], shows=["responses/topic_id"]),
)
