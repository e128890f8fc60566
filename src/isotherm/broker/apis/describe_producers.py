"""DescribeProducers (key 61).

Versions  0
Behaviour Returns the state of idempotent and transactional producers in the partition's log. The
          log forgets producers that were idle for producer.id.expiration.ms.
Not done  -
KIPs      664
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.error_mapping import error_message
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.controller.topic_rules import check_topic_name
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidTopicError, IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _described(context, topic.name, index) for index in topic.partition_indexes
            ],
        }
        for topic in request.topics
    ]
    return context.response({"topics": topics})


def _described(context: RequestContext, topic: str, index: int) -> dict[str, Any]:
    try:
        check_topic_name(topic)
        partition = context.services.replica_manager.find_partition(topic, None, index)
    except IsothermError as error:
        return {
            "partition_index": index,
            "error_code": code_of(error),
            "error_message": error_message(error),
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "active_producers": [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.producer_epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.current_transaction_first_offset,
            }
            for entry in partition.log.producers.snapshot_entries()
        ],
    }


def _legal(names: Sequence[str]) -> set[str]:
    return {name for name in names if _is_legal(name)}


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return True


API = Api(
    ApiKey.DESCRIBE_PRODUCERS,
    VersionRange(0, 0),
    handle,
    access=Access([on_topics(Operation.READ, ["topics/name"], judged=_legal)]),
    items=(
        Items(("topics", "partition_indexes"), ("topics", "partitions"), named="partition_index"),
    ),
)
