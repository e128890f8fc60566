"""InitProducerId (key 22).

Versions  0-5. 2 flexible · 3 the producer's current id and epoch · 4 PRODUCER_FENCED, which is
          INVALID_PRODUCER_EPOCH before · 5 TRANSACTION_ABORTABLE
Behaviour An idempotent producer (no transactional id) always gets a new id with epoch 0, whatever
          it had before, as in Kafka. A transactional id keeps its producer id and gets a higher
          epoch, which fences the earlier producer. An open transaction of that producer is aborted
          first, and the answer is CONCURRENT_TRANSACTIONS, after which the client retries. The
          first transactional id creates `__transaction_state`.
Not done  Version 6, two-phase commit (KIP-939), which is not stable in Kafka either.
KIPs      98 · 360 epochs on request · 588 · 890
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import Check, on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import refusal_of_request
from isotherm.broker.server.requests.served_api import Access, Api, Renamed
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch

ONE_MS = datetime.timedelta(milliseconds=1)
FIRST_EPOCH: ProducerEpoch = 0
ID_SIZE_MAX = 2**15 - 1
FIRST_EXPECTED_VERSION = 3
FIRST_FENCED_VERSION = 4
NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


async def handle(context: RequestContext, request: Any) -> Any:
    _check_transactional_id(request.transactional_id)
    expected = _expected_producer(context, request)
    services = context.services
    if request.transactional_id is None:
        producer_id = await services.transaction_coordinator.new_producer_id()
        return _response(context, ProducerIdAndEpoch(producer_id, FIRST_EPOCH))
    producer = await services.transaction_coordinator.init_producer_id(
        request.transactional_id, request.transaction_timeout // ONE_MS, expected
    )
    return _response(context, producer)


def _check_transactional_id(transactional_id: str | None) -> None:
    """Raise InvalidRequestError for an empty id, or for one that does not fit into the key of
    its record.
    """
    if transactional_id == "":
        raise InvalidRequestError("the transactional id is empty")
    size = len((transactional_id or "").encode())
    if size > ID_SIZE_MAX:
        raise InvalidRequestError(
            f"a transactional id is too long size={size} size_max={ID_SIZE_MAX}"
        )


def _expected_producer(context: RequestContext, request: Any) -> ProducerIdAndEpoch | None:
    if context.header.api_version < FIRST_EXPECTED_VERSION:
        return None
    expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if expected == NO_PRODUCER:
        return None
    if NO_PRODUCER_ID in expected:
        raise InvalidRequestError(
            f"producer id and epoch are given together or not at all"
            f" producer_id={expected.producer_id} epoch={expected.epoch}"
        )
    return expected


def _response(context: RequestContext, producer: ProducerIdAndEpoch) -> Any:
    return context.response(
        {
            "error_code": ErrorCode.none,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }
    )


_TRANSACTION = Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["transactional_id"])
_PRODUCER = on_cluster(Operation.IDEMPOTENT_WRITE)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """Without a transactional id, WRITE on some topic is enough."""
    if request.transactional_id is None and authorizer.allows_any(
        context, Operation.WRITE, ResourceType.TOPIC
    ):
        return api.handle(context, request)
    check = _PRODUCER if request.transactional_id is None else _TRANSACTION
    code = refusal_of_request(authorizer, context, request, check)
    if code is not None:
        return api.refuse(context, request, code)
    return api.handle(context, request)


API = Api(
    ApiKey.INIT_PRODUCER_ID,
    VersionRange(0, 5),
    handle,
    access=Access([_TRANSACTION, _PRODUCER], guard=_guard),
    fixed={"producer_epoch": NO_PRODUCER_EPOCH},
    renamed={
        ErrorCode.producer_fenced: Renamed(FIRST_FENCED_VERSION, ErrorCode.invalid_producer_epoch)
    },
)
