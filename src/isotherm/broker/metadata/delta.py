"""Applies records of the metadata log to an image, as Kafka's MetadataDelta.

A record that contradicts the image (a partition of an unknown topic, a second topic with the same
name) raises CorruptMetadataError: the log is damaged or belongs to another cluster, and to continue
would lose the record's change. So does a kind of record that has no place in an image.
`metadata_loader` itself handles the records that begin, end and abort metadata transactions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from isotherm.broker.metadata.directory_ids import directories_of
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import (
    BrokerImage,
    ConfigResource,
    ControllerImage,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    ScramUser,
    TopicImage,
)
from isotherm.broker.metadata.metadata_records import (
    KRAFT_VERSION_FEATURE,
    NO_LEADER_CHANGE,
    NO_RECOVERY_STATE_CHANGE,
    TOPIC_RESOURCE,
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    DirectoryIds,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionRecordV0,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterBrokerRecordV1,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from isotherm.errors import CorruptMetadataError
from isotherm.types import Offset, TopicIdPartition

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Draft(Generic[K, V]):
    """The next version of `base`, which is copied before the first change: images share unchanged
    maps. `base` itself is never changed."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._copy: dict[K, V] | None = None

    def __contains__(self, key: K) -> bool:
        return key in self._now

    def get(self, key: K) -> V | None:
        return self._now.get(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._now)

    def put(self, key: K, value: V) -> None:
        self._own()[key] = value

    def remove(self, key: K) -> V | None:
        """Remove a key and return its value, or None if there was none.

        Removing nothing makes no copy.
        """
        return self._own().pop(key, None) if key in self._now else None

    def finished(self) -> Mapping[K, V]:
        """The map: `base` itself if nothing was changed. The draft must not be used afterwards."""
        return self._base if self._copy is None else MappingProxyType(self._copy)

    @property
    def _now(self) -> Mapping[K, V]:
        return self._base if self._copy is None else self._copy

    def _own(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self._base)
        return self._copy


