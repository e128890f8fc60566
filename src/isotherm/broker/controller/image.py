"""The cluster's metadata at one offset of its log, as Kafka's MetadataImage. Never changed.

`MetadataDelta` makes the next image from this one and the records that follow it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.broker.controller.client_quotas import ClientQuotas
from isotherm.types import BrokerId, LeaderEpoch, Offset, ProducerId


class PartitionImage(NamedTuple):
    partition: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    """`partitions` by number, from 0 without gaps."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionImage, ...]


class BrokerImage(NamedTuple):
    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: uuid.UUID | None
    rack: str | None
    fenced: bool


class ConfigResource(NamedTuple):
    """Whose configuration: `resource_type` as in ConfigRecord (2 topic, 4 broker)."""

    resource_type: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """`end_offset` is the offset after the last record that is in the image."""

    end_offset: Offset = 0
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    next_producer_id: ProducerId = 0
    client_quotas: ClientQuotas = field(default_factory=dict)

    def topic(self, name_or_id: str | uuid.UUID) -> TopicImage | None:
        if isinstance(name_or_id, str):
            return self.topics_by_name.get(name_or_id)
        return self.topics_by_id.get(name_or_id)
