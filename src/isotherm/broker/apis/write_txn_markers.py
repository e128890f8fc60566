"""WriteTxnMarkers (key 27).

Versions  1-2. 1 flexible · 2 the client's transaction version
Behaviour Brokers send it to one another, and `kafka-transactions abort` to end a transaction whose
          coordinator has forgotten it. Each partition is answered for itself.
Not done  -
KIPs      98 · 664 · 890
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.errors import IsothermError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of
from isotherm.types import TopicPartition

# As for an end by the coordinator: a request may ask for any number.
MARKERS_PER_TURN = 32


class _NextTurn:
    """Awaited, it lets the event loop go round once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def handle(context: RequestContext, request: Any) -> Any:
    codes = []
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                codes.append(_write(context, marker, TopicPartition(topic.name, index)))
                if len(codes) % MARKERS_PER_TURN == 0:
                    await _NextTurn()
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
    return entity_of(
        response_class(ApiKey.WRITE_TXN_MARKERS, context.header.api_version),
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
        },
    )


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    return _response(context, request, lambda: error_code)
