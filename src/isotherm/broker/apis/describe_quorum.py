"""DescribeQuorum (key 55).

Versions  0-2. 1 times of the replicas · 2 directories, nodes, messages.
Behaviour The embedded controller's quorum of `__cluster_metadata-0` has one voter, this broker,
          which leads it and is always caught up. Its endpoints are the controller listeners of the
          configuration, as in Kafka, though they are not opened: the controller is in this process.
          Another partition gets UNKNOWN_TOPIC_OR_PARTITION, as in Kafka.
Not done  -
KIPs      595 · 836 times · 853 directories, nodes
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange, response_class
from isotherm.protocol.entities import blank_entity
from isotherm.types import CLUSTER_METADATA_TOPIC

METADATA_PARTITION = (CLUSTER_METADATA_TOPIC, 0)


def handle(context: RequestContext, request: Any) -> Any:
    partitions = _requested_partitions(request)
    if partitions != [METADATA_PARTITION]:
        return _refused_partitions(context, partitions, ErrorCode.unknown_topic_or_partition)
    services = context.services
    controller, node_id = services.controller, services.config.node_id
    now_ms, end_offset = services.clock.now_ms(), services.metadata.image.end_offset
    voter = {
        "replica_id": node_id,
        "replica_directory_id": controller.directory_id,
        "log_end_offset": end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "leader_id": node_id,
        "leader_epoch": controller.epoch,
        "high_watermark": end_offset,
        "current_voters": [voter],
    }
    listeners = [
        {"name": listener.name, "host": listener.host, "port": listener.port}
        for listener in services.config.listener_layout.controllers
    ]
    return _response(
        context,
        [{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [partition]}],
        nodes=[{"node_id": node_id, "listeners": listeners}],
    )


def _requested_partitions(request: Any) -> list[tuple[str, int]]:
    return [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]


def _refused_partitions(
    context: RequestContext, partitions: list[tuple[str, int]], error_code: ErrorCode
) -> Any:
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append({"partition_index": number, "error_code": error_code})
    return _response(
        context,
        [{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()],
    )


def _response(
    context: RequestContext,
    topics: list[dict[str, Any]],
    nodes: list[dict[str, Any]] | None = None,
) -> Any:
    return blank_entity(
        response_class(ApiKey.DESCRIBE_QUORUM, context.header.api_version),
        {"error_code": ErrorCode.none, "topics": topics, "nodes": nodes},
    )


API = Api(
    ApiKey.DESCRIBE_QUORUM,
    VersionRange(0, 2),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.DESCRIBE,
                covers=["topics/topic_name"],
                shows=[
                    "topics/partitions/current_voters/replica_id",
                    "topics/partitions/observers/replica_id",
                ],
            )
        ]
    ),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    is_forwardable=True,
)
