"""Which tiered partitions were in the topic removals at the end of the metadata log. A crash may
have left their remote data."""

from __future__ import annotations

import uuid

from isotherm.broker.metadata.controller.topic_removals import TopicRemovals
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from isotherm.types import TopicIdPartition

TIERED, LOCAL = uuid.UUID(int=1), uuid.UUID(int=2)


def partition(topic_id: uuid.UUID, number: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(),
    )


TOPICS: list[MetadataRecord] = [
    TopicRecord(name="tiered", topic_id=TIERED),
    partition(TIERED, 0),
    partition(TIERED, 1),
    ConfigRecord(
        resource_type=TOPIC_RESOURCE,
        resource_name="tiered",
        name="remote.storage.enable",
        value="true",
    ),
    TopicRecord(name="local", topic_id=LOCAL),
    partition(LOCAL, 0),
]
REMOVALS: list[MetadataRecord] = [
    RemoveTopicRecord(topic_id=TIERED),
    RemoveTopicRecord(topic_id=LOCAL),
]
START = RegisterBrokerRecord(
    broker_id=1, incarnation_id=uuid.UUID(int=9), broker_epoch=0, end_points=(), features=()
)


def removed_last(*records: MetadataRecord) -> tuple[TopicIdPartition, ...]:
    removals, delta = TopicRemovals(), MetadataDelta(MetadataImage())
    for record in records:
        removals.note(record, delta)
        delta.replay(record)
    return removals.partitions


def test_tiered_partitions_of_the_topic_removals_are_known() -> None:
    expected = tuple(TopicIdPartition(TIERED, "tiered", number) for number in (0, 1))
    assert removed_last(*TOPICS, *REMOVALS) == expected
    assert removed_last(*TOPICS, *REMOVALS, START) == expected


def test_removals_that_something_followed_have_been_dealt_with() -> None:
    another = TopicRecord(name="another", topic_id=uuid.UUID(int=3))
    assert removed_last(*TOPICS, *REMOVALS, another) == ()
    assert removed_last(*TOPICS) == ()
