"""DeleteShareGroupState (key 86).

Versions  0
Behaviour Forgets the state of share partitions; no error if there is none. Sent by group
          coordinators.
Not done  -
KIPs      932
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import ACCESS, ITEMS, answer_partitions
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.state_requests import DeleteState
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    return await answer_partitions(context, request, DeleteState)


API = Api(ApiKey.DELETE_SHARE_GROUP_STATE, VersionRange(0, 0), handle, access=ACCESS, items=ITEMS)
