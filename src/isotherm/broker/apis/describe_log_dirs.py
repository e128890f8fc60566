"""DescribeLogDirs (key 35).

Versions  1-5. 2 flexible · 3 an error of the whole request · 4 size of the volume and free bytes ·
          5 cordoned directories (KIP-1066; none is).
Behaviour Each directory of log.dirs with the partitions in it that were asked for (null: all) and
          the bytes that each has there; an offline directory gets KAFKA_STORAGE_ERROR.
          Sizes are of the local tier: the response has no field for another. A partition's remote
          bytes are the sum of the sizes in its remote segments' metadata (`isotherm remote`).
Not done  Moving replicas between directories: no partition is a future one.
KIPs      113 · 827 volume sizes · 1066
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.errors import LogDirFailedError
from isotherm.log.log_dir import LogDir
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import CLUSTER_METADATA_TOPIC


def handle(context: RequestContext, request: Any) -> Any:
    replica_manager = context.services.replica_manager
    asked = _asked(request)
    logs = [
        log
        for log in replica_manager.logs()
        if log.topic_partition.topic != CLUSTER_METADATA_TOPIC
        and (asked is None or log.topic_partition in asked)
    ]
    results = [_directory_fields(log_dir, logs) for log_dir in replica_manager.log_dirs()]
    return context.response({"error_code": ErrorCode.none, "results": results})


def _asked(request: Any) -> set[tuple[str, int]] | None:
    if request.topics is None:
        return None
    return {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}


def _directory_fields(log_dir: LogDir, logs: list[PartitionLog]) -> dict[str, Any]:
    fields: dict[str, Any] = {"log_dir": str(log_dir.path.absolute()), "topics": ()}
    try:
        volume = log_dir.volume()
    except LogDirFailedError:
        return {**fields, "error_code": ErrorCode.kafka_storage_error}
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for log in sorted(logs, key=lambda log: log.topic_partition):
        if log.log_dir is log_dir:
            by_topic.setdefault(log.topic_partition.topic, []).append(_partition_fields(log))
    return {
        **fields,
        "error_code": ErrorCode.none,
        "total_bytes": volume.total_bytes,
        "usable_bytes": volume.usable_bytes,
        "topics": [
            {"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()
        ],
    }


def _partition_fields(log: PartitionLog) -> dict[str, Any]:
    return {
        "partition_index": log.topic_partition.partition,
        "partition_size": log.size_in_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }


API = Api(ApiKey.DESCRIBE_LOG_DIRS, VersionRange(1, 5), handle)
