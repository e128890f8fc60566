"""AddOffsetsToTxn (key 25).

Versions  0-4. 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before · 3 flexible · 4
          TRANSACTION_ABORTABLE
Behaviour Adds the partition of `__consumer_offsets` with the group's offsets to the transaction.
          Creates the topic if it does not exist.
Not done  -
KIPs      98 · 588
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC
from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V0,
    ProducerIdAndEpoch,
)
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, on_group
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api, Renamed
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import TopicPartition

FIRST_FENCED_VERSION = 2


async def handle(context: RequestContext, request: Any) -> Any:
    if not request.transactional_id:
        raise InvalidRequestError("the transactional id is empty")
    groups = context.services.group_coordinator
    await groups.ensure_topic()
    coordinator = context.services.transaction_coordinator
    coordinator.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [TopicPartition(OFFSETS_TOPIC, groups.offsets_partition(request.group_id))],
        client_version=TRANSACTION_V0,
    )
    if (waiting := coordinator.uncommitted(request.transactional_id)) is not None:
        await waiting
    return context.response({"error_code": ErrorCode.none})


API = Api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    VersionRange(0, 4),
    handle,
    access=Access(
        [
            Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["transactional_id"]),
            on_group(Operation.READ),
        ]
    ),
    renamed={
        ErrorCode.producer_fenced: Renamed(FIRST_FENCED_VERSION, ErrorCode.invalid_producer_epoch)
    },
)
