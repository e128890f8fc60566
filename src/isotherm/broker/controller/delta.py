"""Folding records of the metadata log into the next image, as Kafka's MetadataDelta.

A record that contradicts the image (a partition of an unknown topic, a second topic of one name)
or is of a kind this broker keeps no state for raises CorruptMetadataError: the log is not ours, or
damaged, and to go on would lose what the record says.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from isotherm.broker.controller.image import (
    BrokerImage,
    ConfigResource,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from isotherm.broker.controller.metadata_records import (
    NO_LEADER_CHANGE,
    TOPIC_RESOURCE,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from isotherm.errors import CorruptMetadataError
from isotherm.types import Offset, TopicIdPartition


class MetadataDelta:
    """Records applied to copies of an image's maps; what was not touched is shared."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._names: dict[str, uuid.UUID] = {
            name: topic.topic_id for name, topic in image.topics_by_name.items()
        }
        self._topics = dict(image.topics_by_id)
        self._partitions: dict[uuid.UUID, dict[int, PartitionImage]] = {}
        self._configs: dict[ConfigResource, Mapping[str, str]] = dict(image.configs)
        self._features = dict(image.features)
        self._brokers = dict(image.brokers)
        self._next_producer_id = image.next_producer_id
        self._client_quotas = dict(image.client_quotas)

    def replay(self, record: MetadataRecord) -> None:
        apply = _APPLIERS.get(type(record))
        if apply is None:
            raise CorruptMetadataError(
                f"the metadata log has a record of a kind that is not kept here"
                f" record={type(record).__name__}"
            )
        apply(self, record)

    def apply(self, end_offset: Offset) -> MetadataImage:
        """The image after the records replayed, the last of which is at `end_offset` - 1."""
        for topic_id, partitions in self._partitions.items():
            topic = self._topics[topic_id]
            self._topics[topic_id] = TopicImage(
                topic.name, topic_id, _without_gaps(topic.name, partitions)
            )
        topics_by_name = {name: self._topics[topic_id] for name, topic_id in self._names.items()}
        return MetadataImage(
            end_offset=end_offset,
            topics_by_name=MappingProxyType(topics_by_name),
            topics_by_id=MappingProxyType(self._topics),
            configs=MappingProxyType(self._configs),
            features=MappingProxyType(self._features),
            brokers=MappingProxyType(self._brokers),
            next_producer_id=self._next_producer_id,
            client_quotas=MappingProxyType(self._client_quotas),
        )

    def tiered_partitions(self, topic_id: uuid.UUID) -> tuple[TopicIdPartition, ...]:
        """Those of a topic that exists, if it keeps records in the remote tier; else none."""
        name = self._topics[topic_id].name
        texts = self._configs.get(ConfigResource(TOPIC_RESOURCE, name), {})
        if texts.get("remote.storage.enable") != "true":
            return ()
        return tuple(
            TopicIdPartition(topic_id, name, number) for number in self._partitions_of(topic_id)
        )

    def _partitions_of(self, topic_id: uuid.UUID | None) -> dict[int, PartitionImage]:
        topic = self._topics.get(topic_id) if topic_id is not None else None
        if topic is None:
            raise CorruptMetadataError(f"a partition of an unknown topic topic_id={topic_id}")
        partitions = self._partitions.get(topic.topic_id)
        if partitions is None:
            partitions = {partition.partition: partition for partition in topic.partitions}
            self._partitions[topic.topic_id] = partitions
        return partitions

    def _add_topic(self, record: TopicRecord) -> None:
        topic_id = record.topic_id
        if topic_id is None or topic_id in self._topics or record.name in self._names:
            raise CorruptMetadataError(
                f"a topic is made twice or has no id topic={record.name} topic_id={topic_id}"
            )
        self._topics[topic_id] = TopicImage(record.name, topic_id, ())
        self._names[record.name] = topic_id

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topics.pop(record.topic_id, None) if record.topic_id is not None else None
        if topic is None:
            raise CorruptMetadataError(f"an unknown topic is removed topic_id={record.topic_id}")
        del self._names[topic.name]
        self._partitions.pop(topic.topic_id, None)
        self._configs.pop(ConfigResource(TOPIC_RESOURCE, topic.name), None)

    def _add_partition(self, record: PartitionRecord) -> None:
        self._partitions_of(record.topic_id)[record.partition_id] = PartitionImage(
            record.partition_id,
            record.replicas,
            record.isr,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
        )

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self._partitions_of(record.topic_id)
        old = partitions.get(record.partition_id)
        if old is None:
            raise CorruptMetadataError(
                f"an unknown partition is changed topic_id={record.topic_id}"
                f" partition={record.partition_id}"
            )
        has_leader = record.leader != NO_LEADER_CHANGE
        partitions[record.partition_id] = PartitionImage(
            old.partition,
            old.replicas if record.replicas is None else record.replicas,
            old.isr if record.isr is None else record.isr,
            record.leader if has_leader else old.leader,
            old.leader_epoch + has_leader,
            old.partition_epoch + 1,
        )

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        texts = dict(self._configs.get(resource, {}))
        if record.value is None:
            texts.pop(record.name, None)
        else:
            texts[record.name] = record.value
        if texts:
            self._configs[resource] = MappingProxyType(texts)
        else:
            self._configs.pop(resource, None)

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level

    def _set_client_quota(self, record: ClientQuotaRecord) -> None:
        entity = frozenset((part.entity_type, part.entity_name) for part in record.entity)
        values = dict(self._client_quotas.get(entity, {}))
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self._client_quotas[entity] = MappingProxyType(values)
        else:
            self._client_quotas.pop(entity, None)

    def _set_producer_ids(self, record: ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    def _add_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            record.rack,
            record.fenced,
        )

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._brokers.get(record.broker_id)
        if broker is None:
            raise CorruptMetadataError(f"an unknown broker changes broker_id={record.broker_id}")
        if record.fenced:
            self._brokers[record.broker_id] = broker._replace(fenced=record.fenced > 0)

    def _remove_broker(self, record: UnregisterBrokerRecord) -> None:
        self._brokers.pop(record.broker_id, None)

    def _do_nothing(self, _record: NoOpRecord) -> None:
        return


def _without_gaps(topic: str, partitions: dict[int, PartitionImage]) -> tuple[PartitionImage, ...]:
    if sorted(partitions) != list(range(len(partitions))):
        raise CorruptMetadataError(
            f"a topic's partitions have gaps topic={topic} partitions={sorted(partitions)}"
        )
    return tuple(partitions[number] for number in range(len(partitions)))


_APPLIERS: Mapping[type[MetadataRecord], Callable[[MetadataDelta, Any], None]] = {
    TopicRecord: MetadataDelta._add_topic,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    PartitionRecord: MetadataDelta._add_partition,
    PartitionChangeRecord: MetadataDelta._change_partition,
    ConfigRecord: MetadataDelta._set_config,
    FeatureLevelRecord: MetadataDelta._set_feature,
    ClientQuotaRecord: MetadataDelta._set_client_quota,
    ProducerIdsRecord: MetadataDelta._set_producer_ids,
    RegisterBrokerRecord: MetadataDelta._add_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._change_broker,
    UnregisterBrokerRecord: MetadataDelta._remove_broker,
    NoOpRecord: MetadataDelta._do_nothing,
}
