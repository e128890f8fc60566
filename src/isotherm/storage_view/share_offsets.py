"""Reads the start offsets and lags of share groups from their coordinator. Source: KIP-932 for
DescribeShareGroupOffsets, KIP-1226 for the lag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.types import Offset, TopicPartition

GROUPS_PER_REQUEST = 100
_NEWEST_VERSION = 1  # 0 has no lag
_UNKNOWN = -1


class ShareOffset(NamedTuple):
    """Where a share group stands in one partition.

    Records below `start_offset` are never delivered again. `lag` counts the records from there on
    whose delivery is not over: those that members have are among them. Both are None before the
    first records are delivered, and if the broker has not read the end of the log, for the reason
    `error`. A broker before Kafka 4.2 reports no lag.
    """

    start_offset: Offset | None
    lag: int | None
    error: str | None = None


class ShareOffsets(NamedTuple):
    """The partitions that a share group has a state of; `error` is the reason if they are
    unknown."""

    by_partition: Mapping[TopicPartition, ShareOffset]
    error: str | None = None


def read_share_offsets(
    client: ClusterClient, coordinator: NodeAddress, group_ids: Sequence[str]
) -> dict[str, ShareOffsets]:
    """The offsets of share groups of one coordinator, by group id. Raises as
    `ClusterClient.ask`."""
    offsets: dict[str, ShareOffsets] = {}
    for first in range(0, len(group_ids), GROUPS_PER_REQUEST):
        some = group_ids[first : first + GROUPS_PER_REQUEST]
        answer = client.ask(
            coordinator,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            {"groups": [{"group_id": group_id, "topics": None} for group_id in some]},
            newest=_NEWEST_VERSION,
        )
        for group in answer.groups:
            by_partition = {
                TopicPartition(topic.topic_name, entry.partition_index): _offset(entry)
                for topic in group.topics
                for entry in topic.partitions
            }
            offsets[group.group_id] = ShareOffsets(by_partition, _reason(group.error_code))
    return offsets


def _offset(entry: Any) -> ShareOffset:
    error = _reason(entry.error_code)
    if error is not None:
        return ShareOffset(None, None, error)
    return ShareOffset(_given(entry.start_offset), _given(getattr(entry, "lag", _UNKNOWN)))


def _given(value: int) -> int | None:
    return None if value == _UNKNOWN else value


def _reason(error: ErrorCode) -> str | None:
    return None if error is ErrorCode.none else code_name(error)
