"""ListPartitionReassignments (key 46).

Versions  0
Behaviour The list is always empty: with the embedded controller each partition has its one replica
          here.
Not done  -
KIPs      455
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, _request: Any) -> Any:
    return context.response({"error_code": ErrorCode.none, "error_message": None, "topics": ()})


API = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, VersionRange(0, 0), handle, is_forwardable=True)
