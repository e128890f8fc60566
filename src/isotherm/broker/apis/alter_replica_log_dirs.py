"""AlterReplicaLogDirs (key 34).

Versions  1-2
Behaviour A partition that is in the directory already is answered without an error. A path that is no
          log directory gets LOG_DIR_NOT_FOUND, an unknown partition UNKNOWN_TOPIC_OR_PARTITION, as in
          Kafka; a move to another directory INVALID_REQUEST.
Not done  Moving a partition to another directory.
KIPs      113
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    paths = {str(each.path.absolute()) for each in context.services.replica_manager.log_dirs()}
    return _response(
        context,
        [
            (
                topic.name,
                number,
                _outcome(context, asked.path, topic.name, number)
                if asked.path in paths
                else ErrorCode.log_dir_not_found,
            )
            for asked in request.dirs
            for topic in asked.topics
            for number in topic.partitions
        ],
    )


def _outcome(context: RequestContext, path: str, topic: str, number: int) -> ErrorCode:
    replica_manager = context.services.replica_manager
    try:
        partition = replica_manager.find_partition(topic, None, number)
    except UnknownTopicOrPartitionError:
        return ErrorCode.unknown_topic_or_partition
    is_there = str(partition.log.log_dir.path.absolute()) == path
    return ErrorCode.none if is_there else ErrorCode.invalid_request


def _response(context: RequestContext, outcomes: list[tuple[str, int, ErrorCode]]) -> Any:
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, number, code in outcomes:
        topics.setdefault(topic, []).append({"partition_index": number, "error_code": code})
    return context.response(
        {
            "results": [
                {"topic_name": name, "partitions": partitions}
                for name, partitions in topics.items()
            ],
        }
    )


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Every partition that is named is answered with `error_code`."""
    return _response(
        context,
        [
            (topic.name, number, error_code)
            for asked in request.dirs
            for topic in asked.topics
            for number in topic.partitions
        ],
    )


API = Api(ApiKey.ALTER_REPLICA_LOG_DIRS, VersionRange(1, 2), handle, refuse_by=_refuse)
