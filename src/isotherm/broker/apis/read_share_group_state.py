"""ReadShareGroupState (key 84).

Versions  0
Behaviour The state of share partitions for their leader. A leader epoch that is newer than any
          before it fences the leaders of older ones. -1 fences nobody.
Not done  -
KIPs      932
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import ACCESS, ITEMS, answer_partitions
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.state_requests import ReadByLeader
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    return await answer_partitions(context, request, ReadByLeader)


API = Api(ApiKey.READ_SHARE_GROUP_STATE, VersionRange(0, 0), handle, access=ACCESS, items=ITEMS)
