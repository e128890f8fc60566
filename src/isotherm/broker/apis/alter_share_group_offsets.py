"""AlterShareGroupOffsets (key 91).

Versions  0.
Behaviour Moves the start offsets of a share group without members: the states of the partitions
          begin anew. A missing group is created. A group with members gets NON_EMPTY_GROUP. Refused
          while share.version is 0.
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
from isotherm.types import Offset, TopicPartition


async def handle(context: RequestContext, request: Any) -> Any:
    if not request.group_id:
        return API.refuse(context, request, ErrorCode.invalid_group_id)
    await context.services.group_coordinator.ensure_topic()
    offsets: dict[str, dict[int, Offset]] = {}
    for topic in request.topics:
        for entry in topic.partitions:
            if entry.partition_index >= 0:
                offsets.setdefault(topic.topic_name, {})[entry.partition_index] = entry.start_offset
    try:
        errors = await context.services.share_group_states.alter(request.group_id, offsets)
    except MemberRejectedError as error:
        return API.refuse(context, request, error.code, str(error))
    by_name = context.services.metadata.image.topics_by_name
    return context.response(
        {
            "error_code": ErrorCode.none,
            "error_message": None,
            "responses": [
                {
                    "topic_name": topic.topic_name,
                    "topic_id": None
                    if topic.topic_name not in by_name
                    else by_name[topic.topic_name].topic_id,
                    "partitions": [
                        _partition_fields(topic.topic_name, entry.partition_index, errors)
                        for entry in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        }
    )


def _partition_fields(
    topic: str, partition: int, errors: dict[TopicPartition, IsothermError | None]
) -> dict[str, Any]:
    key = TopicPartition(topic, partition)
    unknown = UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    error = errors.get(key, unknown)
    return {
        "partition_index": partition,
        "error_code": ErrorCode.none if error is None else error_code(error),
        "error_message": None if error is None else error_message(error),
    }


API = share_api(
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    VersionRange(0, 0),
    handle,
    [
        on_group(Operation.READ),
        on_topics(
            Operation.READ,
            ["topics/topic_name"],
            shows=["responses/topic_name", "responses/topic_id"],
        ),
    ],
    items=(Items(("topics", "partitions"), ("responses", "partitions")),),
    is_asked_without_items=True,  # Kafka refuses a group with members, whatever the topics
)
