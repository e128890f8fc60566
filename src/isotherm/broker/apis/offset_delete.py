"""OffsetDelete (key 47).

Versions  0.
Behaviour Offsets of topics that a member still reads are kept: GROUP_SUBSCRIBED_TO_TOPIC. A group
          with members of another protocol type gets NON_EMPTY_GROUP.
Not done  -
KIPs      496
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of
from isotherm.types import TopicPartition

NO_THROTTLE = datetime.timedelta()


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    await coordinator.ensure_topic()
    known = [
        TopicPartition(topic.name, asked.partition_index)
        for topic in request.topics
        if (found := context.services.controller.image.topic(topic.name)) is not None
        for asked in topic.partitions
        if 0 <= asked.partition_index < len(found.partitions)
    ]
    codes = coordinator.offsets.delete(request.group_id, known)
    if isinstance(codes, ErrorCode):
        return error_response(context, request, codes)
    unknown = ErrorCode.unknown_topic_or_partition
    return _response(
        context,
        ErrorCode.none,
        [
            _topic_fields(topic, lambda partition: codes.get(partition, unknown))
            for topic in request.topics
        ],
    )


def _topic_fields(topic: Any, code_of: Callable[[TopicPartition], ErrorCode]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": asked.partition_index,
                "error_code": code_of(TopicPartition(topic.name, asked.partition_index)),
            }
            for asked in topic.partitions
        ],
    }


def _response(context: RequestContext, error: ErrorCode, topics: list[dict[str, Any]]) -> Any:
    return entity_of(
        response_class(ApiKey.OFFSET_DELETE, context.header.api_version),
        {"error_code": error, "throttle_time": NO_THROTTLE, "topics": topics},
    )


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return _response(context, error_code, [])
