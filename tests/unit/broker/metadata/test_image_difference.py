"""The difference of two metadata images names exactly what changed between them."""

from __future__ import annotations

import uuid

import pytest

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.image_difference import change_between, is_empty
from isotherm.broker.metadata.metadata_records import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerRegistrationChangeRecord,
    ClientQuotaEntity,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

IDS = {name: uuid.UUID(int=number << 64) for number, name in enumerate("abc", start=1)}


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=IDS[name])


def partition(name: str, number: int = 0) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=IDS[name],
        replicas=(1, 2),
        isr=(1, 2),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(),
    )


def config(name: str, value: str | None = "1", resource_type: int = TOPIC_RESOURCE) -> ConfigRecord:
    return ConfigRecord(
        resource_type=resource_type, resource_name=name, name="segment.bytes", value=value
    )


def moved(name: str) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=IDS[name], isr=(1,))


def replayed(image: MetadataImage, *records: MetadataRecord) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.end_offset + len(records))


BASE_RECORDS = (
    topic("a"),
    partition("a"),
    topic("b"),
    partition("b"),
    config("b"),
    RegisterBrokerRecord(broker_id=1, incarnation_id=None, broker_epoch=3),
    FeatureLevelRecord(name="f", feature_level=1),
)
BASE = replayed(MetadataImage(), *BASE_RECORDS)
OTHER_A = uuid.UUID(int=9 << 64)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([NoOpRecord()], {}, id="nothing"),
        pytest.param([topic("c"), partition("c"), config("c")], {"created": ["c"]}, id="created"),
        pytest.param([RemoveTopicRecord(topic_id=IDS["b"])], {"deleted": ["b"]}, id="deleted"),
        pytest.param(
            [
                RemoveTopicRecord(topic_id=IDS["b"]),
                TopicRecord(name="b", topic_id=OTHER_A),
                config("b", "2"),
            ],
            {"created": ["b"], "deleted": ["b"]},
            id="made again",
        ),
        pytest.param([partition("a", 1)], {"grown": ["a"]}, id="grown"),
        pytest.param([moved("b")], {"moved": ["b"]}, id="moved"),
        pytest.param(
            [partition("a", 1), moved("a")], {"grown": ["a"], "moved": ["a"]}, id="grown and moved"
        ),
        pytest.param([config("a")], {"reconfigured": ["a"]}, id="configured"),
        pytest.param([config("b", None)], {"reconfigured": ["b"]}, id="configured no more"),
        pytest.param([config("b", "1")], {}, id="configured as before"),
        pytest.param([config("1", "1", BROKER_RESOURCE)], {}, id="broker configured"),
        pytest.param(
            [FeatureLevelRecord(name="f", feature_level=0)],
            {"features_changed": True},
            id="feature",
        ),
        pytest.param(
            [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=3, fenced=-1)],
            {"brokers_changed": True},
            id="broker",
        ),
        pytest.param(
            [
                ClientQuotaRecord(
                    entity=(ClientQuotaEntity(entity_type="user", entity_name=None),),
                    key="producer_byte_rate",
                    value=1.0,
                    remove=False,
                )
            ],
            {"quotas_changed": True},
            id="quota",
        ),
    ],
)
def test_change_names_what_differs(records, expected):
    new = replayed(BASE, *records)
    change = change_between(BASE, new)
    assert change.image is new
    assert named(change) == expected
    assert is_empty(change) == (not expected)
    # An image loaded from a snapshot shares no object with the one before.
    rebuilt = replayed(MetadataImage(), *BASE_RECORDS, *records)
    assert named(change_between(BASE, rebuilt)) == expected


def named(change: MetadataChange) -> dict[str, object]:
    """The fields of the change that are not empty, with topics by name."""
    found = change._replace(
        created=[each.name for each in change.created],
        deleted=[each.name for each in change.deleted],
        grown=[each.name for each in change.grown],
        moved=[each.name for each in change.moved],
        reconfigured=list(change.reconfigured),
    )._asdict()
    del found["image"]
    return {name: value for name, value in found.items() if value}