class MetadataDelta:
    """Applies records to drafts of an image's maps.

    The next image shares the maps that no record has changed.
    """

    def __init__(self, image: MetadataImage) -> None:
        self._names = Draft(image.topics_by_name)
        self._topics = Draft(image.topics_by_id)
        # Partitions of the touched topics. `apply` makes their images once, not after every record.
        self._partitions: dict[uuid.UUID, dict[int, PartitionImage]] = {}
        self._configs = Draft(image.configs)
        self._features = Draft(image.features)
        self._brokers = Draft(image.brokers)
        self._controllers = Draft(image.controllers)
        self._next_producer_id = image.next_producer_id
        self._client_quotas = Draft(image.client_quotas)
        self._acls = Draft(image.acls)
        self._scram_credentials = Draft(image.scram_credentials)
        self._delegation_tokens = Draft(image.delegation_tokens)

    def replay(self, record: MetadataRecord) -> None:
        apply = _APPLIERS.get(type(record))
        if apply is None:
            raise CorruptMetadataError(
                f"the metadata log has a record of a kind that is not kept here"
                f" record={type(record).__name__}"
            )
        apply(self, record)

    def set_kraft_version(self, level: int) -> None:
        """Set kraft.version.

        It comes from control records of the log; a FeatureLevelRecord for it is ignored.
        """
        self._put_feature(KRAFT_VERSION_FEATURE, level)

    def apply(self, end_offset: Offset) -> MetadataImage:
        """The image after the replayed records, the last of which is at `end_offset` - 1."""
        for topic_id, partitions in self._partitions.items():
            topic = self._topic(topic_id)
            changed = TopicImage(topic.name, topic_id, _without_gaps(topic.name, partitions))
            self._topics.put(topic_id, changed)
            self._names.put(topic.name, changed)
        return MetadataImage(
            end_offset=end_offset,
            topics_by_name=self._names.finished(),
            topics_by_id=self._topics.finished(),
            configs=self._configs.finished(),
            features=self._features.finished(),
            brokers=self._brokers.finished(),
            next_producer_id=self._next_producer_id,
            client_quotas=self._client_quotas.finished(),
            controllers=self._controllers.finished(),
            acls=self._acls.finished(),
            scram_credentials=self._scram_credentials.finished(),
            delegation_tokens=self._delegation_tokens.finished(),
        )

    def tiered_partitions(self, topic_id: uuid.UUID) -> tuple[TopicIdPartition, ...]:
        """The partitions of an existing topic if remote.storage.enable is true for it, else
        none.
        """
        name = self._topic(topic_id).name
        texts = self._configs.get(ConfigResource(TOPIC_RESOURCE, name)) or {}
        if texts.get("remote.storage.enable") != "true":
            return ()
        return tuple(
            TopicIdPartition(topic_id, name, number) for number in self._partitions_of(topic_id)
        )

    # ---- topics

    def _topic(self, topic_id: uuid.UUID | None) -> TopicImage:
        topic = self._topics.get(topic_id) if topic_id is not None else None
        if topic is None:
            raise CorruptMetadataError(f"a partition of an unknown topic topic_id={topic_id}")
        return topic

    def _partitions_of(self, topic_id: uuid.UUID | None) -> dict[int, PartitionImage]:
        topic = self._topic(topic_id)
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
        topic = TopicImage(record.name, topic_id, ())
        self._topics.put(topic_id, topic)
        self._names.put(record.name, topic)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topics.remove(record.topic_id) if record.topic_id is not None else None
        if topic is None:
            raise CorruptMetadataError(f"an unknown topic is removed topic_id={record.topic_id}")
        self._names.remove(topic.name)
        self._partitions.pop(topic.topic_id, None)
        self._configs.remove(ConfigResource(TOPIC_RESOURCE, topic.name))

    def _add_partition(self, record: PartitionRecord | PartitionRecordV0) -> None:
        recorded = record.directories if isinstance(record, PartitionRecord) else ()
        newest = record if isinstance(record, PartitionRecord) else None
        self._partitions_of(record.topic_id)[record.partition_id] = PartitionImage(
            record.partition_id,
            record.replicas,
            record.isr,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.removing_replicas,
            record.adding_replicas,
            _recovery_state(record.leader_recovery_state),
            _checked_directories(record, recorded, len(record.replicas)),
            (newest and newest.eligible_leader_replicas) or (),
            (newest and newest.last_known_elr) or (),
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
        has_state = record.leader_recovery_state != NO_RECOVERY_STATE_CHANGE
        replicas = _changed(record.replicas, old.replicas)
        directories = _changed(record.directories, old.directories)
        partitions[record.partition_id] = PartitionImage(
            old.partition,
            replicas,
            _changed(record.isr, old.isr),
            record.leader if has_leader else old.leader,
            # A record that names a leader raises the epoch even if that broker leads already, as in
            # Kafka.
            old.leader_epoch + has_leader,
            old.partition_epoch + 1,
            _changed(record.removing_replicas, old.removing_replicas),
            _changed(record.adding_replicas, old.adding_replicas),
            _recovery_state(record.leader_recovery_state)
            if has_state
            else old.leader_recovery_state,
            _checked_directories(record, directories, len(replicas)),
            _changed(record.eligible_leader_replicas, old.elr),
            _changed(record.last_known_elr, old.last_known_elr),
        )

    def _clear_elr(self, record: ClearElrRecord) -> None:
        if not record.topic_name:
            for topic_id in self._topics:
                self._clear_elr_of(topic_id)
            return
        topic = self._names.get(record.topic_name)
        if topic is None:
            raise CorruptMetadataError(
                f"the ELR of an unknown topic is cleared topic={record.topic_name}"
            )
        self._clear_elr_of(topic.topic_id)

    def _clear_elr_of(self, topic_id: uuid.UUID) -> None:
        touched = self._partitions.get(topic_id)
        now = touched.values() if touched is not None else self._topic(topic_id).partitions
        cleared = [partition for partition in now if partition.elr or partition.last_known_elr]
        if not cleared:
            return
        # Only now: a topic without ELR stays untouched, and the next image shares it.
        partitions = self._partitions_of(topic_id)
        for partition in cleared:
            partitions[partition.partition] = partition._replace(
                elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
            )

    # ---- settings

    def _set_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        texts = dict(self._configs.get(resource) or {})
        if record.value is None:
            texts.pop(record.name, None)
        else:
            texts[record.name] = record.value
        if texts:
            self._configs.put(resource, MappingProxyType(texts))
        else:
            self._configs.remove(resource)

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        if record.name != KRAFT_VERSION_FEATURE:
            self._put_feature(record.name, record.feature_level)

    def _put_feature(self, name: str, level: int) -> None:
        if level:
            self._features.put(name, level)
        else:
            self._features.remove(name)

    def _set_client_quota(self, record: ClientQuotaRecord) -> None:
        entity = frozenset((part.entity_type, part.entity_name) for part in record.entity)
        values = dict(self._client_quotas.get(entity) or {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self._client_quotas.put(entity, MappingProxyType(values))
        else:
            self._client_quotas.remove(entity)

    def _set_producer_ids(self, record: ProducerIdsRecord) -> None:
        self._next_producer_id = record.next_producer_id

    # ---- nodes

    def _add_broker(self, record: RegisterBrokerRecord | RegisterBrokerRecordV1) -> None:
        newest = record if isinstance(record, RegisterBrokerRecord) else None
        self._brokers.put(
            record.broker_id,
            BrokerImage(
                record.broker_id,
                record.broker_epoch,
                record.incarnation_id,
                record.rack,
                record.fenced,
                record.in_controlled_shutdown,
                _endpoints(record.end_points),
                record.features,
                _directory_ids(newest.log_dirs if newest else ()),
                _optional_directory_ids(newest.cordoned_log_dirs if newest else None),
            ),
        )

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        if not {record.fenced, record.in_controlled_shutdown} <= {-1, 0, 1}:
            raise CorruptMetadataError(f"a broker changes in an unknown way record={record}")
        cordoned = _optional_directory_ids(record.cordoned_log_dirs)
        self._brokers.put(
            record.broker_id,
            broker._replace(
                fenced=record.fenced > 0 if record.fenced else broker.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown
                or record.in_controlled_shutdown > 0,
                log_dirs=_directory_ids(record.log_dirs) or broker.log_dirs,
                cordoned_log_dirs=broker.cordoned_log_dirs if cordoned is None else cordoned,
            ),
        )

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        self._brokers.put(
            record.id, self._registered(record.id, record.epoch)._replace(fenced=True)
        )

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        broker = self._registered(record.id, record.epoch)
        self._brokers.put(record.id, broker._replace(fenced=False))

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            raise CorruptMetadataError(
                f"a broker changes that is not registered broker_id={broker_id}"
                f" broker_epoch={broker_epoch} registered={broker and broker.broker_epoch}"
            )
        return broker

    def _remove_broker(self, record: UnregisterBrokerRecord) -> None:
        self._brokers.remove(record.broker_id)

    def _add_controller(self, record: RegisterControllerRecord) -> None:
        self._controllers.put(
            record.controller_id,
            ControllerImage(
                record.controller_id,
                record.incarnation_id,
                _endpoints(record.end_points),
                record.features,
            ),
        )

    # ---- access

    def _add_acl(self, record: AccessControlEntryRecord) -> None:
        if record.id is None or record.id in self._acls:
            raise CorruptMetadataError(f"an ACL is made twice or has no id record={record}")
        self._acls.put(record.id, record)

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        if record.id is None or self._acls.remove(record.id) is None:
            raise CorruptMetadataError(f"an unknown ACL is removed id={record.id}")

    def _set_scram_credential(self, record: UserScramCredentialRecord) -> None:
        self._scram_credentials.put(ScramUser(record.mechanism, record.name), record)

    def _remove_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        self._scram_credentials.remove(ScramUser(record.mechanism, record.name))

    def _set_delegation_token(self, record: DelegationTokenRecord) -> None:
        self._delegation_tokens.put(record.token_id, record)

    def _remove_delegation_token(self, record: RemoveDelegationTokenRecord) -> None:
        self._delegation_tokens.remove(record.token_id)

    def _do_nothing(self, _record: NoOpRecord | ZkMigrationStateRecord) -> None:
        return


def _changed(recorded: tuple[T, ...] | None, old: tuple[T, ...]) -> tuple[T, ...]:
    return old if recorded is None else recorded


def _recovery_state(recorded: int) -> LeaderRecoveryState:
    try:
        return LeaderRecoveryState(recorded)
    except ValueError as error:
        raise CorruptMetadataError(f"unknown leader recovery state state={recorded}") from error


def _checked_directories(
    record: PartitionRecord | PartitionRecordV0 | PartitionChangeRecord,
    recorded: DirectoryIds,
    replica_count: int,
) -> tuple[uuid.UUID, ...]:
    directories = directories_of(recorded, replica_count)
    if len(directories) != replica_count:
        raise CorruptMetadataError(
            f"a partition has other numbers of directories and replicas topic_id={record.topic_id}"
            f" partition={record.partition_id} directories={len(directories)}"
            f" replicas={replica_count}"
        )
    return directories


def _endpoints(recorded: tuple[BrokerEndpoint, ...]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(endpoint.name, endpoint.host, endpoint.port) for endpoint in recorded)


def _directory_ids(recorded: DirectoryIds) -> tuple[uuid.UUID, ...]:
    return directories_of(recorded, 0)


def _optional_directory_ids(recorded: DirectoryIds | None) -> tuple[uuid.UUID, ...] | None:
    return None if recorded is None else _directory_ids(recorded)


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
    PartitionRecordV0: MetadataDelta._add_partition,
    PartitionChangeRecord: MetadataDelta._change_partition,
    ClearElrRecord: MetadataDelta._clear_elr,
    ConfigRecord: MetadataDelta._set_config,
    FeatureLevelRecord: MetadataDelta._set_feature,
    ClientQuotaRecord: MetadataDelta._set_client_quota,
    ProducerIdsRecord: MetadataDelta._set_producer_ids,
    RegisterBrokerRecord: MetadataDelta._add_broker,
    RegisterBrokerRecordV1: MetadataDelta._add_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._change_broker,
    FenceBrokerRecord: MetadataDelta._fence_broker,
    UnfenceBrokerRecord: MetadataDelta._unfence_broker,
    UnregisterBrokerRecord: MetadataDelta._remove_broker,
    RegisterControllerRecord: MetadataDelta._add_controller,
    AccessControlEntryRecord: MetadataDelta._add_acl,
    RemoveAccessControlEntryRecord: MetadataDelta._remove_acl,
    UserScramCredentialRecord: MetadataDelta._set_scram_credential,
    RemoveUserScramCredentialRecord: MetadataDelta._remove_scram_credential,
    DelegationTokenRecord: MetadataDelta._set_delegation_token,
    RemoveDelegationTokenRecord: MetadataDelta._remove_delegation_token,
    NoOpRecord: MetadataDelta._do_nothing,
    ZkMigrationStateRecord: MetadataDelta._do_nothing,
}
