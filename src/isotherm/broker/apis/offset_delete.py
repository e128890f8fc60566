"""OffsetDelete (key 47).

Versions  0.
Behaviour Deletes committed offsets. A topic to which a member subscribes gets
          GROUP_SUBSCRIBED_TO_TOPIC. A group with members of another protocol type gets
          NON_EMPTY_GROUP.
Not done  -
KIPs      496
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.offset_codes import topic_codes
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import TopicPartition


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    await coordinator.ensure_topic()
    existing = [
        TopicPartition(topic.name, entry.partition_index)
        for topic in request.topics
        if (image := context.services.metadata.image.topic(topic.name)) is not None
        for entry in topic.partitions
        if 0 <= entry.partition_index < len(image.partitions)
    ]
    codes = coordinator.offsets.delete(request.group_id, existing)
    if (waiting := coordinator.uncommitted(request.group_id)) is not None:
        await waiting
    if isinstance(codes, ErrorCode):
        return API.refuse(context, request, codes)
    topics = topic_codes(request.topics, codes)
    return context.response({"error_code": ErrorCode.none, "topics": topics})


API = Api(
    ApiKey.OFFSET_DELETE,
    VersionRange(0, 0),
    handle,
    access=Access(
        [
            on_group(Operation.DELETE),
            on_topics(Operation.READ, ["topics/name"]),
        ]
    ),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    is_asked_without_items=True,  # Kafka refuses a group that does not exist, whatever the topics
)
