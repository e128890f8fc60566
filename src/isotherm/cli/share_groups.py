"""Share groups for `isotherm groups`, by requests that librdkafka lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_security import own_security
from isotherm.errors import BrokerUnreachableError, RejectedError, UnsupportedVersionError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name

_GROUP = 0  # FindCoordinator's key type
_UNKNOWN = -1


@contextmanager
def _client(bootstrap_server: str, properties: Mapping[str, str]) -> Iterator[ClusterClient | None]:
    """None if only librdkafka can log in, which knows no share groups.

    Raises BrokerUnreachableError and ConfigError.
    """
    every = {"bootstrap.servers": bootstrap_server, **properties}
    if own_security(every) is None:
        yield None
        return
    with closing(ClusterClient(every)) as client:
        yield client


def listed_share_groups(bootstrap_server: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The state of each share group. Empty in a cluster without share groups, and with a login that
    only librdkafka has.

    Raises BrokerUnreachableError if no broker answers, PeerDisconnectedError or PeerTimeoutError if
    one does not, RejectedError with a broker's error, and ConfigError.
    """
    with _client(bootstrap_server, properties) as client:
        if client is None:
            return {}
        try:
            return _listed(client)
        except UnsupportedVersionError:  # a broker before Kafka 4.0
            return {}


def _listed(client: ClusterClient) -> dict[str, str]:
    states: dict[str, str] = {}
    about_brokers = {
        "topics": (),
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    metadata = client.ask_any(ApiKey.METADATA, about_brokers, newest=12, oldest=12)
    for broker in metadata.brokers:
        address = NodeAddress(broker.host, broker.port)
        asked = {"states_filter": (), "types_filter": ("share",)}
        answer = client.ask(address, ApiKey.LIST_GROUPS, asked, newest=5, oldest=5)
        _check(answer.error_code, f"broker={address}")
        states.update((group.group_id, group.group_state.lower()) for group in answer.groups)
    return states


def share_group_rows(
    bootstrap_server: str, properties: Mapping[str, str], group: str
) -> list[dict[str, Any]] | None:
    """A row for each partition that the share group has a state of; None if there is no such share
    group, and with a login that only librdkafka has. Raises as `listed_share_groups`."""
    with _client(bootstrap_server, properties) as client:
        if client is None:
            return None
        try:
            return _described(client, group)
        except UnsupportedVersionError:
            return None


def _described(client: ClusterClient, group: str) -> list[dict[str, Any]] | None:
    asked = {"key_type": _GROUP, "coordinator_keys": (group,)}
    (found,) = client.ask_any(ApiKey.FIND_COORDINATOR, asked, newest=6, oldest=4).coordinators
    if found.error_code is not ErrorCode.none:
        raise BrokerUnreachableError(
            f"the group's coordinator is not available group={group}"
            f" error={code_name(found.error_code)}"
        )
    address = NodeAddress(found.host, found.port)
    described = client.ask(
        address,
        ApiKey.SHARE_GROUP_DESCRIBE,
        {"group_ids": (group,), "include_authorized_operations": False},
        newest=1,
        oldest=1,
    )
    code = described.groups[0].error_code
    if code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
        return None
    _check(code, f"group={group}")
    offsets = {"groups": ({"group_id": group, "topics": None},)}
    answer = client.ask(address, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, offsets, newest=1, oldest=1)
    (of_group,) = answer.groups
    _check(of_group.error_code, f"group={group}")
    return sorted(_rows(of_group), key=lambda row: (row["topic"], row["partition"]))


def _rows(group: Any) -> Iterator[dict[str, Any]]:
    for topic in group.topics:
        for entry in topic.partitions:
            _check(entry.error_code, f"partition={topic.topic_name}-{entry.partition_index}")
            yield {
                "topic": topic.topic_name,
                "partition": entry.partition_index,
                "start_offset": _told(entry.start_offset),
                "lag": _told(entry.lag),
            }


def _told(value: int) -> int | None:
    return None if value == _UNKNOWN else value


def _check(code: ErrorCode, place: str) -> None:
    if code is not ErrorCode.none:
        raise RejectedError(f"the broker refuses error={code_name(code)} {place}")
