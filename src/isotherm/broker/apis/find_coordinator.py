"""FindCoordinator (key 10).

Versions  0-6. 1 key type, throttle time · 3 flexible · 4 many keys in one request, an answer for
          each · 5 and 6 new key types.
Behaviour This broker is the coordinator of every group and every transactional id. Serving the API
          matters beyond that: librdkafka turns lz4 off when it is missing.
          An unknown key type, and share groups (2), get INVALID_REQUEST.
Not done  Share groups (KIP-932).
KIPs      98 · 699 batched keys
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.refusals import Items
from isotherm.broker.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_KEY_TYPE_VERSION = 1
FIRST_BATCHED_VERSION = 4
GROUP, TRANSACTION = 0, 1


def handle(context: RequestContext, request: Any) -> Any:
    has_key_type = context.header.api_version >= FIRST_KEY_TYPE_VERSION
    key_type = request.key_type if has_key_type else GROUP
    if key_type not in (GROUP, TRANSACTION):
        message = f"no such type of coordinator key_type={key_type}"
        return API.refuse(context, request, ErrorCode.invalid_request, message)
    endpoint = context.services.endpoint(context.listener_name)
    if endpoint is None:
        return API.refuse(context, request, ErrorCode.coordinator_not_available)
    answer = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": context.services.config.node_id,
        "host": endpoint.host,
        "port": endpoint.port,
    }
    if context.header.api_version < FIRST_BATCHED_VERSION:
        return context.response(answer)
    coordinators = [{"key": key, **answer} for key in request.coordinator_keys]
    return context.response({"coordinators": coordinators})


API = Api(
    ApiKey.FIND_COORDINATOR,
    VersionRange(0, 6),
    handle,
    items=(Items(("coordinator_keys",), ("coordinators",), named="key"),),
    fixed={"node_id": -1, "port": -1},
)
