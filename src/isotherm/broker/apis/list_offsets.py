"""ListOffsets (key 2).

Versions  1-11. 2 isolation level · 4 leader epochs · 6 flexible · 7 timestamp -3 · 8 -4 · 9 -5 ·
          10 timeout for lookups in the remote tier · 11 -6
Behaviour Each partition has its own error. Timestamps are looked up in both tiers. Look-ups in the
          remote tier run in parallel; the request's timeout or
          remote.list.offsets.request.timeout.ms bounds them (see
          isotherm.broker.partitions.offset_lookup). Only the leader answers. For a replica (id >=
          0) the latest offset is the log end. A new leader whose high watermark is below the start
          of its epoch answers OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE before version 5). A
          partition that is named twice gets INVALID_REQUEST, a special timestamp that the version
          does not have UNSUPPORTED_VERSION.
Not done  -
KIPs      79 timestamps · 207 · 405 -4 · 734 -3 · 1005 -5 · 1023 -6 · 1075 remote lookups
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.partitions.offset_lookup import (
    NOT_FOUND,
    FoundOffset,
    LocalSearch,
    check_timestamp,
    find_offset,
)
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import IsothermError
from isotherm.log.log_read import FetchIsolation
from isotherm.protocol.api_keys import ApiKey, VersionRange

READ_COMMITTED = 1
CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
FIRST_NOT_AVAILABLE_VERSION = 5
FIRST_ISOLATION_VERSION = 2
FIRST_LEADER_EPOCH_VERSION = 4
FIRST_TIMEOUT_VERSION = 10


class Answer(NamedTuple):
    """The answer for one partition: an error, an offset (perhaps NOT_FOUND), or an offset that
    is still awaited.
    """

    offset: FoundOffset = NOT_FOUND
    error: ErrorCode = ErrorCode.none
    awaited: Awaitable[FoundOffset] | None = None


def handle(context: RequestContext, request: Any) -> Any:
    asked_times = Counter(
        (topic.name, entry.partition_index)
        for topic in request.topics
        for entry in topic.partitions
    )
    search = LocalSearch(context.services.batch_executor, asyncio.Semaphore())
    answers = [
        Answer(error=ErrorCode.invalid_request)
        if asked_times[topic.name, entry.partition_index] > 1
        else _look_up(context, request, topic.name, entry, search)
        for topic in request.topics
        for entry in topic.partitions
    ]
    if any(answer.awaited for answer in answers):
        return _answer_later(context, request, answers)
    return _response(context, request, answers)


async def _answer_later(context: RequestContext, request: Any, answers: Sequence[Answer]) -> Any:
    version = context.header.api_version
    try:
        finished = await asyncio.gather(*(_finish(answer, version) for answer in answers))
    finally:
        # A client that is gone cancels look-ups that have not begun.
        for answer in answers:
            if isinstance(answer.awaited, Coroutine):
                answer.awaited.close()
    return _response(context, request, finished)


async def _finish(answer: Answer, version: int) -> Answer:
    if answer.awaited is None:
        return answer
    try:
        return Answer(await answer.awaited)
    except IsothermError as error:
        return Answer(error=_code(error, version))


def _code(error: IsothermError, version: int) -> ErrorCode:
    code = code_of(error)
    if code is ErrorCode.offset_not_available and version < FIRST_NOT_AVAILABLE_VERSION:
        return ErrorCode.leader_not_available
    return code


def _look_up(
    context: RequestContext, request: Any, topic: str, entry: Any, search: LocalSearch
) -> Answer:
    version = context.header.api_version
    services = context.services
    remote = services.remote_log_manager
    try:
        check_timestamp(entry.timestamp, version)
        partition = services.replica_manager.find_partition(topic, None, entry.partition_index)
        if version >= FIRST_LEADER_EPOCH_VERSION:
            partition.check_leader_epoch(entry.current_leader_epoch)
        if request.replica_id != DEBUGGING_REPLICA_ID:
            partition.check_is_leader()
        offset = find_offset(
            partition,
            entry.timestamp,
            _isolation(request, version),
            None if remote is None else remote.readers,
            search,
            _timeout_s(context, request),
        )
    except IsothermError as error:
        return Answer(error=_code(error, version))
    return Answer(offset) if isinstance(offset, FoundOffset) else Answer(awaited=offset)


def _isolation(request: Any, version: int) -> FetchIsolation:
    if request.replica_id != CONSUMER_REPLICA_ID:
        return FetchIsolation.LOG_END
    if version >= FIRST_ISOLATION_VERSION and request.isolation_level == READ_COMMITTED:
        return FetchIsolation.TXN_COMMITTED
    return FetchIsolation.HIGH_WATERMARK


def _timeout_s(context: RequestContext, request: Any) -> float:
    if context.header.api_version >= FIRST_TIMEOUT_VERSION:
        requested_s = request.timeout.total_seconds()
        if requested_s > 0:
            return float(requested_s)
    return context.services.config.remote.remote_list_offsets_request_timeout_ms / 1000


def _response(context: RequestContext, request: Any, answers: Sequence[Answer]) -> Any:
    remaining = iter(answers)
    return context.response(
        {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        _partition_fields(entry.partition_index, next(remaining))
                        for entry in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        }
    )


def _partition_fields(partition: int, answer: Answer) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": answer.error,
        "timestamp": answer.offset.timestamp_ms,
        "offset": answer.offset.offset,
        "leader_epoch": answer.offset.leader_epoch,
    }


API = Api(
    ApiKey.LIST_OFFSETS,
    VersionRange(1, 11),
    handle,
    access=Access(
        [on_topics(Operation.DESCRIBE, ["topics/name"])],
        unchecked={"replica_id": "in Kafka, who names a follower needs no other right"},
    ),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
)
