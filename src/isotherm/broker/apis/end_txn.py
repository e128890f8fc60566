"""EndTxn (key 26).

Versions  0-5. 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before · 3 flexible · 4
          TRANSACTION_ABORTABLE · 5 every end raises the epoch, and the answer has the new one
Behaviour Answered once the markers are written, so that a read_committed consumer sees the records
          as soon as the commit has returned; Kafka answers before that (docs/decisions/0015). A
          retry of the same end succeeds; the opposite end gets INVALID_TXN_STATE.
Not done  -
KIPs      98 · 588 · 890 transactions of version 2
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V0,
    TRANSACTION_V2,
    ProducerIdAndEpoch,
)
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api, Renamed
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_FENCED_VERSION = 2
FIRST_V2_VERSION = 5


async def handle(context: RequestContext, request: Any) -> Any:
    if not request.transactional_id:
        raise InvalidRequestError("the transactional id is empty")
    is_v2 = context.header.api_version >= FIRST_V2_VERSION
    producer = await context.services.transaction_coordinator.end_transaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_version=TRANSACTION_V2 if is_v2 else TRANSACTION_V0,
    )
    return context.response(
        {
            "error_code": ErrorCode.none,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }
    )


API = Api(
    ApiKey.END_TXN,
    VersionRange(0, 5),
    handle,
    access=Access([Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["transactional_id"])]),
    renamed={
        ErrorCode.producer_fenced: Renamed(FIRST_FENCED_VERSION, ErrorCode.invalid_producer_epoch)
    },
)
