"""The brokers, leaders and offline replicas that responses name, as far as the client's listener
reaches them.

With the embedded controller this broker is the cluster, and it knows its own offline directories. A
member uses the metadata. Source: Kafka KRaftMetadataCache.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.directory_ids import LOST, is_directory
from isotherm.broker.metadata.image import NO_LEADER, BrokerImage, PartitionImage
from isotherm.broker.server.requests.context import RequestContext
from isotherm.types import BrokerId


class ListedBroker(NamedTuple):
    """A broker with its endpoint on the request's listener."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


class PartitionPlaces(NamedTuple):
    """`leader` is NO_LEADER if the client cannot reach a leader; `error` has the reason."""

    leader: BrokerId
    offline_replicas: tuple[BrokerId, ...]
    error: ErrorCode = ErrorCode.none


def listed_brokers(context: RequestContext, *, with_fenced: bool = False) -> list[ListedBroker]:
    """The unfenced brokers with an endpoint on the request's listener; all registered ones
    `with_fenced`.
    """
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
    """The broker to which clients send requests for the controller; -1 if no broker is unfenced.

    In a cluster every broker forwards such requests, so this broker names itself unless it is
    fenced.
    """
    services = context.services
    node_id = services.config.node_id
    if services.embedded_controller is not None:
        return node_id
    alive = {
        broker.broker_id for broker in services.metadata.image.brokers.values() if not broker.fenced
    }
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
    # A broker that registered without directories has one directory, which is online while the
    # broker is.
    return bool(broker.log_dirs) and directory not in broker.log_dirs
