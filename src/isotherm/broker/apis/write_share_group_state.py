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

from isotherm.broker.apis.share_state_answers import (
    ACCESS,
    ITEMS,
    PartitionAnswer,
    answer_partitions,
)
from isotherm.broker.coordinators.shares.share_state import StateWrite
from isotherm.broker.coordinators.shares.share_state_records import (
    UNKNOWN_COUNT,
    SharePartitionKey,
)
from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_COUNT_VERSION = 1


async def handle(context: RequestContext, request: Any) -> Any:
    coordinator = context.services.share_coordinator
    has_count = context.header.api_version >= FIRST_COUNT_VERSION

    def write(key: SharePartitionKey, entry: Any) -> PartitionAnswer:
        written = StateWrite(
            entry.state_epoch,
            entry.leader_epoch,
            entry.start_offset,
            entry.delivery_complete_count if has_count else UNKNOWN_COUNT,
            tuple(map(StateBatch.of, entry.state_batches)),
        )
        return PartitionAnswer(coordinator.write(key, written), {})

    return await answer_partitions(context, request, write, {})


API = Api(ApiKey.WRITE_SHARE_GROUP_STATE, VersionRange(0, 1), handle, access=ACCESS, items=ITEMS)
