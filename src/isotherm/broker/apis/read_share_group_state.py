"""ReadShareGroupState (key 84).

Versions  0
Behaviour The state of share partitions for their leader. A leader epoch that is newer than any
          before it fences the leaders of older ones. -1 fences nobody.
Not done  -
KIPs      932
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import (
    ACCESS,
    ITEMS,
    PartitionAnswer,
    answer_partitions,
)
from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

_FAILED = {"state_epoch": 0, "start_offset": 0, "state_batches": ()}


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.share_coordinator

    def read(key: SharePartitionKey, entry: Any) -> PartitionAnswer:
        shard, state = coordinator.read(key, entry.leader_epoch)
        fields = {
            "state_epoch": state.state_epoch,
            "start_offset": state.start_offset,
            "state_batches": [batch.fields() for batch in state.batches],
        }
        return PartitionAnswer(shard, fields)

    return await answer_partitions(context, request, read, _FAILED)


API = Api(ApiKey.READ_SHARE_GROUP_STATE, VersionRange(0, 0), handle, access=ACCESS, items=ITEMS)
