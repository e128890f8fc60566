"""ReadShareGroupStateSummary (key 87).

Versions  0-1. 1 the number of records whose delivery is complete
Behaviour The start offset and epochs of share partitions, for descriptions of groups. A partition
          without a state has start offset -1. No epoch is checked, and nobody is fenced.
Not done  -
KIPs      932 · 1226 lag
"""

from __future__ import annotations

from typing import Any

from isotherm.broker.apis.share_state_answers import (
    ACCESS,
    ITEMS,
    PartitionAnswer,
    answer_partitions,
)
from isotherm.broker.coordinators.shares.share_state_records import UNKNOWN_COUNT, SharePartitionKey
from isotherm.broker.coordinators.shares.state_batches import NO_START_OFFSET
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

_FAILED = {
    "state_epoch": 0,
    "leader_epoch": 0,
    "start_offset": 0,
    "delivery_complete_count": UNKNOWN_COUNT,
}
_NO_STATE = {**_FAILED, "start_offset": NO_START_OFFSET}


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.share_coordinator

    def read_summary(key: SharePartitionKey, entry: Any) -> PartitionAnswer:
        shard, state = coordinator.read_summary(key)
        if state is None:
            return PartitionAnswer(shard, _NO_STATE)
        fields = {name: getattr(state, name) for name in _FAILED}
        return PartitionAnswer(shard, fields)

    return await answer_partitions(context, request, read_summary, _FAILED)


API = Api(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, VersionRange(0, 1), handle, access=ACCESS, items=ITEMS
)
