"""UnregisterBroker (key 64).

Versions  0
Behaviour Every other broker gets BROKER_ID_NOT_REGISTERED, as in Kafka. This broker cannot be
          unregistered, since it is also the cluster's controller.
Not done  -
KIPs      631
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    broker_id, own = request.broker_id, context.services.config.node_id
    if broker_id == own:
        message = f"the only broker is the controller and stays registered broker_id={own}"
        return _response(context, ErrorCode.invalid_request, message)
    message = f"Broker ID {broker_id} is not currently registered"
    return _response(context, ErrorCode.broker_id_not_registered, message)


def _response(context: RequestContext, error_code: ErrorCode, message: str | None) -> Any:
    return context.response({"error_code": error_code, "error_message": message})


API = Api(
    ApiKey.UNREGISTER_BROKER,
    VersionRange(0, 0),
    handle,
    access=Access([on_cluster(Operation.ALTER, covers=["broker_id"])]),
    is_forwardable=True,
)
