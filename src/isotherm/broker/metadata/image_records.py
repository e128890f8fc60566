"""The records that recreate an image: the content of a snapshot. Pure.

The order is that of Kafka's snapshots: features with metadata.version first, then nodes, topics and
settings.
Source: Kafka MetadataImage.write.
"""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.metadata.metadata_records import (
    KRAFT_VERSION_FEATURE,
    METADATA_VERSION_FEATURE,
    BrokerEndpoint,
    ClientQuotaEntity,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)

_NO_BROKER = -1


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """The records of `image`. Replayed onto an empty image they make an equal one, except for
    kraft.version, which a control record of the snapshot holds."""
    # metadata.version first: it determines how Kafka reads the records that follow.
    levels = sorted(
        image.features.items(),
        key=lambda feature_level: feature_level[0] != METADATA_VERSION_FEATURE,
    )
    for name, level in levels:
        if name != KRAFT_VERSION_FEATURE:
            yield FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield _register_broker(broker)
    for controller in image.controllers.values():
        yield RegisterControllerRecord(
            controller_id=controller.controller_id,
            incarnation_id=controller.incarnation_id,
            zk_migration_ready=False,
            end_points=_endpoints(controller.endpoints),
            features=controller.features,
        )
    for topic in image.topics_by_id.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for partition in topic.partitions:
            yield _partition(topic, partition)
    yield from _settings(image)
    yield from image.acls.values()
    yield from image.scram_credentials.values()
    yield from image.delegation_tokens.values()


def _settings(image: MetadataImage) -> Iterator[MetadataRecord]:
    for resource, texts in image.configs.items():
        for name, value in texts.items():
            yield ConfigRecord(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                name=name,
                value=value,
            )
    for entity, values in image.client_quotas.items():
        parts = tuple(
            ClientQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity
        )
        for key, limit in values.items():
            yield ClientQuotaRecord(entity=parts, key=key, value=limit, remove=False)
    if image.next_producer_id:
        yield ProducerIdsRecord(
            broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=image.next_producer_id
        )


def _register_broker(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=_endpoints(broker.endpoints),
        features=broker.features,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        cordoned_log_dirs=broker.cordoned_log_dirs,
    )


def _partition(topic: TopicImage, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition.partition,
        topic_id=topic.topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.elr or None,
        last_known_elr=partition.last_known_elr or None,
    )


def _endpoints(endpoints: tuple[Endpoint, ...]) -> tuple[BrokerEndpoint, ...]:
    """Endpoints with security protocol 0.

    Images do not keep it: each node uses its own listener map.
    """
    return tuple(
        BrokerEndpoint(
            name=endpoint.listener_name, host=endpoint.host, port=endpoint.port, security_protocol=0
        )
        for endpoint in endpoints
    )
