"""DescribeLogDirs (key 35).

Versions  1-5. 2 flexible · 3 an error of the whole request · 4 size of the volume and free bytes ·
          5 cordoned directories (KIP-1066; none is).
Behaviour Returns each directory of log.dirs with the requested partitions in it (null: all) and
          their bytes there. An offline directory gets KAFKA_STORAGE_ERROR.
          If all partitions are requested, the remote tier is one more directory with the partitions
          that this broker leads, so that existing UIs show the bucket. Its name is remote:// and
          its location, its sizes are those of the metric RemoteLogSizeBytes. A request that names
          partitions gets only local directories, since its purpose is to move replicas.
          The copy of a moving replica is a future replica of its directory, with its lag in
          offsets.
Not done  -
KIPs      113 · 827 volume sizes · 1066
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.partitions.log_dir_moves import FutureReplica
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import LogDirFailedError
from isotherm.log.log_dir import LogDir
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import CLUSTER_METADATA_TOPIC, REMOTE_LOG_DIR, Offset, TopicPartition


def handle(context: RequestContext, request: Any) -> Any:
    replica_manager = context.services.replica_manager
    asked = _asked(request)
    logs = [
        log
        for log in replica_manager.logs()
        if log.topic_partition.topic != CLUSTER_METADATA_TOPIC
        and (asked is None or log.topic_partition in asked)
    ]
    copies = [
        copy
        for copy in replica_manager.future_replicas()
        if asked is None or copy.topic_partition in asked
    ]
    ends = {log.topic_partition: log.log_end_offset for log in logs}
    results = [
        _directory_fields(
            log_dir,
            [
                *(
                    (
                        log.topic_partition,
                        _replica_fields(log.topic_partition, log.size_in_bytes),
                    )
                    for log in logs
                    if log.log_dir is log_dir
                ),
                *(
                    (copy.topic_partition, _future_fields(copy, ends.get(copy.topic_partition, -1)))
                    for copy in copies
                    if copy.log_dir is log_dir
                ),
            ],
        )
        for log_dir in replica_manager.log_dirs()
    ]
    remote = context.services.remote_log_manager
    if asked is None and remote is not None and (sizes := remote.sizes()):
        results.append(_remote_fields(remote.location, sizes))
    return context.response({"error_code": ErrorCode.none, "results": results})


def _asked(request: Any) -> set[tuple[str, int]] | None:
    if request.topics is None:
        return None
    return {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}


def _directory_fields(
    log_dir: LogDir, replicas: list[tuple[TopicPartition, dict[str, Any]]]
) -> dict[str, Any]:
    fields: dict[str, Any] = {"log_dir": str(log_dir.path.absolute()), "topics": ()}
    try:
        volume = log_dir.volume()
    except LogDirFailedError:
        return {**fields, "error_code": ErrorCode.kafka_storage_error}
    return {
        **fields,
        "error_code": ErrorCode.none,
        "total_bytes": volume.total_bytes,
        "usable_bytes": volume.usable_bytes,
        "topics": _by_topic(replicas),
    }


def _remote_fields(location: str, sizes: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {
        "log_dir": REMOTE_LOG_DIR + location,
        "error_code": ErrorCode.none,
        "topics": _by_topic(
            (partition, _replica_fields(partition, size)) for partition, size in sizes.items()
        ),
    }


def _by_topic(
    replicas: Iterable[tuple[TopicPartition, dict[str, Any]]],
) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for topic_partition, fields in sorted(replicas, key=lambda each: each[0]):
        by_topic.setdefault(topic_partition.topic, []).append(fields)
    return [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()]


def _replica_fields(partition: TopicPartition, size_in_bytes: int) -> dict[str, Any]:
    return {
        "partition_index": partition.partition,
        "partition_size": size_in_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }


def _future_fields(copy: FutureReplica, log_end_offset: Offset) -> dict[str, Any]:
    return {
        "partition_index": copy.topic_partition.partition,
        "partition_size": copy.size_in_bytes,
        "offset_lag": log_end_offset - copy.end_offset,
        "is_future_key": True,
    }


API = Api(
    ApiKey.DESCRIBE_LOG_DIRS,
    VersionRange(1, 5),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.DESCRIBE,
                covers=["topics/topic"],
                shows=["results/log_dir", "results/topics/name"],
            )
        ]
    ),
)
