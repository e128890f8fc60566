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

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.partitions.log_dir_moves import FutureReplica
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import LogDirFailedError
from isotherm.log.log_dir import LogDir
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.entities import entity_of, item_class
from isotherm.types import CLUSTER_METADATA_TOPIC, REMOTE_LOG_DIR, TopicPartition

# Each with the fields of its answer, which are read in its turn.
Replicas: TypeAlias = Sequence[tuple[TopicPartition, Callable[[], dict[str, Any]]]]


async def handle(context: RequestContext, request: Any) -> Any:
    replica_manager = context.services.replica_manager
    partitions = _requested_partitions(request)
    logs = {
        log.topic_partition: log
        for log in replica_manager.logs()
        if log.topic_partition.topic != CLUSTER_METADATA_TOPIC
        and (partitions is None or log.topic_partition in partitions)
    }
    copies = [
        copy
        for copy in replica_manager.future_replicas()
        if partitions is None or copy.topic_partition in partitions
    ]
    # A request of a few bytes may be about all replicas, so others are served meanwhile.
    turns = AnswerTurns()
    results = []
    for log_dir in replica_manager.log_dirs():
        replicas = [
            *(
                (partition, partial(_log_fields, log))
                for partition, log in logs.items()
                if log.log_dir is log_dir
            ),
            *(
                (
                    copy.topic_partition,
                    partial(_future_fields, copy, logs.get(copy.topic_partition)),
                )
                for copy in copies
                if copy.log_dir is log_dir
            ),
        ]
        results.append(await _directory_fields(context, log_dir, replicas, turns))
    remote = context.services.remote_log_manager
    if partitions is None and remote is not None and (sizes := remote.sizes()):
        results.append(await _remote_fields(context, remote.location, sizes, turns))
    return context.response({"error_code": ErrorCode.none, "results": results})


def _requested_partitions(request: Any) -> set[tuple[str, int]] | None:
    if request.topics is None:
        return None
    return {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}


async def _directory_fields(
    context: RequestContext, log_dir: LogDir, replicas: Replicas, turns: AnswerTurns
) -> dict[str, Any]:
    fields: dict[str, Any] = {"log_dir": str(log_dir.path.absolute()), "topics": ()}
    try:
        volume = await context.services.volumes.read(log_dir)
    except LogDirFailedError:
        return {**fields, "error_code": ErrorCode.kafka_storage_error}
    return {
        **fields,
        "error_code": ErrorCode.none,
        "total_bytes": volume.total_bytes,
        "usable_bytes": volume.usable_bytes,
        "topics": await _topics(context, replicas, turns),
    }


async def _remote_fields(
    context: RequestContext, location: str, sizes: Mapping[TopicPartition, int], turns: AnswerTurns
) -> dict[str, Any]:
    replicas = [
        (partition, partial(_replica_fields, partition, size)) for partition, size in sizes.items()
    ]
    return {
        "log_dir": REMOTE_LOG_DIR + location,
        "error_code": ErrorCode.none,
        "topics": await _topics(context, replicas, turns),
    }


async def _topics(context: RequestContext, replicas: Replicas, turns: AnswerTurns) -> list[Any]:
    topic_type = item_class(item_class(context.response_type, "results"), "topics")
    partition_type = item_class(topic_type, "partitions")
    by_topic: dict[str, list[Any]] = {}
    for topic_partition, fields in sorted(replicas, key=itemgetter(0)):
        await turns.take()
        partitions = by_topic.setdefault(topic_partition.topic, [])
        partitions.append(entity_of(partition_type, fields()))
    topics = []
    for topic, partitions in by_topic.items():
        await turns.take()
        topics.append(entity_of(topic_type, {"name": topic, "partitions": partitions}))
    return topics


def _log_fields(log: PartitionLog) -> dict[str, Any]:
    return _replica_fields(log.topic_partition, log.size_in_bytes)


def _replica_fields(partition: TopicPartition, size_in_bytes: int) -> dict[str, Any]:
    return {
        "partition_index": partition.partition,
        "partition_size": size_in_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }


def _future_fields(copy: FutureReplica, log: PartitionLog | None) -> dict[str, Any]:
    log_end_offset = -1 if log is None else log.log_end_offset
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
