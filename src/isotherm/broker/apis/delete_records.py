"""DeleteRecords (key 21).

Versions  0-2. 2 flexible.
Behaviour Raises the log start of each partition to the offset (-1: the high watermark), in both
          tiers. It is answered with the lowest log start of the replicas on live brokers once all
          of them have raised theirs, or with REQUEST_TIMED_OUT after the request's timeout. The
          next retention deletes segments and remote segments below it. An offset below the log
          start has no effect. Each partition has its own error: OFFSET_OUT_OF_RANGE above the high
          watermark, POLICY_VIOLATION if cleanup.policy is compact alone,
          INVALID_TOPIC_EXCEPTION for internal topics. With an empty cleanup.policy nothing else
          deletes records.
Not done  -
KIPs      107
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.internal_topics import is_internal
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import (
    InvalidTopicError,
    IsothermError,
    OffsetOutOfRangeError,
    PolicyViolationError,
)
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, Offset, TopicPartition

UP_TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


class _Deletion(NamedTuple):
    """The answer for one partition.

    If `partition` is set, its low watermark must still reach `target`.
    """

    number: int
    error: ErrorCode = ErrorCode.none
    low_watermark: Offset = NO_LOW_WATERMARK
    partition: Partition | None = None
    target: Offset = 0


def handle(context: RequestContext, request: Any) -> Any:
    topics = [
        (topic.name, [_delete(context, topic.name, entry) for entry in topic.partitions])
        for topic in request.topics
    ]
    waiting = [
        deletion for _, made in topics for deletion in made if deletion.partition is not None
    ]
    if waiting:
        return _answer_later(context, request, topics, waiting)
    return _response(context, topics)


def _delete(context: RequestContext, topic: str, entry: Any) -> _Deletion:
    index = entry.partition_index
    try:
        if is_internal(topic) or topic in REMOTE_LOG_METADATA_TOPICS:
            raise InvalidTopicError(f"records of an internal topic cannot be deleted topic={topic}")
        partition = context.services.replica_manager.find_partition(topic, None, index)
        target = delete_records(partition, entry.offset)
        low_watermark = partition.low_watermark()
    except IsothermError as error:
        return _Deletion(index, code_of(error))
    if low_watermark >= target:
        return _Deletion(index, low_watermark=low_watermark)
    return _Deletion(index, ErrorCode.request_timed_out, low_watermark, partition, target)


async def _answer_later(
    context: RequestContext,
    request: Any,
    topics: list[tuple[str, list[_Deletion]]],
    waiting: list[_Deletion],
) -> Any:
    delayed = _DelayedDeletion(waiting, asyncio.get_running_loop())
    timeout_s = max(0.0, request.timeout.total_seconds())
    context.services.replica_manager.purgatory.watch(delayed, delayed.keys, timeout_s)
    await delayed.future
    settled = iter(delayed.deletions)
    return _response(
        context,
        [
            (name, [deletion if deletion.partition is None else next(settled) for deletion in made])
            for name, made in topics
        ],
    )


class _DelayedDeletion:
    """Waits until the followers have raised their log starts (Kafka: DelayedDeleteRecords)."""

    def __init__(self, deletions: list[_Deletion], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[object] = loop.create_future()
        self.deletions = deletions

    @property
    def keys(self) -> list[TopicPartition]:
        return [
            deletion.partition.topic_partition for deletion in self.deletions if deletion.partition
        ]

    def try_complete(self, key: Hashable | None) -> bool:
        self.deletions = [_looked_at(deletion) for deletion in self.deletions]
        if not any(deletion.error is ErrorCode.request_timed_out for deletion in self.deletions):
            self.expire()
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result(None)


def _looked_at(deletion: _Deletion) -> _Deletion:
    """The deletion with the current low watermark. An outcome that is decided stays."""
    if deletion.partition is None or deletion.error is not ErrorCode.request_timed_out:
        return deletion
    try:
        low_watermark = deletion.partition.low_watermark()
    except IsothermError as error:
        return deletion._replace(error=code_of(error), low_watermark=NO_LOW_WATERMARK)
    if low_watermark < deletion.target:
        return deletion._replace(low_watermark=low_watermark)
    return deletion._replace(error=ErrorCode.none, low_watermark=low_watermark)


def delete_records(partition: Partition, offset: Offset) -> Offset:
    """Raise this replica's log start to `offset`; returns the offset that the followers must
    reach.
    """
    partition.check_is_leader()
    log = partition.log
    if log.config.compacts and not log.config.deletes:
        raise PolicyViolationError(
            "cleanup.policy does not allow the deletion of records"
            f" partition={partition.topic_partition}"
        )
    target = log.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
    if target < 0:
        raise OffsetOutOfRangeError(
            f"no such offset partition={partition.topic_partition} offset={offset}"
        )
    log.maybe_increment_log_start_offset(target)
    return target


def _response(context: RequestContext, topics: list[tuple[str, list[_Deletion]]]) -> Any:
    return context.response(
        {
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": deletion.number,
                            "low_watermark": deletion.low_watermark,
                            "error_code": deletion.error,
                        }
                        for deletion in deletions
                    ],
                }
                for name, deletions in topics
            ],
        }
    )


API = Api(
    ApiKey.DELETE_RECORDS,
    VersionRange(0, 2),
    handle,
    access=Access([on_topics(Operation.DELETE, ["topics/name"])]),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    fixed={"low_watermark": NO_LOW_WATERMARK},
)
