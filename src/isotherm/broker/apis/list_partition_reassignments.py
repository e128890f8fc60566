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

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, _request: Any) -> Any:
    return context.response({"error_code": ErrorCode.none, "error_message": None, "topics": ()})


API = Api(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    VersionRange(0, 0),
    handle,
    access=Access([on_cluster(Operation.DESCRIBE, covers=["topics/name"], shows=["topics/name"])]),
    is_forwardable=True,
)
