"""Guards of producer ids and transactions, which need WRITE on the transactional id."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.internal_topics import is_internal
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.access.item_refusal import handle_allowed, then
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey

_REFUSED = ErrorCode.transactional_id_authorization_failed
FIRST_BATCHED_VERSION = 4


def allows_write(authorizer: Authorizer, context: RequestContext, transactional_id: str) -> bool:
    return authorizer.allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _init_producer_id(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """InitProducerId without a transactional id needs IDEMPOTENT_WRITE on the cluster or WRITE
    on some topic.
    """
    if request.transactional_id is not None:
        if not allows_write(authorizer, context, request.transactional_id):
            return api.refuse(context, request, _REFUSED)
    elif not (
        authorizer.allows_cluster(context, Operation.IDEMPOTENT_WRITE, is_logged=False)
        or authorizer.allows_any(context, Operation.WRITE, ResourceType.TOPIC)
    ):
        return api.refuse(context, request, ErrorCode.cluster_authorization_failed)
    return api.handle(context, request)


def _end_txn(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    if allows_write(authorizer, context, request.transactional_id):
        return api.handle(context, request)
    return api.refuse(context, request, _REFUSED)


def _add_offsets(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    if not allows_write(authorizer, context, request.transactional_id):
        return api.refuse(context, request, _REFUSED)
    if not authorizer.allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return api.refuse(context, request, ErrorCode.group_authorization_failed)
    return api.handle(context, request)


def _add_partitions(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """AddPartitionsToTxn needs WRITE on the transactional id and the topics.

    If one partition may not be added, none is. Internal topics can never be added. Versions from 4
    on are sent only by brokers, and need CLUSTER_ACTION.
    """
    if context.header.api_version >= FIRST_BATCHED_VERSION:
        if authorizer.allows_cluster(context, Operation.CLUSTER_ACTION):
            return api.handle(context, request)
        code = ErrorCode.cluster_authorization_failed
        return context.response({"error_code": code, "results_by_transaction": ()})
    if not allows_write(authorizer, context, request.v3_and_below_transactional_id):
        return api.refuse(context, request, _REFUSED)
    topics = request.v3_and_below_topics
    names = {topic.name for topic in topics}
    allowed = authorizer.allowed(
        context,
        Operation.WRITE,
        ResourceType.TOPIC,
        (name for name in names if not is_internal(name)),
    )
    if names <= allowed:
        return api.handle(context, request)
    existing = context.services.metadata.image.topics_by_name
    return context.response(
        {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {
                            "partition_index": index,
                            "partition_error_code": ErrorCode.topic_authorization_failed
                            if topic.name not in allowed
                            else ErrorCode.operation_not_attempted
                            if topic.name in existing
                            and 0 <= index < len(existing[topic.name].partitions)
                            else ErrorCode.unknown_topic_or_partition,
                        }
                        for index in topic.partitions
                    ],
                }
                for topic in topics
            ]
        }
    )


def _describe(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """DescribeTransactions leaves out the partitions of topics that the client may not describe."""

    def refusal_of(transactional_id: str) -> ErrorCode | None:
        is_allowed = authorizer.allows(
            context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        )
        return None if is_allowed else _REFUSED

    def visible(response: Any) -> Any:
        states = tuple(
            dataclasses.replace(
                state,
                topics=tuple(
                    each
                    for each in state.topics
                    if authorizer.allows(
                        context, Operation.DESCRIBE, ResourceType.TOPIC, each.topic
                    )
                ),
            )
            for state in response.transaction_states
        )
        return dataclasses.replace(response, transaction_states=states)

    return then(handle_allowed(api, context, request, refusal_of), visible)


def _list(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    def visible(response: Any) -> Any:
        states = tuple(
            each
            for each in response.transaction_states
            if authorizer.allows(
                context,
                Operation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                each.transactional_id,
            )
        )
        return dataclasses.replace(response, transaction_states=states)

    return then(api.handle(context, request), visible)


GUARDS: Mapping[int, Guard] = {
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe,
    ApiKey.END_TXN: _end_txn,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.LIST_TRANSACTIONS: _list,
}
