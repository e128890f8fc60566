"""TxnOffsetCommit (key 28).

Versions  0-5. 2 leader epoch; COORDINATOR_LOAD_IN_PROGRESS, which is COORDINATOR_NOT_AVAILABLE
          before, since Java's clients of before 2.0 end on it (KAFKA-7296) · 3 flexible; the
          consumer's member and generation · 4 TRANSACTION_ABORTABLE · 5 this request adds the
          group's partition of `__consumer_offsets` to the transaction
Behaviour The offsets become visible when the transaction commits. A partition that does not exist
          gets UNKNOWN_TOPIC_OR_PARTITION. Before version 5 the client must have added the group's
          partition to the transaction.
Not done  -
KIPs      98 · 320 · 447 fencing by the consumer group · 890
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.offset_codes import topic_codes
from isotherm.broker.apis.transaction_admission import ClientAbility, admit_records
from isotherm.broker.coordinators.groups.offset_coordinator import Committer
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC, Producer
from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, on_group, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Renamed
from isotherm.errors import ConcurrentTransactionsError, CoordinatorNotAvailableError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import NO_LEADER_EPOCH, TopicPartition

FIRST_LEADER_EPOCH_VERSION = 2
FIRST_LOADING_VERSION = 2
FIRST_MEMBER_VERSION = 3
FIRST_ABORTABLE_VERSION = 4
FIRST_ADDING_VERSION = 5


async def handle(context: RequestContext, request: Any) -> Any:
    groups = context.services.group_coordinator
    await groups.ensure_topic()
    offsets = _known_offsets(context, request)
    if not offsets:
        return API.refuse(context, request, ErrorCode.unknown_topic_or_partition)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    await _admit(context, request, producer)
    committer = Committer()
    if context.header.api_version >= FIRST_MEMBER_VERSION:
        committer = Committer(request.generation_id, request.member_id, request.group_instance_id)
    codes = groups.commit_transactional_offsets(
        request.group_id, Producer(*producer), committer, offsets
    )
    if (waiting := groups.uncommitted(request.group_id)) is not None:
        await waiting
    topics = topic_codes(request.topics, codes)
    return context.response({"topics": topics})


async def _admit(context: RequestContext, request: Any, producer: ProducerIdAndEpoch) -> None:
    version = context.header.api_version
    ability = ClientAbility.NEITHER
    if version >= FIRST_ADDING_VERSION:
        ability = ClientAbility.ADDS_BY_WRITING
    elif version >= FIRST_ABORTABLE_VERSION:
        ability = ClientAbility.KNOWS_ABORTABLE_ERROR
    index = context.services.group_coordinator.offsets_partition(request.group_id)
    # Checked before the transaction coordinator is asked: this broker may not coordinate the group.
    context.services.group_coordinator.check_active(index)
    try:
        pending = admit_records(
            context.services,
            request.transactional_id,
            producer,
            TopicPartition(OFFSETS_TOPIC, index),
            ability,
        )
        if pending is not None:
            pending.settle(await pending.wait())
    except ConcurrentTransactionsError as error:
        # Clients do not expect CONCURRENT_TRANSACTIONS here, but retry on
        # COORDINATOR_NOT_AVAILABLE.
        raise CoordinatorNotAvailableError(str(error)) from error


def _known_offsets(
    context: RequestContext, request: Any
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The request's offsets, without those of partitions that do not exist."""
    topics = context.services.metadata.image.topics_by_name
    has_epoch = context.header.api_version >= FIRST_LEADER_EPOCH_VERSION
    offsets = {}
    for asked_topic in request.topics:
        topic = topics.get(asked_topic.name)
        for entry in asked_topic.partitions:
            if topic is not None and 0 <= entry.partition_index < len(topic.partitions):
                offsets[TopicPartition(topic.name, entry.partition_index)] = OffsetAndMetadata(
                    entry.committed_offset,
                    entry.committed_leader_epoch if has_epoch else NO_LEADER_EPOCH,
                    entry.committed_metadata or "",
                    topic_id=topic.topic_id,
                )
    return offsets


API = Api(
    ApiKey.TXN_OFFSET_COMMIT,
    VersionRange(0, 5),
    handle,
    access=Access(
        [
            Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["transactional_id"]),
            on_group(Operation.READ),
            on_topics(Operation.READ, ["topics/name"]),
        ]
    ),
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    renamed={
        ErrorCode.coordinator_load_in_progress: Renamed(
            FIRST_LOADING_VERSION, ErrorCode.coordinator_not_available
        )
    },
)
