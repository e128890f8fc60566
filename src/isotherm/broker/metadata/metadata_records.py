"""The records of `__cluster_metadata`: Apache Kafka's own, declared in kio's style.

Values are framed as `isotherm.protocol.framed_messages` describes; keys are null. Each class is the
newest version of its record. If an older version differs only by tagged fields, the newest class
reads it too, and absent fields have their defaults. If an older version lacks an untagged field, it
has its own class. Control batches, such as snapshot headers and quorum changes, are not among these
records.

Source: Kafka metadata/src/main/resources/common/metadata/*.json.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from isotherm.protocol.framed_messages import decode_framed, registry_of
from isotherm.protocol.primitives import Buffer
from isotherm.types import BrokerId

METADATA_VERSION_FEATURE = "metadata.version"
KRAFT_VERSION_FEATURE = "kraft.version"
# ConfigResource.Type
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 16, 32
NO_LEADER_CHANGE = -2
NO_RECOVERY_STATE_CHANGE = -1

_INT8 = {"kafka_type": "int8"}
_INT16 = {"kafka_type": "int16"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_UINT16 = {"kafka_type": "uint16"}
_FLOAT64 = {"kafka_type": "float64"}
_BOOL = {"kafka_type": "bool"}
_STRING = {"kafka_type": "string"}
_BYTES = {"kafka_type": "bytes"}
_UUID = {"kafka_type": "uuid"}

BrokerIds: TypeAlias = tuple[BrokerId, ...]
# The zero id, which means MIGRATING here, is decoded as None like every zero uuid (see
# `directory_ids`).
DirectoryIds: TypeAlias = tuple[uuid.UUID | None, ...]


class MetadataRecord:
    """The base class of all records and of their nested structures."""

    __slots__ = ()
    __api_key__: ClassVar[int]
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint(MetadataRecord):
    name: str = field(metadata=_STRING)
    host: str = field(metadata=_STRING)
    port: int = field(metadata=_UINT16)
    security_protocol: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFeature(MetadataRecord):
    name: str = field(metadata=_STRING)
    min_supported_version: int = field(metadata=_INT16)
    max_supported_version: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(MetadataRecord):
    __api_key__ = 0
    __version__ = 4
    broker_id: int = field(metadata=_INT32)
    is_migrating_zk_broker: bool = field(metadata=_BOOL, default=False)
    incarnation_id: uuid.UUID | None = field(metadata=_UUID)
    broker_epoch: int = field(metadata=_INT64)
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = field(metadata=_STRING, default=None)
    fenced: bool = field(metadata=_BOOL, default=True)
    in_controlled_shutdown: bool = field(metadata=_BOOL, default=False)
    log_dirs: DirectoryIds = field(metadata=_UUID | {"tag": 0}, default=())
    cordoned_log_dirs: DirectoryIds | None = field(metadata=_UUID | {"tag": 1}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecordV1(MetadataRecord):
    """Version 1, which lacks `is_migrating_zk_broker`."""

    __api_key__ = 0
    __version__ = 1
    broker_id: int = field(metadata=_INT32)
    incarnation_id: uuid.UUID | None = field(metadata=_UUID)
    broker_epoch: int = field(metadata=_INT64)
    end_points: tuple[BrokerEndpoint, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = field(metadata=_STRING, default=None)
    fenced: bool = field(metadata=_BOOL, default=True)
    in_controlled_shutdown: bool = field(metadata=_BOOL, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(MetadataRecord):
    __api_key__ = 1
    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(MetadataRecord):
    __api_key__ = 2
    name: str = field(metadata=_STRING)
    topic_id: uuid.UUID | None = field(metadata=_UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(MetadataRecord):
    __api_key__ = 3
    __version__ = 2
    partition_id: int = field(metadata=_INT32)
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    replicas: BrokerIds = field(metadata=_INT32)
    isr: BrokerIds = field(metadata=_INT32)
    removing_replicas: BrokerIds = field(metadata=_INT32, default=())
    adding_replicas: BrokerIds = field(metadata=_INT32, default=())
    leader: int = field(metadata=_INT32)
    leader_recovery_state: int = field(metadata=_INT8 | {"tag": 0}, default=0)
    leader_epoch: int = field(metadata=_INT32)
    partition_epoch: int = field(metadata=_INT32)
    directories: DirectoryIds = field(metadata=_UUID)
    eligible_leader_replicas: BrokerIds | None = field(metadata=_INT32 | {"tag": 1}, default=None)
    last_known_elr: BrokerIds | None = field(metadata=_INT32 | {"tag": 2}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecordV0(MetadataRecord):
    """Version 0, which lacks `directories` (KIP-858)."""

    __api_key__ = 3
    partition_id: int = field(metadata=_INT32)
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    replicas: BrokerIds = field(metadata=_INT32)
    isr: BrokerIds = field(metadata=_INT32)
    removing_replicas: BrokerIds = field(metadata=_INT32, default=())
    adding_replicas: BrokerIds = field(metadata=_INT32, default=())
    leader: int = field(metadata=_INT32)
    leader_recovery_state: int = field(metadata=_INT8 | {"tag": 0}, default=0)
    leader_epoch: int = field(metadata=_INT32)
    partition_epoch: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(MetadataRecord):
    """A setting of a resource. A `value` of None resets the key to its default."""

    __api_key__ = 4
    resource_type: int = field(metadata=_INT8)
    resource_name: str = field(metadata=_STRING)
    name: str = field(metadata=_STRING)
    value: str | None = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord(MetadataRecord):
    """The changed fields of a partition. A record with a leader raises the leader epoch by one,
    even if that broker leads already."""

    __api_key__ = 5
    __version__ = 2
    partition_id: int = field(metadata=_INT32)
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    isr: BrokerIds | None = field(metadata=_INT32 | {"tag": 0}, default=None)
    leader: int = field(metadata=_INT32 | {"tag": 1}, default=NO_LEADER_CHANGE)
    replicas: BrokerIds | None = field(metadata=_INT32 | {"tag": 2}, default=None)
    removing_replicas: BrokerIds | None = field(metadata=_INT32 | {"tag": 3}, default=None)
    adding_replicas: BrokerIds | None = field(metadata=_INT32 | {"tag": 4}, default=None)
    leader_recovery_state: int = field(
        metadata=_INT8 | {"tag": 5}, default=NO_RECOVERY_STATE_CHANGE
    )
    eligible_leader_replicas: BrokerIds | None = field(metadata=_INT32 | {"tag": 6}, default=None)
    last_known_elr: BrokerIds | None = field(metadata=_INT32 | {"tag": 7}, default=None)
    directories: DirectoryIds | None = field(metadata=_UUID | {"tag": 8}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokerRecord(MetadataRecord):
    __api_key__ = 7
    id: int = field(metadata=_INT32)
    epoch: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBrokerRecord(MetadataRecord):
    __api_key__ = 8
    id: int = field(metadata=_INT32)
    epoch: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(MetadataRecord):
    __api_key__ = 9
    topic_id: uuid.UUID | None = field(metadata=_UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord(MetadataRecord):
    __api_key__ = 10
    owner: str = field(metadata=_STRING)
    requester: str = field(metadata=_STRING)
    renewers: tuple[str, ...] = field(metadata=_STRING)
    issue_timestamp: int = field(metadata=_INT64)
    max_timestamp: int = field(metadata=_INT64)
    expiration_timestamp: int = field(metadata=_INT64)
    token_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord(MetadataRecord):
    __api_key__ = 11
    name: str = field(metadata=_STRING)
    mechanism: int = field(metadata=_INT8)
    salt: bytes = field(metadata=_BYTES)
    stored_key: bytes = field(metadata=_BYTES)
    server_key: bytes = field(metadata=_BYTES)
    iterations: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(MetadataRecord):
    """Level 0 removes the feature."""

    __api_key__ = 12
    name: str = field(metadata=_STRING)
    feature_level: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaEntity(MetadataRecord):
    entity_type: str = field(metadata=_STRING)
    entity_name: str | None = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord(MetadataRecord):
    __api_key__ = 14
    entity: tuple[ClientQuotaEntity, ...]
    key: str = field(metadata=_STRING)
    value: float = field(metadata=_FLOAT64)
    remove: bool = field(metadata=_BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(MetadataRecord):
    """`next_producer_id` is the first id that no broker has been assigned."""

    __api_key__ = 15
    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)
    next_producer_id: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """`fenced` is -1 for unfenced, 0 for unchanged, 1 for fenced.

    Empty `log_dirs` mean no change.
    """

    __api_key__ = 17
    __version__ = 3
    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)
    fenced: int = field(metadata=_INT8 | {"tag": 0}, default=0)
    in_controlled_shutdown: int = field(metadata=_INT8 | {"tag": 1}, default=0)
    log_dirs: DirectoryIds = field(metadata=_UUID | {"tag": 2}, default=())
    cordoned_log_dirs: DirectoryIds | None = field(metadata=_UUID | {"tag": 3}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord(MetadataRecord):
    __api_key__ = 18
    id: uuid.UUID | None = field(metadata=_UUID)
    resource_type: int = field(metadata=_INT8)
    resource_name: str = field(metadata=_STRING)
    pattern_type: int = field(metadata=_INT8)
    principal: str = field(metadata=_STRING)
    host: str = field(metadata=_STRING)
    operation: int = field(metadata=_INT8)
    permission_type: int = field(metadata=_INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord(MetadataRecord):
    __api_key__ = 19
    id: uuid.UUID | None = field(metadata=_UUID)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord(MetadataRecord):
    __api_key__ = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationStateRecord(MetadataRecord):
    __api_key__ = 21
    zk_migration_state: int = field(metadata=_INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(MetadataRecord):
    __api_key__ = 22
    name: str = field(metadata=_STRING)
    mechanism: int = field(metadata=_INT8)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord(MetadataRecord):
    __api_key__ = 23
    name: str | None = field(metadata=_STRING | {"tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord(MetadataRecord):
    __api_key__ = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord(MetadataRecord):
    __api_key__ = 25
    reason: str | None = field(metadata=_STRING | {"tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord(MetadataRecord):
    __api_key__ = 26
    token_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord(MetadataRecord):
    __api_key__ = 27
    controller_id: int = field(metadata=_INT32)
    incarnation_id: uuid.UUID | None = field(metadata=_UUID)
    zk_migration_ready: bool = field(metadata=_BOOL)
    end_points: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearElrRecord(MetadataRecord):
    """An empty `topic_name` means all topics."""

    __api_key__ = 28
    topic_name: str = field(metadata=_STRING)


_NEWEST = (
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RemoveTopicRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
    RemoveUserScramCredentialRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    RemoveDelegationTokenRecord,
    RegisterControllerRecord,
    ClearElrRecord,
)

# Older versions that the newest class reads too, because only tagged fields were added.
_READ_AS_NEWEST: Mapping[type[MetadataRecord], tuple[int, ...]] = {
    PartitionRecord: (1,),
    PartitionChangeRecord: (0, 1),
    RegisterBrokerRecord: (2, 3),
    BrokerRegistrationChangeRecord: (0, 1, 2),
}

REGISTRY: Mapping[tuple[int, int], type[Any]] = {
    **registry_of([*_NEWEST, PartitionRecordV0, RegisterBrokerRecordV1]),
    **{
        (newest.__api_key__, version): newest
        for newest, versions in _READ_AS_NEWEST.items()
        for version in versions
    },
}


def decode_record(value: Buffer) -> MetadataRecord:
    """The record in a value of the metadata log.

    Raises CorruptMetadataError if it is malformed or unknown.
    """
    record: MetadataRecord = decode_framed(value, REGISTRY)
    return record
