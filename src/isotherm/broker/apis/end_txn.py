"""EndTxn (key 26).

Versions  0-5. 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before · 3 flexible · 4
          TRANSACTION_ABORTABLE · 5 every end raises the epoch, and the answer says to what
Behaviour Answered once the markers are written, so that a read_committed consumer asked after a
          commit has returned sees its records; Kafka answers before that. A retry of an end that
          is done succeeds; the opposite end gets INVALID_TXN_STATE.
Not done  -
KIPs      98 · 588 · 890 transactions of version 2
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.broker.transactions.transaction_state import (
    TRANSACTION_V0,
    TRANSACTION_V2,
    ProducerIdAndEpoch,
)
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of
from isotherm.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NO_THROTTLE = datetime.timedelta()
FIRST_FENCED_VERSION = 2
FIRST_V2_VERSION = 5


async def handle(context: RequestContext, request: Any) -> Any:
    if not request.transactional_id:
        raise InvalidRequestError("a transactional id is not empty")
    is_v2 = context.header.api_version >= FIRST_V2_VERSION
    producer = await context.services.transaction_coordinator.end_transaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_version=TRANSACTION_V2 if is_v2 else TRANSACTION_V0,
    )
    return _response(context, ErrorCode.none, producer)


def _response(context: RequestContext, error_code: ErrorCode, producer: ProducerIdAndEpoch) -> Any:
    version = context.header.api_version
    if error_code is ErrorCode.producer_fenced and version < FIRST_FENCED_VERSION:
        error_code = ErrorCode.invalid_producer_epoch
    return entity_of(
        response_class(ApiKey.END_TXN, version),
        {
            "throttle_time": NO_THROTTLE,
            "error_code": error_code,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        },
    )


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return _response(context, error_code, ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH))
