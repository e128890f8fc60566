"""WriteTxnMarkers (key 27).

Versions  1-2. 1 flexible · 2 the client's transaction version
Behaviour Sent by brokers to each other, and by `kafka-transactions abort` to end a transaction that
          its coordinator has forgotten. Each partition has its own error, and is answered once its
          marker is committed. From version 2 on a marker ends only transactions of an earlier epoch
          than its own; if one of the same epoch is open, the marker is late and is refused.
Not done  -
KIPs      98 · 664 · 890
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_endings import (
    MARKERS_PER_TURN,
    EndMarker,
)
from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V0,
    ProducerIdAndEpoch,
)
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.broker.shared_futures import shared, shared_result
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import TopicPartition

FIRST_TRANSACTION_VERSION = 2


async def handle(context: RequestContext, request: Any) -> Any:
    turns = AnswerTurns(MARKERS_PER_TURN)
    appended: list[ErrorCode | asyncio.Future[None]] = []
    for marker in request.markers:
        ended = _end_marker(context, marker)
        for topic in marker.topics:
            for index in topic.partition_indexes:
                await turns.take()
                appended.append(_append(context, ended, TopicPartition(topic.name, index)))
    # Awaited one after the other, which takes no longer than the slowest partition.
    codes = [
        code if isinstance(code, ErrorCode) else await _code_once_committed(code)
        for code in appended
    ]
    return _response(context, request, iter(codes))


def _end_marker(context: RequestContext, marker: Any) -> EndMarker:
    has_version = context.header.api_version >= FIRST_TRANSACTION_VERSION
    return EndMarker(
        ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version if has_version else TRANSACTION_V0,
    )


def _append(
    context: RequestContext, marker: EndMarker, partition: TopicPartition
) -> ErrorCode | asyncio.Future[None]:
    try:
        committed = context.services.transaction_markers.append(marker, partition)
    except IsothermError as error:
        return code_of(error)
    # Shared: when the coordinator's connection ends, those that were not awaited yet are left
    # unread.
    return ErrorCode.none if committed is None else shared(committed)


async def _code_once_committed(committed: asyncio.Future[None]) -> ErrorCode:
    try:
        # The group coordinator waits for it too, and must not notice if this client disconnects.
        await shared_result(committed)
    except IsothermError as error:
        return code_of(error)
    return ErrorCode.none


def _response(context: RequestContext, request: Any, codes: Iterator[ErrorCode]) -> Any:
    """The response. `codes` has one for each partition, in the order of the request."""
    return context.response(
        {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {"partition_index": index, "error_code": next(codes)}
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
    access=Access(
        [
            on_cluster(
                Operation.CLUSTER_ACTION,
                covers=["markers/topics/name"],
                unless_cluster=Operation.ALTER,
            )
        ]
    ),
    items=(
        Items(
            ("markers", "topics", "partition_indexes"),
            ("markers", "topics", "partitions"),
            named="partition_index",
        ),
    ),
)
