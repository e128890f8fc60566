"""OffsetCommit (key 8).

Versions  2-10. 3 throttle time · 5 without retention time · 6 leader epoch · 7 static members ·
          8 flexible · 9 STALE_MEMBER_EPOCH, GROUP_ID_NOT_FOUND · 10 topic ids
Behaviour Writes the offsets of all legal partitions in one record batch. A partition that does not
          exist gets UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID by id). The retention time of
          versions before 5 is stored with the offset. The topic `__consumer_offsets` is created
          first if it does not exist, since consumers with a manual assignment commit without
          joining. A member of the consumer protocol may commit with an earlier epoch, if it had all
          the partitions in that epoch and still has them. It needs version 9 or later.
Not done  -
KIPs      211 retention · 320 leader epoch · 345 static members · 848 topic ids · 1251 past epochs
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.offset_coordinator import Committer
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_group, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import NO_LEADER_EPOCH, TimestampMs, TopicPartition

LAST_RETENTION_VERSION = 4
FIRST_LEADER_EPOCH_VERSION = 6
FIRST_STATIC_VERSION = 7
FIRST_GROUP_NOT_FOUND_VERSION = 9
FIRST_TOPIC_ID_VERSION = 10
ONE_MS = datetime.timedelta(milliseconds=1)


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.group_coordinator
    await coordinator.ensure_topic()
    now_ms = context.services.clock.now_ms()
    offsets = dict(_known_offsets(context, request, now_ms))
    version = context.header.api_version
    committer = Committer(
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id if version >= FIRST_STATIC_VERSION else None,
        version,
    )
    codes = coordinator.offsets.commit(request.group_id, committer, offsets)
    if (waiting := coordinator.uncommitted(request.group_id)) is not None:
        await waiting
    return _response(context, request, codes)


def _known_offsets(
    context: RequestContext, request: Any, now_ms: TimestampMs
) -> Iterator[tuple[TopicPartition, OffsetAndMetadata]]:
    """The request's offsets, without those of partitions that do not exist."""
    version = context.header.api_version
    retention_ms = -1
    if version <= LAST_RETENTION_VERSION:
        retention_ms = request.retention_time // ONE_MS
    for topic in request.topics:
        name, topic_id, partition_count = _resolve(context, topic)
        for entry in topic.partitions:
            if name is None or not 0 <= entry.partition_index < partition_count:
                continue
            has_epoch = version >= FIRST_LEADER_EPOCH_VERSION
            yield (
                TopicPartition(name, entry.partition_index),
                OffsetAndMetadata(
                    entry.committed_offset,
                    entry.committed_leader_epoch if has_epoch else NO_LEADER_EPOCH,
                    entry.committed_metadata or "",
                    now_ms,
                    topic_id,
                    now_ms + retention_ms if retention_ms >= 0 else None,
                ),
            )


def _resolve(context: RequestContext, topic: Any) -> tuple[str | None, uuid.UUID | None, int]:
    """The name, id and partition count of a topic in the request;

    None, None and 0 if it is unknown.
    """
    has_id = context.header.api_version >= FIRST_TOPIC_ID_VERSION
    name_or_id = topic.topic_id if has_id else topic.name
    image = context.services.metadata.image.topic(name_or_id) if name_or_id is not None else None
    if image is None:
        return None, None, 0
    return image.name, image.topic_id, len(image.partitions)


def _code(
    context: RequestContext, topic: Any, index: int, codes: Mapping[TopicPartition, ErrorCode]
) -> ErrorCode:
    version = context.header.api_version
    name, _, _ = _resolve(context, topic)
    if name is None and version >= FIRST_TOPIC_ID_VERSION:
        return ErrorCode.unknown_topic_id
    unknown = ErrorCode.unknown_topic_or_partition
    code = unknown if name is None else codes.get(TopicPartition(name, index), unknown)
    if code is ErrorCode.group_id_not_found and version < FIRST_GROUP_NOT_FOUND_VERSION:
        return ErrorCode.illegal_generation
    return code


def _response(
    context: RequestContext, request: Any, codes: Mapping[TopicPartition, ErrorCode]
) -> Any:
    has_id = context.header.api_version >= FIRST_TOPIC_ID_VERSION
    return context.response(
        {
            "topics": [
                {
                    ("topic_id" if has_id else "name"): topic.topic_id if has_id else topic.name,
                    "partitions": [
                        {
                            "partition_index": entry.partition_index,
                            "error_code": _code(context, topic, entry.partition_index, codes),
                        }
                        for entry in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        }
    )


API = Api(
    ApiKey.OFFSET_COMMIT,
    VersionRange(2, 10),
    handle,
    access=Access(
        [
            on_group(Operation.READ),
            on_topics(Operation.READ, ["topics/name", "topics/topic_id"]),
        ]
    ),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
)
