"""WriteShareGroupState (key 85).

Versions  0-1. 1 the number of records whose delivery is complete
Behaviour Changes the state of share partitions; sent by their leaders. An older leader epoch or
          state epoch than the coordinator's is fenced; -1 is not checked. A start offset of -1
          leaves the present one.
Not done  -
KIPs      932 · 1226 lag
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import ACCESS, ITEMS, answer_partitions
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.state_requests import WriteState
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    return await answer_partitions(context, request, WriteState)


API = Api(ApiKey.WRITE_SHARE_GROUP_STATE, VersionRange(0, 1), handle, access=ACCESS, items=ITEMS)
