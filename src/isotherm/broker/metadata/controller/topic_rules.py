"""The rules and records for a new topic. Pure.

Each rule raises the RejectedError with Kafka's error code, and the checks are in Kafka's order.
Source: Kafka Topic.validate, ControllerApis.createTopics, ReplicationControlManager.createTopics,
ConfigurationControlManager.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.broker.metadata.image import TopicImage
from isotherm.broker.metadata.internal_topics import is_internal
from isotherm.broker.metadata.metadata_records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    RejectedError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from isotherm.types import CLUSTER_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPICS, BrokerId

TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_REQUEST_MAX = 10_000  # Kafka: MAX_PARTITIONS_PER_BATCH
USE_DEFAULT = -1

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def no_charge(_partition_count: int) -> None:
    """Charge nothing: there is no quota on partition mutations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic as a client requests it; -1 stands for the broker's default.

    `assignments` has (partition, replicas) for a manual assignment; both numbers must be -1 then.
    """

    name: str
    num_partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[tuple[int, tuple[BrokerId, ...]], ...] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A legal topic: its parts, and the records that create it."""

    topic_id: uuid.UUID
    replicas: tuple[tuple[BrokerId, ...], ...]  # by partition
    config: TopicConfig
    records: tuple[MetadataRecord, ...]


class CreatedTopic(NamedTuple):
    """The answer for one topic of a request: the plan (not carried out with validate_only), or
    the error.
    """

    name: str
    plan: TopicPlan | None
    error: RejectedError | None


