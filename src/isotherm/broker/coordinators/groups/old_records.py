"""Versions of `__consumer_offsets` records that are read but no longer written.

        offset key    0  (Kafka 0.8.2)         offset values  0, 1 (also written), 2, 3
        group values  0 · 1 rebalance timeout · 2 time of the state · 4 flexible, else as 3

    A log that was migrated from an older broker holds them until their keys are overwritten. Fields
    that a version lacks are class constants.

Source: Kafka group-coordinator/src/main/resources/common/message/{LegacyOffsetCommitKey,
OffsetCommitValue,GroupMetadataValue}.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_BYTES = {"kafka_type": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValueV0:
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = False
    offset: int = field(metadata=_INT64)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValueV2:
    """Version 1 without the expiry."""

    __version__: ClassVar[int] = 2
    __flexible__: ClassVar[bool] = False
    offset: int = field(metadata=_INT64)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValueV3:
    """Version 4 without the topic id."""

    __version__: ClassVar[int] = 3
    __flexible__: ClassVar[bool] = False
    offset: int = field(metadata=_INT64)
    leader_epoch: int = field(metadata=_INT32, default=-1)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadataV0:
    __flexible__: ClassVar[bool] = False
    group_instance_id: ClassVar[None] = None
    rebalance_timeout: ClassVar[int] = -1
    member_id: str = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValueV0:
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = False
    current_state_timestamp: ClassVar[int] = -1
    protocol_type: str = field(metadata=_STRING)
    generation: int = field(metadata=_INT32)
    protocol: str | None = field(metadata=_STRING, default=None)
    leader: str | None = field(metadata=_STRING, default=None)
    members: tuple[MemberMetadataV0, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadataV1:
    __flexible__: ClassVar[bool] = False
    group_instance_id: ClassVar[None] = None
    member_id: str = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    rebalance_timeout: int = field(metadata=_INT32, default=-1)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValueV1:
    __version__: ClassVar[int] = 1
    __flexible__: ClassVar[bool] = False
    current_state_timestamp: ClassVar[int] = -1
    protocol_type: str = field(metadata=_STRING)
    generation: int = field(metadata=_INT32)
    protocol: str | None = field(metadata=_STRING, default=None)
    leader: str | None = field(metadata=_STRING, default=None)
    members: tuple[MemberMetadataV1, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValueV2:
    __version__: ClassVar[int] = 2
    __flexible__: ClassVar[bool] = False
    protocol_type: str = field(metadata=_STRING)
    generation: int = field(metadata=_INT32)
    protocol: str | None = field(metadata=_STRING, default=None)
    leader: str | None = field(metadata=_STRING, default=None)
    current_state_timestamp: int = field(metadata=_INT64, default=-1)
    members: tuple[MemberMetadataV1, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadataV4:
    __flexible__: ClassVar[bool] = True
    member_id: str = field(metadata=_STRING)
    group_instance_id: str | None = field(metadata=_STRING, default=None)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    rebalance_timeout: int = field(metadata=_INT32, default=-1)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValueV4:
    __version__: ClassVar[int] = 4
    __flexible__: ClassVar[bool] = True
    protocol_type: str = field(metadata=_STRING)
    generation: int = field(metadata=_INT32)
    protocol: str | None = field(metadata=_STRING, default=None)
    leader: str | None = field(metadata=_STRING, default=None)
    current_state_timestamp: int = field(metadata=_INT64, default=-1)
    members: tuple[MemberMetadataV4, ...] = ()
