"""Finds the current leader for a client that used another broker or an old leader epoch (KIP-951).

Source: Kafka KafkaApis.getCurrentLeader.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.server.requests.context import RequestContext
from isotherm.errors import IsothermError
from isotherm.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint
from isotherm.types import NO_LEADER_EPOCH

LEADER_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


class CurrentLeader(NamedTuple):
    """`endpoint` is the leader's endpoint on the client's listener;

    None if the client cannot reach the leader.
    """

    leader: LeaderIdAndEpoch
    endpoint: NodeEndpoint | None


def current_leader(
    context: RequestContext, name: str | None, topic_id: uuid.UUID | None, index: int
) -> CurrentLeader:
    """The current leader of a partition.

    The state of this broker's replica counts, because it may be newer than the metadata image.
    Without a replica here the image counts.
    """
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
        name_or_id = name if name is not None else topic_id
        topic = None if name_or_id is None else services.metadata.image.topic(name_or_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return LeaderIdAndEpoch(NO_LEADER, NO_LEADER_EPOCH)
        image = topic.partitions[index]
        return LeaderIdAndEpoch(image.leader, image.leader_epoch)
    return LeaderIdAndEpoch(partition.leader, partition.leader_epoch)