class DeletedTopic(NamedTuple):
    """The answer for one topic of a request. `name` or `topic_id` is None if it is unknown."""

    name: str | None
    topic_id: uuid.UUID | None
    error: RejectedError | None


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError for a name that Kafka does not allow."""
    if not name or name in (".", ".."):
        raise InvalidTopicError(f"a topic cannot have this name topic={name!r}")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopicError(
            f"a topic name is too long length={len(name)} length_max={TOPIC_NAME_LENGTH_MAX}"
        )
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidTopicError(
            f"a topic name has characters other than ASCII letters, digits, '.', '_' and '-'"
            f" topic={name!r}"
        )


def collision_key(name: str) -> str:
    """The key under which names collide: metric names do not distinguish '.' from '_'."""
    return name.replace(".", "_")


def check_topic_is_new(name: str, taken: Mapping[str, str]) -> None:
    """Refuse a name that an existing topic has or collides with.

    `taken` maps `collision_key` to name.
    """
    if name == CLUSTER_METADATA_TOPIC:
        raise InvalidRequestError(f"clients cannot create an internal topic topic={name}")
    other = taken.get(collision_key(name))
    if other == name:
        raise TopicAlreadyExistsError(f"topic exists topic={name}")
    if other is not None:
        raise InvalidTopicError(f"topic name collides topic={name} existing={other}")


def topic_config(
    configs: Mapping[str, str | None], broker: BrokerConfig, *, topic: str
) -> TopicConfig:
    """The effective configuration of a topic with these settings.

    Raises ConfigError if they are illegal.
    """
    texts = {}
    for name, value in configs.items():
        if value is None:
            raise ConfigError(f"a topic setting has no value topic={topic} key={name}")
        texts[name] = value
    config = TopicConfig.parse(texts, broker.topic_defaults)
    config.check_remote_rules(remote_system_enabled=broker.remote.remote_log_storage_system_enable)
    return config


def _assigned_replicas(
    topic: NewTopic, brokers: Collection[BrokerId]
) -> tuple[tuple[BrokerId, ...], ...]:
    if topic.replication_factor != USE_DEFAULT or topic.num_partitions != USE_DEFAULT:
        raise InvalidRequestError(
            "with a manual assignment neither replication factor nor number of partitions"
            f" can be given topic={topic.name}"
        )
    assignments = sorted(topic.assignments)
    numbers = [partition for partition, _ in assignments]
    if numbers != list(range(len(numbers))):
        raise InvalidReplicaAssignmentError(
            f"partitions must be numbered from 0 without gaps, each once topic={topic.name}"
            f" partitions={numbers}"
        )
    broker_ids = set(brokers)
    for partition, replicas in assignments:
        if (
            not replicas
            or len(set(replicas)) != len(replicas)
            or not broker_ids.issuperset(replicas)
        ):
            raise InvalidReplicaAssignmentError(
                f"replicas must be distinct brokers that exist topic={topic.name}"
                f" partition={partition} replicas={list(replicas)} brokers={sorted(broker_ids)}"
            )
    return tuple(replicas for _, replicas in assignments)


def _default_replicas(
    topic: NewTopic, broker: BrokerConfig, brokers: Collection[BrokerId]
) -> tuple[tuple[BrokerId, ...], ...]:
    factor, count = topic.replication_factor, topic.num_partitions
    if factor < USE_DEFAULT or factor == 0:
        raise InvalidReplicationFactorError(
            f"the replication factor must be above 0, or -1 topic={topic.name}"
            f" replication_factor={factor}"
        )
    if count < USE_DEFAULT or count == 0:
        raise InvalidPartitionsError(
            f"the number of partitions must be above 0, or -1 topic={topic.name} partitions={count}"
        )
    factor = broker.default_replication_factor if factor == USE_DEFAULT else factor
    count = broker.num_partitions if count == USE_DEFAULT else count
    # The embedded controller has one broker, so there is nothing to spread.
    replicas = tuple(sorted(brokers))
    if factor > len(replicas):
        raise InvalidReplicationFactorError(
            f"there are fewer brokers than replicas topic={topic.name}"
            f" replication_factor={factor} brokers={len(replicas)}"
        )
    return (replicas[:factor],) * count


def requested_partitions(topic: NewTopic, broker: BrokerConfig) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return broker.num_partitions if topic.num_partitions == USE_DEFAULT else topic.num_partitions


def check_request_size(topics: Iterable[NewTopic], broker: BrokerConfig) -> None:
    """Raise PolicyViolationError for more partitions in one request than one batch may have."""
    count = sum(max(0, requested_partitions(topic, broker)) for topic in topics)
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolationError(
            f"too many partitions in one request count={count}"
            f" count_max={PARTITIONS_PER_REQUEST_MAX}"
        )


def check_partition_count(topic: str, count: int, broker: BrokerConfig) -> None:
    """Raise PolicyViolationError if the cluster would have more partitions than it may have.
    Internal topics are created in any case: groups and transactions need them."""
    if count > broker.cluster_partitions_max and not is_internal(topic):
        raise PolicyViolationError(
            f"the cluster would have too many partitions topic={topic} count={count}"
            f" count_max={broker.cluster_partitions_max} key=cluster.partitions.max"
        )


def plan_topic(
    topic: NewTopic,
    topic_id: uuid.UUID,
    *,
    taken: Mapping[str, str],
    brokers: Collection[BrokerId],
    broker: BrokerConfig,
) -> TopicPlan:
    """The plan for one new topic. Raises a RejectedError if a rule forbids it.

    `taken` is as for `check_topic_is_new`. `brokers` are the registered brokers.
    """
    check_topic_name(topic.name)
    check_topic_is_new(topic.name, taken)
    config = topic_config(topic.configs, broker, topic=topic.name)
    if topic.assignments:
        replicas = _assigned_replicas(topic, brokers)
    else:
        replicas = _default_replicas(topic, broker, brokers)
    return TopicPlan(
        topic_id=topic_id,
        replicas=replicas,
        config=config,
        records=(
            TopicRecord(name=topic.name, topic_id=topic_id),
            *config_records(TOPIC_RESOURCE, topic.name, topic.configs),
            *(
                partition_record(topic_id, number, brokers)
                for number, brokers in enumerate(replicas)
            ),
        ),
    )


def config_records(
    resource_type: int, resource: str, configs: Mapping[str, str | None]
) -> list[ConfigRecord]:
    return [
        ConfigRecord(
            resource_type=resource_type, resource_name=resource, name=name, value=configs[name]
        )
        for name in sorted(configs)
    ]


def partition_record(
    topic_id: uuid.UUID, partition: int, replicas: tuple[BrokerId, ...]
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(None,) * len(replicas),
    )


def deletable_topic(
    name_or_id: str | uuid.UUID,
    topic: TopicImage | None,
    counts: Mapping[uuid.UUID, int],
    broker: BrokerConfig,
) -> TopicImage:
    """The topic, if it may be deleted; else raises.

    `counts` has how often the request names each topic.
    """
    if topic is None:
        if isinstance(name_or_id, str):
            raise UnknownTopicOrPartitionError(f"no such topic topic={name_or_id}")
        raise UnknownTopicIdError(f"no topic has this id topic_id={name_or_id}")
    if counts[topic.topic_id] > 1:
        raise InvalidRequestError(f"topic is named twice topic={topic.name}")
    is_tiered = broker.remote.remote_log_storage_system_enable
    if topic.name in REMOTE_LOG_METADATA_TOPICS and is_tiered:
        # Without this topic the broker would no longer know any remote segment.
        raise PolicyViolationError(
            f"the remote tier uses the topic, so it cannot be deleted topic={topic.name}"
        )
    return topic
