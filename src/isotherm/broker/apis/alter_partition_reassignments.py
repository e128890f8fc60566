"""AlterPartitionReassignments (key 45).

Versions  0-1. 1 allow_replication_factor_change.
Behaviour The current assignment of a partition is accepted and has no effect. Any other gets
          INVALID_REPLICA_ASSIGNMENT, or INVALID_REPLICATION_FACTOR for another number of replicas
          where that is not allowed. A cancellation gets NO_REASSIGNMENT_IN_PROGRESS, because there
          never is one.
Not done  Moving a partition: the embedded controller has one broker.
KIPs      455 · 860
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.image import TopicImage
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    NoReassignmentInProgressError,
    RejectedError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    image = context.services.metadata.image
    allows_change = getattr(request, "allow_replication_factor_change", True)

    return context.response(
        {
            "allow_replication_factor_change": allows_change,
            "error_code": ErrorCode.none,
            "error_message": None,
            "responses": [
                {
                    "name": topic.name,
                    "partitions": [
                        _outcome(
                            topic.name,
                            image.topics_by_name.get(topic.name),
                            partition,
                            allows_change,
                        )
                        for partition in topic.partitions
                    ],
                }
                for topic in request.topics
            ],
        }
    )


def _outcome(
    name: str, topic: TopicImage | None, reassignment: Any, allows_change: bool
) -> dict[str, Any]:
    code, message = ErrorCode.none, None
    try:
        _check(name, topic, reassignment, allows_change=allows_change)
    except RejectedError as error:
        code, message = code_of(error), str(error)
    return {
        "partition_index": reassignment.partition_index,
        "error_code": code,
        "error_message": message,
    }


def _check(name: str, topic: TopicImage | None, reassignment: Any, *, allows_change: bool) -> None:
    """Raise RejectedError unless the request names the partition's current replicas."""
    place = f"partition={name}-{reassignment.partition_index}"
    if topic is None or not 0 <= reassignment.partition_index < len(topic.partitions):
        raise UnknownTopicOrPartitionError(f"no such partition {place}")
    if reassignment.replicas is None:
        raise NoReassignmentInProgressError(f"no reassignment is in progress {place}")
    replicas = topic.partitions[reassignment.partition_index].replicas
    if tuple(reassignment.replicas) == tuple(replicas):
        return
    facts = f"{place} replicas={list(reassignment.replicas)} current={list(replicas)}"
    strangers = [replica for replica in reassignment.replicas if replica not in replicas]
    if (
        not reassignment.replicas
        or strangers
        or len(set(reassignment.replicas)) != len(reassignment.replicas)
    ):
        raise InvalidReplicaAssignmentError(f"the only broker holds the only replica {facts}")
    if not allows_change:
        raise InvalidReplicationFactorError(f"the number of replicas may not change {facts}")


def _refuse(context: RequestContext, request: Any, code: ErrorCode) -> Any:
    """Answer the request and each partition with `code`."""
    return dataclasses.replace(API.refuse_items(context, request, code), error_code=code)


API = Api(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    VersionRange(0, 1),
    handle,
    access=Access(
        [on_cluster(Operation.ALTER, covers=["topics/name", "topics/partitions/replicas"])]
    ),
    items=(Items(("topics", "partitions"), ("responses", "partitions")),),
    refuse_by=_refuse,
    is_forwardable=True,
)
