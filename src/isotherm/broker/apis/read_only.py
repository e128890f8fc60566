"""The APIs of a read replica: those that read are served, all others are refused with the reason.

A refused API stays in ApiVersions, so that a client gets the reason and not a closed connection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)

REASON = "this is a read replica: it serves history and changes nothing"

READING: frozenset[int] = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.DELETE_GROUPS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.HEARTBEAT,
        ApiKey.JOIN_GROUP,
        ApiKey.LEAVE_GROUP,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_OFFSETS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_DELETE,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SYNC_GROUP,
    }
)
"""Group requests change only what a consumer keeps: its place."""


def read_only_apis(apis: Mapping[int, Api]) -> Mapping[int, Api]:
    return {key: api if key in READING else _refused(api) for key, api in apis.items()}


def _refused(api: Api) -> Api:
    if api.key == ApiKey.PRODUCE:
        return dataclasses.replace(api, handle=_refuse_produce)

    def handle(context: RequestContext, request: Any) -> Any:
        return api.refuse(context, request, ErrorCode.policy_violation, REASON)

    return dataclasses.replace(api, handle=handle)


def _refuse_produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse:
    if request.acks == 0:
        raise HangUpError(REASON)
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic.name,
                topic.topic_id,
                [
                    ProducePartitionResponse(
                        partition=partition.partition,
                        error_code=ErrorCode.policy_violation,
                        error_message=REASON,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
