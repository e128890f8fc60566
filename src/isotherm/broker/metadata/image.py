"""An immutable image of the cluster's metadata at one offset of its log, as Kafka's MetadataImage.

`MetadataDelta` makes the next image from this one and the following records.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.broker.metadata.client_quotas import ClientQuotas
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.metadata_records import (
    AccessControlEntryRecord,
    BrokerFeature,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)
from isotherm.types import BrokerId, LeaderEpoch, Offset, ProducerId

NO_LEADER: BrokerId = -1


class LeaderRecoveryState(enum.IntEnum):
    """RECOVERING after an unclean election, until the leader reports that it has recovered."""

    RECOVERED = 0
    RECOVERING = 1


class PartitionImage(NamedTuple):
    """A partition. `isr` may be empty if the leader is NO_LEADER; then `elr` has the replicas that
    can be elected without data loss (KIP-966). `directories` correspond to `replicas`, in order
    (see `directory_ids`)."""

    partition: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    removing_replicas: tuple[BrokerId, ...] = ()
    adding_replicas: tuple[BrokerId, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    directories: tuple[uuid.UUID, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()

    def directory(self, replica: BrokerId) -> uuid.UUID | None:
        """The directory id of a replica's log.

        None if the broker has no replica of this partition.
        """
        if replica not in self.replicas or not self.directories:
            return None
        return self.directories[self.replicas.index(replica)]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic. `partitions` are in order of their numbers, which start at 0 and have no gaps."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionImage, ...]


class BrokerImage(NamedTuple):
    """A registered broker. `log_dirs` are the ids of its online directories."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: uuid.UUID | None
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool = False
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    log_dirs: tuple[uuid.UUID, ...] = ()
    cordoned_log_dirs: tuple[uuid.UUID, ...] | None = None

    def endpoint(self, listener_name: str) -> Endpoint | None:
        return next(
            (endpoint for endpoint in self.endpoints if endpoint.listener_name == listener_name),
            None,
        )


class ControllerImage(NamedTuple):
    controller_id: int
    incarnation_id: uuid.UUID | None
    endpoints: tuple[Endpoint, ...]
    features: tuple[BrokerFeature, ...]


class ScramUser(NamedTuple):
    """The key of a SCRAM credential. `mechanism` is 1 for SCRAM-SHA-256 and 2 for SCRAM-SHA-512."""

    mechanism: int
    name: str


class ConfigResource(NamedTuple):
    """The key of a configuration.

    `resource_type` has ConfigRecord's numbers (2 topic, 4 broker).
    """

    resource_type: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The metadata up to `end_offset`, which is the offset after the last applied record.

    Delegation tokens are kept so that snapshots retain them, but no request uses them.
    """

    end_offset: Offset = 0
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    next_producer_id: ProducerId = 0
    client_quotas: ClientQuotas = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    acls: Mapping[uuid.UUID, AccessControlEntryRecord] = field(default_factory=dict)
    scram_credentials: Mapping[ScramUser, UserScramCredentialRecord] = field(default_factory=dict)
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=dict)

    def topic(self, name_or_id: str | uuid.UUID) -> TopicImage | None:
        if isinstance(name_or_id, str):
            return self.topics_by_name.get(name_or_id)
        return self.topics_by_id.get(name_or_id)
