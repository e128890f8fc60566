"""The rules and records for more partitions of an existing topic. Pure.

Source: Kafka ReplicationControlManager.createPartitions, with the same order of checks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from isotherm.broker.metadata.controller.topic_rules import (
    PARTITIONS_PER_REQUEST_MAX,
    partition_record,
)
from isotherm.broker.metadata.image import TopicImage
from isotherm.broker.metadata.internal_topics import INTERNAL_TOPICS
from isotherm.broker.metadata.metadata_records import PartitionRecord
from isotherm.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, BrokerId

# The partition of a key is its hash modulo the number of partitions. With another number, stored
# state would be looked for in the wrong partition.
TOPICS_OF_FIXED_SIZE = frozenset({*REMOTE_LOG_METADATA_TOPICS, *INTERNAL_TOPICS})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """A request for `total_count` partitions.

    `assignments` has the replicas of the added partitions.
    """

    topic: str
    total_count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


def plan_growth(
    growth: NewPartitions, topic: TopicImage | None, brokers: Collection[BrokerId]
) -> list[PartitionRecord]:
    """The records that add the partitions. Raises a RejectedError if a rule forbids them."""
    if topic is None:
        raise UnknownTopicOrPartitionError(f"no such topic topic={growth.topic}")
    count = len(topic.partitions)
    if growth.total_count <= count:
        raise InvalidPartitionsError(
            f"the number of partitions can only be increased topic={topic.name} partitions={count}"
            f" requested={growth.total_count}"
        )
    if topic.name in TOPICS_OF_FIXED_SIZE:
        raise PolicyViolationError(
            f"the number of partitions of this topic is fixed topic={topic.name}"
        )
    added = growth.total_count - count
    if added > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolationError(
            f"too many partitions in one request topic={topic.name} added={added}"
            f" added_max={PARTITIONS_PER_REQUEST_MAX}"
        )
    replication_factor = len(topic.partitions[0].replicas)
    if growth.assignments is None:
        replicas = [tuple(sorted(brokers))[:replication_factor]] * added
    else:
        replicas = list(growth.assignments)
        _check_assignments(growth, replicas, added, replication_factor, brokers)
    return [
        partition_record(topic.topic_id, count + number, brokers)
        for number, brokers in enumerate(replicas)
    ]


def _check_assignments(
    growth: NewPartitions,
    replicas: list[tuple[BrokerId, ...]],
    added: int,
    replication_factor: int,
    brokers: Collection[BrokerId],
) -> None:
    if len(replicas) != added:
        raise InvalidReplicaAssignmentError(
            f"there must be one assignment per added partition topic={growth.topic}"
            f" added={added} assignments={len(replicas)}"
        )
    for replica in replicas:
        is_legal = len(set(replica)) == len(replica) == replication_factor and set(brokers) >= set(
            replica
        )
        if not is_legal:
            raise InvalidReplicaAssignmentError(
                f"replicas must be distinct brokers that exist, as many as the topic has"
                f" topic={growth.topic} replicas={list(replica)} brokers={sorted(brokers)}"
                f" replication_factor={replication_factor}"
            )
