"""ReadShareGroupStateSummary (key 87).

Versions  0-1. 1 the number of records whose delivery is complete
Behaviour The start offset and epochs of share partitions, for descriptions of groups. A partition
          without a state has start offset -1. No epoch is checked, and nobody is fenced.
Not done  -
KIPs      932 · 1226 lag
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import ACCESS, ITEMS, answer_partitions
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.state_requests import ReadSummary
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    return await answer_partitions(context, request, ReadSummary)


API = Api(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, VersionRange(0, 1), handle, access=ACCESS, items=ITEMS
)
