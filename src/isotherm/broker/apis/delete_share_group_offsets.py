"""DeleteShareGroupOffsets (key 92).

Versions  0.
Behaviour Forgets the states of topics of a share group without members. A topic without states has
          UNKNOWN_TOPIC_OR_PARTITION; as in Kafka a group that never had a state answers for no
          topic. A group with members gets NON_EMPTY_GROUP. Refused while share.version is 0.
Not done  -
KIPs      932
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.share_version import share_api
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.error_mapping import error_code, error_message
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.errors import IsothermError, UnknownTopicOrPartitionError
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    group_id = request.group_id
    if not group_id.strip():
        return API.refuse(context, request, ErrorCode.invalid_group_id)
    await context.services.group_coordinator.ensure_topic()
    names = dict.fromkeys(topic.topic_name for topic in request.topics)
    topics = context.services.metadata.image.topics_by_name
    try:
        group = context.services.group_coordinator.share.find(group_id)
        errors = await context.services.share_group_states.delete_offsets(group_id, names)
    except MemberRejectedError as error:
        return API.refuse(context, request, error.code, str(error))
    responses = []
    if group.states is not None:
        for name in names:
            topic = topics.get(name)
            missing = UnknownTopicOrPartitionError("There is no offset information to delete.")
            failure: IsothermError | None = missing
            topic_id = None
            if topic is not None and topic.topic_id in errors:
                topic_id, failure = topic.topic_id, errors[topic.topic_id]
            responses.append(
                {
                    "topic_name": name,
                    "topic_id": topic_id,
                    "error_code": ErrorCode.none if failure is None else error_code(failure),
                    "error_message": None if failure is None else error_message(failure),
                }
            )
    return context.response(
        {"error_code": ErrorCode.none, "error_message": None, "responses": responses}
    )


API = share_api(
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    VersionRange(0, 0),
    handle,
    [
        on_group(Operation.DELETE),
        on_topics(
            Operation.READ,
            ["topics/topic_name"],
            shows=["responses/topic_name", "responses/topic_id"],
        ),
    ],
    items=(Items(("topics",), ("responses",)),),
    is_asked_without_items=True,  # Kafka refuses a group with members, whatever the topics
)
