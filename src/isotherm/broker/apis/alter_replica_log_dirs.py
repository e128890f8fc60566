"""AlterReplicaLogDirs (key 34).

Versions  1-2
Behaviour Copies a replica to the directory while it is in use, and uses the copy once it has caught
          up. The answer does not wait for that. A move to the current directory cancels a move in
          progress. As in Kafka, a path that is not a log directory gets LOG_DIR_NOT_FOUND, and an
          offline directory KAFKA_STORAGE_ERROR. A partition without a replica here gets
          REPLICA_NOT_AVAILABLE, and its future replica will be created in that directory. A topic
          name that is too long for the directory of the copy gets INVALID_TOPIC_EXCEPTION.
Not done  -
KIPs      113 · 858
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.log.log_dir import LogDir
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.segment.file_names import future_directory_name_fits
from isotherm.types import TopicPartition


async def handle(context: RequestContext, request: Any) -> Any:
    replica_manager = context.services.replica_manager
    log_dirs = {str(log_dir.path.absolute()): log_dir for log_dir in replica_manager.log_dirs()}
    outcomes = await context.services.run_control(
        lambda: [
            (
                topic.name,
                number,
                _outcome(
                    replica_manager,
                    log_dirs.get(directory.path),
                    TopicPartition(topic.name, number),
                ),
            )
            for directory in request.dirs
            for topic in directory.topics
            for number in topic.partitions
        ]
    )
    return _response(context, outcomes)


def _outcome(
    replica_manager: ReplicaManager, log_dir: LogDir | None, topic_partition: TopicPartition
) -> ErrorCode:
    if not future_directory_name_fits(topic_partition):
        return ErrorCode.invalid_topic_exception
    if log_dir is None:
        return ErrorCode.log_dir_not_found
    if not log_dir.is_online:
        return ErrorCode.kafka_storage_error
    try:
        replica_manager.move_replica(topic_partition, log_dir)
    except NotLeaderOrFollowerError:
        return ErrorCode.replica_not_available
    except IsothermError as error:
        return error_code(error)
    return ErrorCode.none


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
    """Answer every named partition with `error_code`."""
    return _response(
        context,
        [
            (topic.name, number, error_code)
            for directory in request.dirs
            for topic in directory.topics
            for number in topic.partitions
        ],
    )


API = Api(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    VersionRange(1, 2),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.ALTER,
                covers=["dirs/path", "dirs/topics/name"],
                shows=["results/topic_name"],
            )
        ]
    ),
    refuse_by=_refuse,
)
