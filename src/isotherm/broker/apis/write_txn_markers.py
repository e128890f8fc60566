"""WriteTxnMarkers (key 27).

Versions  1-2. 1 flexible · 2 the client's transaction version
Behaviour Brokers send it to one another, and `kafka-transactions abort` to end a transaction whose
          coordinator has forgotten it. Each partition is answered for itself.
Not done  -
KIPs      98 · 664 · 890
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.refusals import Items
from isotherm.broker.requests.served_api import Api
from isotherm.broker.requests.split_requests import next_turn
from isotherm.broker.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import TopicPartition

# As for an end by the coordinator: a request may ask for any number.
MARKERS_PER_TURN = 32


async def handle(context: RequestContext, request: Any) -> Any:
    codes = []
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                codes.append(_write(context, marker, TopicPartition(topic.name, index)))
                if len(codes) % MARKERS_PER_TURN == 0:
                    await next_turn()
    answers = iter(codes)
    return _response(context, request, lambda: next(answers))


def _write(context: RequestContext, marker: Any, partition: TopicPartition) -> ErrorCode:
    try:
        context.services.transaction_markers.write(
            partition,
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
        )
    except IsothermError as error:
        return code_of(error)
    return ErrorCode.none


def _response(context: RequestContext, request: Any, next_code: Callable[[], ErrorCode]) -> Any:
    """`next_code` is called for each partition, in the order of the request."""
    return context.response(
        {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {"partition_index": index, "error_code": next_code()}
                                for index in topic.partition_indexes
                            ],
                        }
                        for topic in marker.topics
                    ],
                }
                for marker in request.markers
            ]
        }
    )


API = Api(
    ApiKey.WRITE_TXN_MARKERS,
    VersionRange(1, 2),
    handle,
    items=(
        Items(
            ("markers", "topics", "partition_indexes"),
            ("markers", "topics", "partitions"),
            named="partition_index",
        ),
    ),
)
