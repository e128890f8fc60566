"""DeleteRecords (key 21).

Versions  0-2. 2 flexible.
Behaviour The log start of each partition is raised to the offset (-1: the high watermark) over both
          tiers; the answer is the log start then, the low watermark of the one replica. Files and
          remote segments below it go with the next retention. An offset below the log start changes
          nothing. Each partition has its own error: OFFSET_OUT_OF_RANGE beyond the high watermark,
          POLICY_VIOLATION unless cleanup.policy has delete, INVALID_TOPIC_EXCEPTION for the
          broker's own topics.
Not done  The timeout has no effect: there is no follower to wait for.
KIPs      107
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.internal_topics import is_internal
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.refusals import Items
from isotherm.broker.requests.served_api import Api
from isotherm.errors import (
    InvalidTopicError,
    IsothermError,
    OffsetOutOfRangeError,
    PolicyViolationError,
)
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, Offset

UP_TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(context: RequestContext, request: Any) -> Any:
    return _response(
        context,
        [
            (topic.name, [_answer(context, topic.name, asked) for asked in topic.partitions])
            for topic in request.topics
        ],
    )


def _answer(context: RequestContext, topic: str, asked: Any) -> dict[str, Any]:
    try:
        if is_internal(topic) or topic in REMOTE_LOG_METADATA_TOPICS:
            raise InvalidTopicError(f"records of an internal topic are not deleted topic={topic}")
        partition = context.services.replica_manager.find_partition(
            topic, None, asked.partition_index
        )
        return _fields(asked, ErrorCode.none, delete_records(partition, asked.offset))
    except IsothermError as error:
        return _fields(asked, code_of(error))


def delete_records(partition: Partition, offset: Offset) -> Offset:
    """Delete what lies below `offset`; the log start after that."""
    log = partition.log
    if not log.config.deletes:
        raise PolicyViolationError(
            f"cleanup.policy does not let records be deleted partition={partition.topic_partition}"
        )
    wanted = log.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
    if wanted < 0:
        raise OffsetOutOfRangeError(
            f"no such offset partition={partition.topic_partition} offset={offset}"
        )
    log.maybe_increment_log_start_offset(wanted)
    return log.log_start_offset


def _fields(
    asked: Any, error_code: ErrorCode, low_watermark: Offset = NO_LOW_WATERMARK
) -> dict[str, Any]:
    return {
        "partition_index": asked.partition_index,
        "low_watermark": low_watermark,
        "error_code": error_code,
    }


def _response(context: RequestContext, topics: list[tuple[str, list[dict[str, Any]]]]) -> Any:
    return context.response(
        {
            "topics": [{"name": name, "partitions": partitions} for name, partitions in topics],
        }
    )


API = Api(
    ApiKey.DELETE_RECORDS,
    VersionRange(0, 2),
    handle,
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    fixed={"low_watermark": NO_LOW_WATERMARK},
)
