"""The requests of a read replica to the cluster in front of which it stands."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import PartitionImage, TopicImage
from isotherm.broker.metadata.metadata_records import BROKER_RESOURCE, TOPIC_RESOURCE
from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import RetriableError
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import BrokerId, Offset, TopicPartition

_Item = TypeVar("_Item")

TIER_ENABLED = "remote.log.storage.system.enable"
TOPICS_PER_REQUEST_MAX = 500
PARTITIONS_PER_REQUEST_MAX = 5000
_METADATA_VERSION, _FIRST_ID_VERSION = 12, 10
_LIST_OFFSETS_VERSION = 11
_CONSUMER = -1
_TIMEOUT = datetime.timedelta(seconds=30)
EARLIEST, LATEST = -2, -1


class UpstreamBroker(NamedTuple):
    broker_id: BrokerId
    address: NodeAddress
    rack: str | None


class UpstreamState(NamedTuple):
    """What the cluster says of itself. Topics have their real leaders."""

    cluster_id: str
    brokers: Mapping[BrokerId, UpstreamBroker]
    topics: Sequence[TopicImage]


def read_state(client: ClusterClient) -> UpstreamState:
    """Raises BrokerUnreachableError, and UnsupportedVersionError below Kafka 2.8, which has no
    topic ids."""
    answer = client.ask_any(
        ApiKey.METADATA,
        {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
        newest=_METADATA_VERSION,
        oldest=_FIRST_ID_VERSION,
    )
    brokers = (
        UpstreamBroker(int(broker.node_id), NodeAddress(broker.host, int(broker.port)), broker.rack)
        for broker in answer.brokers
    )
    topics = (_topic(topic) for topic in answer.topics if topic.error_code is ErrorCode.none)
    return UpstreamState(
        str(answer.cluster_id), {broker.broker_id: broker for broker in brokers}, tuple(topics)
    )


def _topic(topic: Any) -> TopicImage:
    partitions = sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    return TopicImage(
        str(topic.name),
        topic.topic_id,
        tuple(
            PartitionImage(
                int(partition.partition_index),
                tuple(map(int, partition.replica_nodes)),
                tuple(map(int, partition.isr_nodes)),
                int(partition.leader_id),
                int(partition.leader_epoch),
                0,
            )
            for partition in partitions
        ),
    )


def read_tiered(client: ClusterClient, names: Sequence[str]) -> dict[str, bool]:
    """Whether each topic is tiered. Topics whose configuration the cluster does not show are left
    out."""
    tiered: dict[str, bool] = {}
    for some in _parts(names, TOPICS_PER_REQUEST_MAX):
        resources = [
            {
                "resource_type": TOPIC_RESOURCE,
                "resource_name": name,
                "configuration_keys": ("remote.storage.enable",),
            }
            for name in some
        ]
        answer = client.ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": resources}, newest=4)
        tiered |= {
            str(result.resource_name): any(entry.value == "true" for entry in result.configs)
            for result in answer.results
            if result.error_code is ErrorCode.none
        }
    return tiered


def lacks_tier(client: ClusterClient, state: UpstreamState) -> bool:
    """Whether all brokers have their tiered storage off. False if one does not show it."""
    return all(_has_tier(client, broker) is False for broker in state.brokers.values())


def _has_tier(client: ClusterClient, broker: UpstreamBroker) -> bool | None:
    resource = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": str(broker.broker_id),
        "configuration_keys": (TIER_ENABLED,),
    }
    try:
        answer = client.ask(
            broker.address, ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]}, newest=4
        )
    except RetriableError:
        return None
    values = [
        entry.value
        for result in answer.results
        if result.error_code is ErrorCode.none
        for entry in result.configs
        if entry.name == TIER_ENABLED
    ]
    return values[0] == "true" if values else None


def list_offsets(
    client: ClusterClient,
    address: NodeAddress,
    places: Sequence[TopicPartition],
    timestamp: int,
) -> dict[TopicPartition, Offset]:
    """The offset of each partition at a ListOffsets timestamp. Partitions that the broker refuses
    are left out: their leader has moved."""
    offsets: dict[TopicPartition, Offset] = {}
    for some in _parts(places, PARTITIONS_PER_REQUEST_MAX):
        by_topic: dict[str, list[dict[str, int]]] = defaultdict(list)
        for topic, partition in some:
            by_topic[topic].append({"partition_index": partition, "timestamp": timestamp})
        answer = client.ask(
            address,
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": _CONSUMER,
                "isolation_level": 0,
                "topics": [
                    {"name": name, "partitions": fields} for name, fields in by_topic.items()
                ],
                "timeout": _TIMEOUT,
            },
            newest=_LIST_OFFSETS_VERSION,
            oldest=1,
        )
        offsets |= {
            TopicPartition(str(topic.name), int(partition.partition_index)): int(partition.offset)
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code is ErrorCode.none
        }
    return offsets


def read_offsets(
    client: ClusterClient,
    state: UpstreamState,
    places: Iterable[TopicPartition],
    timestamp: int,
) -> dict[TopicPartition, Offset]:
    """As `list_offsets`, of each partition from its leader. Those without one are left out."""
    leaders = {
        TopicPartition(topic.name, partition.partition): partition.leader
        for topic in state.topics
        for partition in topic.partitions
    }
    by_leader: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
    for place in places:
        by_leader[leaders.get(place, -1)].append(place)
    offsets: dict[TopicPartition, Offset] = {}
    for leader, led in by_leader.items():
        if leader in state.brokers:
            offsets |= list_offsets(client, state.brokers[leader].address, led, timestamp)
    return offsets


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
