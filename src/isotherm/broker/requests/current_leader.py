"""Names the leader of a partition to a client that asked another broker, or with an old epoch (KIP-951).

Source: Kafka KafkaApis.getCurrentLeader.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.requests.context import RequestContext
from isotherm.errors import IsothermError
from isotherm.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint
from isotherm.types import NO_LEADER_EPOCH

LEADER_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


class CurrentLeader(NamedTuple):
    """`endpoint` is where the client's listener is at the leader; None if it cannot be reached."""

    leader: LeaderIdAndEpoch
    endpoint: NodeEndpoint | None


def current_leader(
    context: RequestContext, name: str | None, topic_id: uuid.UUID | None, index: int
) -> CurrentLeader:
    """The partition's own view, which may be newer than the image; the image's if it has no replica
    here."""
    leader = _leader(context, name, topic_id, index)
    broker = context.services.metadata.image.brokers.get(leader.leader_id)
    endpoint = broker.endpoint(context.listener_name) if broker and not broker.fenced else None
    if broker is None or endpoint is None:
        return CurrentLeader(leader, None)
    node = NodeEndpoint(leader.leader_id, endpoint.host, endpoint.port, broker.rack)
    return CurrentLeader(leader, node)


def _leader(
    context: RequestContext, name: str | None, topic_id: uuid.UUID | None, index: int
) -> LeaderIdAndEpoch:
    services = context.services
    try:
        partition = services.replica_manager.find_partition(name, topic_id, index)
    except IsothermError:
        asked = name if name is not None else topic_id
        topic = None if asked is None else services.metadata.image.topic(asked)
        if topic is None or not 0 <= index < len(topic.partitions):
            return LeaderIdAndEpoch(NO_LEADER, NO_LEADER_EPOCH)
        image = topic.partitions[index]
        return LeaderIdAndEpoch(image.leader, image.leader_epoch)
    return LeaderIdAndEpoch(partition.leader, partition.leader_epoch)
