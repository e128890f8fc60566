"""InitProducerId (key 22).

Versions  0-5. 2 flexible · 3 the producer's present id and epoch · 4 and 5 new error codes.
Behaviour An idempotent producer (no transactional id) always gets a new id with epoch 0, whatever
          it had before, as in Kafka. A transactional id is refused with
          TRANSACTIONAL_ID_AUTHORIZATION_FAILED, since there are no transactions: it is the one
          code on which every client gives up at once and tells the application. On
          UNSUPPORTED_VERSION librdkafka retries until init_transactions times out.
Not done  Transactions.
KIPs      98 · 360 ids of idempotent producers · 588 · 890
"""

from __future__ import annotations

import datetime
import logging
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of
from isotherm.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId

logger = logging.getLogger(__name__)

NO_THROTTLE = datetime.timedelta()
FIRST_EPOCH: ProducerEpoch = 0


async def handle(context: RequestContext, request: Any) -> Any:
    if request.transactional_id == "":
        return error_response(context, request, ErrorCode.invalid_request)
    if request.transactional_id is not None:
        logger.warning(
            "transactions are not served transactional_id=%s client_id=%s",
            request.transactional_id,
            context.header.client_id,
        )
        return error_response(context, request, ErrorCode.transactional_id_authorization_failed)
    producer_id = await context.services.run_control(
        context.services.controller.generate_producer_id
    )
    return _response(context, ErrorCode.none, producer_id, FIRST_EPOCH)


def _response(
    context: RequestContext, error_code: ErrorCode, producer_id: ProducerId, epoch: ProducerEpoch
) -> Any:
    return entity_of(
        response_class(ApiKey.INIT_PRODUCER_ID, context.header.api_version),
        {
            "throttle_time": NO_THROTTLE,
            "error_code": error_code,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        },
    )


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return _response(context, error_code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
