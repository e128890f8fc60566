"""UnregisterBroker (key 64).

Versions  0
Behaviour BROKER_ID_NOT_REGISTERED for every other broker, as in Kafka. This one stays what it is: it
          is the cluster's controller too.
Not done  -
KIPs      631
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()


def handle(context: RequestContext, request: Any) -> Any:
    asked, own = request.broker_id, context.services.config.node_id
    if asked == own:
        message = f"the only broker is the controller and stays registered broker_id={own}"
        return _response(context, ErrorCode.invalid_request, message)
    message = f"Broker ID {asked} is not currently registered"
    return _response(context, ErrorCode.broker_id_not_registered, message)


def _response(context: RequestContext, error_code: ErrorCode, message: str | None) -> Any:
    return entity_of(
        response_class(ApiKey.UNREGISTER_BROKER, context.header.api_version),
        {"throttle_time": NO_THROTTLE, "error_code": error_code, "error_message": message},
    )


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return _response(context, error_code, None)
