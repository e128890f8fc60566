"""ListTransactions (key 66).

Versions  0-2. 1 duration filter · 2 pattern of the transactional id
Behaviour An absent filter lets everything pass. The answer has the unknown state names of the
          filter. A duration counts from the start of the last transaction, as in Kafka. Patterns
          are RE2's, so their time is linear, and match the whole id. An invalid pattern gets
          INVALID_REGULAR_EXPRESSION.
Not done  -
KIPs      664 · 994 · 1152
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_state import (
    TransactionMetadata,
    TransactionState,
)
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.patterns import matching_names
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_DURATION_VERSION = 1
FIRST_PATTERN_VERSION = 2
# One, so that costly patterns take the time of one core at most, and hold up none of the threads in
# which large requests are decoded. A connection has one request in it at a time.
MATCHING_THREADS = 1
_MATCHING = ThreadPoolExecutor(MATCHING_THREADS, thread_name_prefix="isotherm-transaction-patterns")
_STATES = {state.kafka_name: state for state in TransactionState}


def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    unknown = [name for name in request.state_filters if name not in _STATES]
    duration_ms = request.duration_filter if version >= FIRST_DURATION_VERSION else -1
    pattern = request.transactional_id_pattern if version >= FIRST_PATTERN_VERSION else None
    transactions = [
        metadata
        for metadata in context.services.transaction_coordinator.transactions()
        if (not states or metadata.state.kafka_name in states)
        and (not producer_ids or metadata.producer_id in producer_ids)
        and (duration_ms < 0 or context.services.clock.now_ms() - metadata.start_ms > duration_ms)
    ]
    if pattern:
        return _matching(context, pattern, unknown, transactions)
    return _response(context, ErrorCode.none, unknown, transactions)


async def _matching(
    context: RequestContext,
    pattern: str,
    unknown: Sequence[str],
    transactions: Sequence[TransactionMetadata],
) -> Any:
    ids = [metadata.transactional_id for metadata in transactions]
    # Off the event loop: a pattern may be costly, and the import of Arrow takes a tenth of a
    # second.
    loop = asyncio.get_running_loop()
    matching = await loop.run_in_executor(_MATCHING, matching_names, pattern, ids)
    matched = [
        transaction for transaction in transactions if transaction.transactional_id in matching
    ]
    return _response(context, ErrorCode.none, unknown, matched)


def _response(
    context: RequestContext,
    error_code: ErrorCode,
    unknown: Iterable[str],
    transactions: Iterable[TransactionMetadata],
) -> Any:
    return context.response(
        {
            "error_code": error_code,
            "unknown_state_filters": tuple(unknown),
            "transaction_states": [
                {
                    "transactional_id": metadata.transactional_id,
                    "producer_id": metadata.producer_id,
                    "transaction_state": metadata.state.kafka_name,
                }
                for metadata in transactions
            ],
        }
    )


API = Api(
    ApiKey.LIST_TRANSACTIONS,
    VersionRange(0, 2),
    handle,
    access=Access(
        [
            Check(
                Operation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                denial=Denial.LEAVES_OUT,
                shows=["transaction_states/transactional_id"],
            )
        ],
        unchecked={"transactional_id_pattern": "selects of the ids that the client may describe"},
    ),
)
