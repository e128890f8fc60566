"""DescribeTransactions (key 65).

Versions  0
Behaviour Returns the state of each requested transactional id. While a transaction ends, all of its
          partitions are included; Kafka leaves out those whose marker is written.
Not done  -
KIPs      664
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_snapshot import partitions_by_topic
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError, IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import NO_TIMESTAMP, TimestampMs


def handle(context: RequestContext, request: Any) -> Any:
    states = [
        _described(context, transactional_id) for transactional_id in request.transactional_ids
    ]
    return context.response({"transaction_states": states})


def _described(context: RequestContext, transactional_id: str) -> dict[str, Any]:
    try:
        if not transactional_id:
            raise InvalidRequestError("the transactional id is empty")
        metadata = context.services.transaction_coordinator.describe(transactional_id)
    except IsothermError as error:
        return _failed(transactional_id, code_of(error))
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": metadata.state.kafka_name,
        "transaction_timeout": datetime.timedelta(milliseconds=metadata.timeout_ms),
        "transaction_start_time": _time(metadata.start_ms),
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": tuple(partitions)}
            for topic, partitions in partitions_by_topic(metadata.partitions).items()
        ],
    }


def _time(timestamp_ms: TimestampMs) -> datetime.datetime | None:
    """The timestamp as the protocol needs it. None is written as -1, Kafka's value for an id
    without a transaction."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return epoch + datetime.timedelta(milliseconds=timestamp_ms)


def _failed(transactional_id: str, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": datetime.timedelta(),
        "transaction_start_time": _time(0),
        "producer_id": 0,  # the schema's defaults, as in Kafka
        "producer_epoch": 0,
        "topics": [],
    }


API = Api(
    ApiKey.DESCRIBE_TRANSACTIONS,
    VersionRange(0, 0),
    handle,
    access=Access(
        [
            Check(
                Operation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                ["transactional_ids"],
                Denial.REFUSES_ITEM,
            ),
            Check(
                Operation.DESCRIBE,
                ResourceType.TOPIC,
                denial=Denial.LEAVES_OUT,
                shows=["transaction_states/topics/topic"],
            ),
        ]
    ),
    items=(Items(("transactional_ids",), ("transaction_states",), named="transactional_id"),),
)
