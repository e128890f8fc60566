"""Reads the members of one group from its coordinator, with one request. Source: KIP-848 for
ConsumerGroupDescribe, KIP-932 for ShareGroupDescribe, ConsumerProtocol.java for the assignments of
the classic protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.embedded_protocol import read_assignment
from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import CoordinatorNotAvailableError, RejectedError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.protocol.errors import ProtocolError
from isotherm.types import TopicPartition

_CONSUMER, _CLASSIC = "consumer", ("classic", "")
_SHARE = "share"
_CONSUMER_DESCRIBE_VERSION = 1
_CLASSIC_DESCRIBE_VERSION = 5
_SHARE_DESCRIBE_VERSION = 1
_CONSUMER_PROTOCOL = "consumer"
_MOVED = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


class GroupPlace(NamedTuple):
    """A group, its type, and the broker that coordinates it."""

    group_id: str
    kind: str
    coordinator: NodeAddress


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. `awaited` are the partitions that it is still to get; they are another
    member's. `assigned` is None if the assignment is not that of a consumer, as with Connect."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...] | None
    awaited: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a group in the order of their client ids. `assignor` is empty if the group has
    none now."""

    assignor: str
    members: tuple[Member, ...]


def read_members(client: ClusterClient, group: GroupPlace) -> GroupMembers:
    """The members of a group. Raises as `ClusterClient.ask`; CoordinatorNotAvailableError if
    another broker coordinates the group now, and RejectedError if the broker refuses, or if groups
    of this type have other requests."""
    kind = group.kind.lower()
    if kind == _CONSUMER:
        described = _described(client, group, ApiKey.CONSUMER_GROUP_DESCRIBE)
        return GroupMembers(described.assignor_name, _sorted(map(_consumer, described.members)))
    if kind == _SHARE:
        described = _described(client, group, ApiKey.SHARE_GROUP_DESCRIBE)
        return GroupMembers(described.assignor_name, _sorted(map(_share, described.members)))
    if kind not in _CLASSIC:
        raise RejectedError(
            f"the console does not show members of this type of group type={kind}"
            f" hint='kafka-{kind}-groups.sh --describe --members --group {group.group_id}'"
        )
    described = _described(client, group, ApiKey.DESCRIBE_GROUPS)
    of_consumers = described.protocol_type == _CONSUMER_PROTOCOL
    return GroupMembers(
        described.protocol_data,
        _sorted(_classic(member, of_consumers=of_consumers) for member in described.members),
    )


def _described(client: ClusterClient, group: GroupPlace, api: ApiKey) -> Any:
    fields: dict[str, Any] = {"include_authorized_operations": False}
    if api is ApiKey.CONSUMER_GROUP_DESCRIBE:
        fields["group_ids"], newest = [group.group_id], _CONSUMER_DESCRIBE_VERSION
    elif api is ApiKey.SHARE_GROUP_DESCRIBE:
        fields["group_ids"], newest = [group.group_id], _SHARE_DESCRIBE_VERSION
    else:
        fields["groups"], newest = [group.group_id], _CLASSIC_DESCRIBE_VERSION
    (described,) = client.ask(group.coordinator, api, fields, newest=newest).groups
    if described.error_code is ErrorCode.none:
        return described
    reason = code_name(described.error_code)
    kind = CoordinatorNotAvailableError if described.error_code in _MOVED else RejectedError
    raise kind(
        f"a broker does not describe a group group={group.group_id} peer={group.coordinator}"
        f" reason={reason}"
    )


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))


def _consumer(member: Any) -> Member:
    assigned = _places(member.assignment)
    held = set(assigned)
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        _host(member),
        assigned,
        tuple(place for place in _places(member.target_assignment) if place not in held),
    )


def _share(member: Any) -> Member:
    """Members of a share group have the same partitions as others."""
    assigned = _places(member.assignment)
    return Member(member.member_id, None, member.client_id, _host(member), assigned)


def _places(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, partition)
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        )
    )


def _classic(member: Any, *, of_consumers: bool) -> Member:
    assigned = None
    if of_consumers:
        try:
            assigned = tuple(sorted(read_assignment(member.member_assignment)))
        except ProtocolError:
            assigned = None  # another client's own form, which only its group's leader can read
    return Member(
        member.member_id,
        getattr(member, "group_instance_id", None),
        member.client_id,
        _host(member),
        assigned,
    )


def _host(member: Any) -> str:
    """Kafka writes addresses as Java does: /127.0.0.1."""
    return str(member.client_host).removeprefix("/")
