"""InitializeShareGroupState (key 83).

Versions  0
Behaviour Begins the state of share partitions, or begins it anew under a higher state epoch. Sent
          by group coordinators. With the embedded controller it creates `__share_group_state`.
Not done  -
KIPs      932
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import (
    ACCESS,
    ITEMS,
    answer_partitions,
    names_nothing,
)
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.state_requests import InitializeState
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    if context.services.embedded_controller is not None and not names_nothing(request):
        await context.services.share_coordinator.ensure_topic()
    return await answer_partitions(context, request, InitializeState)


API = Api(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE, VersionRange(0, 0), handle, access=ACCESS, items=ITEMS
)
