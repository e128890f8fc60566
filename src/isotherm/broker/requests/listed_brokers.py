"""The brokers, leaders and offline replicas in answers to a client: those that its listener
reaches.

Alone, this broker is the cluster, and knows which of its directories are offline. A member tells what
the metadata says. Source: Kafka KRaftMetadataCache.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.directory_ids import LOST, is_directory
from isotherm.broker.metadata.image import NO_LEADER, BrokerImage, PartitionImage
from isotherm.broker.requests.context import RequestContext
from isotherm.types import BrokerId


class ListedBroker(NamedTuple):
    """A broker, at the address of the request's listener."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


class PartitionPlaces(NamedTuple):
    """`leader` is NO_LEADER if the client cannot reach one; `error` says why."""

    leader: BrokerId
    offline_replicas: tuple[BrokerId, ...]
    error: ErrorCode = ErrorCode.none


def listed_brokers(context: RequestContext, *, with_fenced: bool = False) -> list[ListedBroker]:
    """The brokers that serve, `with_fenced` all that are registered; none without the listener."""
    services = context.services
    if services.embedded_controller is not None:
        own, config = services.endpoint(context.listener_name), services.config
        if own is None:
            return []
        return [ListedBroker(config.node_id, own.host, own.port, config.broker_rack)]
    listed = []
    for broker in services.metadata.image.brokers.values():
        endpoint = broker.endpoint(context.listener_name)
        if endpoint is not None and (with_fenced or not broker.fenced):
            listed.append(
                ListedBroker(
                    broker.broker_id, endpoint.host, endpoint.port, broker.rack, broker.fenced
                )
            )
    return listed


def controller_id(context: RequestContext) -> BrokerId:
    """The broker that clients send requests for the controller to. In a cluster any broker passes them
    on, so this one does, while it serves; -1 if none does."""
    services = context.services
    node_id = services.config.node_id
    if services.embedded_controller is not None:
        return node_id
    alive = {each.broker_id for each in services.metadata.image.brokers.values() if not each.fenced}
    return node_id if node_id in alive else min(alive, default=NO_LEADER)


def partition_places(
    context: RequestContext, topic: str, partition: PartitionImage
) -> PartitionPlaces:
    services = context.services
    if services.embedded_controller is not None:
        if services.endpoint(context.listener_name) is None:
            return PartitionPlaces(NO_LEADER, partition.replicas, ErrorCode.listener_not_found)
        if services.replica_manager.is_offline(topic, partition.partition):
            return PartitionPlaces(NO_LEADER, partition.replicas, ErrorCode.leader_not_available)
        return PartitionPlaces(partition.leader, ())
    brokers = services.metadata.image.brokers
    offline = tuple(
        replica
        for replica in partition.replicas
        if _is_offline(brokers.get(replica), partition.directory(replica), context.listener_name)
    )
    leader = brokers.get(partition.leader)
    if leader is None:
        return PartitionPlaces(NO_LEADER, offline, ErrorCode.leader_not_available)
    if leader.endpoint(context.listener_name) is None:
        return PartitionPlaces(NO_LEADER, offline, ErrorCode.listener_not_found)
    return PartitionPlaces(partition.leader, offline)


def _is_offline(
    broker: BrokerImage | None, directory: uuid.UUID | None, listener_name: str
) -> bool:
    if broker is None or broker.fenced or broker.endpoint(listener_name) is None:
        return True
    if directory is None or not is_directory(directory):
        return directory == LOST
    # A broker that registered without directories has one.
    return bool(broker.log_dirs) and directory not in broker.log_dirs
