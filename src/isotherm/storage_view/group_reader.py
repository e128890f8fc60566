"""Reads the groups of a cluster and their committed offsets, with one request to each broker for
its groups, and one for the offsets of each hundred groups, or of each hundred share groups. Source:
KIP-709 for OffsetFetch of several groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import CoordinatorNotAvailableError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.storage_view.share_offsets import ShareOffset, read_share_offsets
from isotherm.types import Offset, TopicPartition

SHARE = "share"
GROUPS_PER_REQUEST = 100
_LIST_GROUPS_VERSION = 5
_OFFSET_FETCH_VERSION = 8  # the first for several groups; a later one names topics by id


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group. `state` and `kind` are the broker's terms, empty if its release does not report
    them. `error` is the reason if the offsets are unknown. `coordinator` listed the group. `share`
    has the partitions of a share group, and `committed` their start offsets; it is None for other
    groups."""

    group_id: str
    state: str
    kind: str
    committed: Mapping[TopicPartition, Offset]
    error: str | None = None
    coordinator: NodeAddress | None = None
    share: Mapping[TopicPartition, ShareOffset] | None = None


def read_groups(client: ClusterClient, brokers: Iterable[NodeAddress]) -> list[GroupState]:
    """All groups, by group id. Raises as `ClusterClient.ask`, and CoordinatorNotAvailableError
    while a broker is still loading its groups."""
    groups = [group for address in brokers for group in _groups_of(client, address)]
    return sorted(groups, key=lambda group: group.group_id)


def _groups_of(client: ClusterClient, address: NodeAddress) -> list[GroupState]:
    """The groups that a broker coordinates."""
    answer = client.ask(address, ApiKey.LIST_GROUPS, {}, newest=_LIST_GROUPS_VERSION)
    if answer.error_code is not ErrorCode.none:
        raise CoordinatorNotAvailableError(
            f"a broker does not list its groups peer={address} reason={_reason(answer.error_code)}"
        )
    share = [group for group in answer.groups if _kind(group).lower() == SHARE]
    groups = _with_share_offsets(client, address, share) if share else []
    listed = [group for group in answer.groups if _kind(group).lower() != SHARE]
    for first in range(0, len(listed), GROUPS_PER_REQUEST):
        some = listed[first : first + GROUPS_PER_REQUEST]
        groups += _with_offsets(client, address, some)
    return groups


def _with_share_offsets(
    client: ClusterClient, address: NodeAddress, listed: Sequence[Any]
) -> list[GroupState]:
    offsets = read_share_offsets(client, address, [group.group_id for group in listed])
    return [
        GroupState(
            group.group_id,
            group.group_state,
            _kind(group),
            {
                place: offset.start_offset
                for place, offset in offsets[group.group_id].by_partition.items()
                if offset.start_offset is not None
            },
            offsets[group.group_id].error,
            address,
            offsets[group.group_id].by_partition,
        )
        for group in listed
    ]


def _kind(listed: Any) -> str:
    return str(getattr(listed, "group_type", ""))


def _with_offsets(
    client: ClusterClient, address: NodeAddress, listed: Sequence[Any]
) -> list[GroupState]:
    answer = client.ask(
        address,
        ApiKey.OFFSET_FETCH,
        {"groups": [{"group_id": group.group_id, "topics": None} for group in listed]},
        newest=_OFFSET_FETCH_VERSION,
        oldest=_OFFSET_FETCH_VERSION,
    )
    offsets = {group.group_id: group for group in answer.groups}
    return [
        GroupState(
            group.group_id,
            getattr(group, "group_state", ""),
            _kind(group),
            _committed(offsets[group.group_id]),
            _reason(offsets[group.group_id].error_code),
            address,
        )
        for group in listed
    ]


def _committed(group: Any) -> dict[TopicPartition, Offset]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.committed_offset
        for topic in group.topics
        for partition in topic.partitions
        if partition.error_code is ErrorCode.none and partition.committed_offset >= 0
    }


def _reason(error: ErrorCode) -> str | None:
    return None if error is ErrorCode.none else code_name(error)
