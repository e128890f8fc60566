"""DescribeTopicPartitions (key 75).

Versions  0.
Behaviour Returns the named topics, or all topics, in the order of their names, with partitions up
          to the limit of the request or max.request.partition.size.limit. If the limit is reached,
          the cursor is the position at which the next request continues. If the cursor's topic was
          deleted, the next topic follows. A topic that is unknown or has an illegal name has its
          own error. A partition that is offline, or whose leader has no endpoint on the client's
          listener, has no leader and no error.
Not done  -
KIPs      966
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.controller.topic_rules import check_topic_name
from isotherm.broker.metadata.image import PartitionImage, TopicImage
from isotherm.broker.metadata.internal_topics import is_internal
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.authorized_operations import topic_operations
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.listed_brokers import PartitionPlaces, partition_places
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError, InvalidTopicError
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    existing = services.metadata.image.topics_by_name
    names = {topic.name for topic in request.topics} or set(existing)
    denied = set[str]()
    first, first_partition = "", 0
    if request.cursor is not None:
        first, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0:
            raise InvalidRequestError(
                f"a cursor cannot be at this partition partition={first_partition}"
            )
        names = {name for name in names if name >= first}
    if services.authorizer is not None:
        visible = services.authorizer.allowed(
            context, Operation.DESCRIBE, ResourceType.TOPIC, names
        )
        denied, names = (names - visible if request.topics else denied), visible
    limit = services.config.max_request_partition_size_limit
    remaining = max(1, min(limit, request.response_partition_limit))
    topics: list[dict[str, Any]] = []
    for name in sorted(names):
        if remaining == 0:
            return _response(context, [*topics, *map(_denied_topic, sorted(denied))], (name, 0))
        topic = existing.get(name)
        if topic is None:
            topics.append(_unknown_topic(context, name))
            continue
        # The topic of the cursor may be missing or denied: the next one starts at its beginning.
        start = first_partition if name == first else 0
        partitions = topic.partitions[start : start + remaining]
        topics.append(_topic_fields(context, topic, partitions))
        remaining -= len(partitions)
        end = start + len(partitions)
        if end < len(topic.partitions):
            return _response(context, [*topics, *map(_denied_topic, sorted(denied))], (name, end))
    return _response(context, [*topics, *map(_denied_topic, sorted(denied))], None)


def _topic_fields(
    context: RequestContext, topic: TopicImage, partitions: tuple[PartitionImage, ...]
) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [
            _partition_fields(partition, partition_places(context, topic.name, partition))
            for partition in partitions
        ],
        "topic_authorized_operations": topic_operations(context, topic.name),
    }


def _partition_fields(partition: PartitionImage, places: PartitionPlaces) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "partition_index": partition.partition,
        "leader_id": places.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": places.offline_replicas,
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": partition.last_known_elr,
    }


def _denied_topic(name: str) -> dict[str, Any]:
    return _error_fields(name, ErrorCode.topic_authorization_failed)


def _unknown_topic(context: RequestContext, name: str) -> dict[str, Any]:
    try:
        check_topic_name(name)
        error_code = ErrorCode.unknown_topic_or_partition
    except InvalidTopicError:
        error_code = ErrorCode.invalid_topic_exception
    operations = topic_operations(context, name)
    return {**_error_fields(name, error_code), "topic_authorized_operations": operations}


def _error_fields(name: str, error_code: ErrorCode) -> dict[str, Any]:
    return {"error_code": error_code, "name": name, "topic_id": None, "partitions": ()}


def _response(
    context: RequestContext, topics: list[dict[str, Any]], cursor: tuple[str, int] | None
) -> Any:
    next_cursor = cursor and {"topic_name": cursor[0], "partition_index": cursor[1]}
    return context.response({"topics": topics, "next_cursor": next_cursor})


API = Api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    VersionRange(0, 0),
    handle,
    access=Access(
        [
            on_topics(
                Operation.DESCRIBE,
                ["topics/name", "cursor/topic_name"],
                shows=["topics/name", "topics/topic_id", "next_cursor/topic_name"],
            )
        ],
        no_guard="its handler checks: pages are counted by topic",
    ),
    items=(Items(("topics",), ("topics",), split_depth=0),),
)
