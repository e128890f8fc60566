"""Share groups for `isotherm groups`, by requests that librdkafka lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_security import own_security
from isotherm.clock import SystemClock
from isotherm.errors import (
    BrokerUnreachableError,
    ConfigError,
    RejectedError,
    UnsupportedVersionError,
)
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.storage_view.share_deliveries import (
    GroupDeliveries,
    ShareDeliveries,
    read_share_deliveries,
)
from isotherm.storage_view.share_offsets import ShareOffset, read_share_offsets
from isotherm.types import Offset, TopicPartition

if TYPE_CHECKING:
    from isotherm.storage_view.in_flight import InFlight

_GROUP = 0  # FindCoordinator's key type


@contextmanager
def connected(bootstrap_server: str, properties: Mapping[str, str]) -> Iterator[ShareGroups]:
    """The share groups of a cluster, over connections that end with the context.

    Raises BrokerUnreachableError if no broker answers, and ConfigError.
    """
    every = {"bootstrap.servers": bootstrap_server, **properties}
    if own_security(every) is None:
        yield ShareGroups(None)
        return
    with closing(ClusterClient(every)) as client:
        yield ShareGroups(client)


class ShareGroups:
    """Every method raises BrokerUnreachableError if no broker answers, PeerDisconnectedError or
    PeerTimeoutError if one does not, and RejectedError with a broker's error."""

    def __init__(self, client: ClusterClient | None) -> None:
        """`client` is None if only librdkafka can log in, which has no requests of share groups."""
        self._client = client

    def states(self) -> dict[str, str]:
        """The state of each share group. Empty in a cluster without share groups, and with a login
        that only librdkafka has."""
        if self._client is None:
            return {}
        try:
            return _states(self._client)
        except UnsupportedVersionError:  # a broker before Kafka 4.0
            return {}

    def state(self, group: str) -> str | None:
        """The state of a share group; None if there is no such share group, and with a login that
        only librdkafka has."""
        if self._client is None:
            return None
        try:
            described = self._client.ask(
                _coordinator(self._client, group),
                ApiKey.SHARE_GROUP_DESCRIBE,
                {"group_ids": (group,), "include_authorized_operations": False},
                newest=1,
                oldest=1,
            )
        except UnsupportedVersionError:
            return None
        code = described.groups[0].error_code
        if code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
            return None
        _check(code, f"group={group}")
        return str(described.groups[0].group_state).lower()

    def offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """The partitions that a share group has a state of, by topic and partition."""
        client = self._used()
        read = read_share_offsets(client, _coordinator(client, group), [group])
        if read[group].error is not None:
            raise RejectedError(f"the broker refuses error={read[group].error} group={group}")
        for place, offset in read[group].by_partition.items():
            if offset.error is not None:
                raise RejectedError(
                    f"the broker refuses error={offset.error}"
                    f" partition={place.topic}-{place.partition} group={group}"
                )
        return dict(sorted(read[group].by_partition.items()))

    def deliveries(self, group: str, places: Collection[TopicPartition]) -> GroupDeliveries:
        """What became of the group's records in these partitions."""
        return read_share_deliveries(self._used(), SystemClock(), group, places)

    def set_start_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Let a share group without members begin at these offsets. A group that does not exist is
        created."""
        topics: dict[str, list[dict[str, int]]] = {}
        for partition, offset in offsets.items():
            entry = {"partition_index": partition.partition, "start_offset": offset}
            topics.setdefault(partition.topic, []).append(entry)
        answer = self._ask(
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            group,
            [{"topic_name": name, "partitions": entries} for name, entries in topics.items()],
        )
        for topic in answer.responses:
            for entry in topic.partitions:
                place = f"partition={topic.topic_name}-{entry.partition_index} group={group}"
                _check(entry.error_code, place, entry.error_message)

    def delete_offsets(self, group: str, topics: Sequence[str]) -> None:
        """Forget where a share group without members stands in these topics."""
        named = [{"topic_name": name} for name in topics]
        answer = self._ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, group, named)
        for topic in answer.responses:
            place = f"topic={topic.topic_name} group={group}"
            _check(topic.error_code, place, topic.error_message)

    def _ask(self, key: ApiKey, group: str, topics: Sequence[Mapping[str, Any]]) -> Any:
        client = self._used()
        fields = {"group_id": group, "topics": topics}
        answer = client.ask(_coordinator(client, group), key, fields, newest=0)
        _check(answer.error_code, f"group={group}", answer.error_message)
        return answer

    def _used(self) -> ClusterClient:
        if self._client is None:
            raise ConfigError(
                "requests of share groups cannot use this login"
                " hint='PLAIN, SCRAM, OAUTHBEARER or a certificate'"
            )
        return self._client


def share_rows(
    group: str,
    offsets: Mapping[TopicPartition, ShareOffset],
    deliveries: GroupDeliveries,
    in_flight: InFlight,
) -> list[dict[str, Any]]:
    """A row of each partition. Counts are None where they are unknown."""
    rows = []
    for place, offset in offsets.items():
        of_place = deliveries.by_partition.get(place)
        counts = dict.fromkeys(ShareDeliveries._fields) if of_place is None else of_place._asdict()
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "start_offset": offset.start_offset,
                "lag": offset.lag,
                "in_flight": in_flight.get((group, place)),
                **counts,
            }
        )
    return rows


def _states(client: ClusterClient) -> dict[str, str]:
    states: dict[str, str] = {}
    about_brokers = {
        "topics": (),
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    metadata = client.ask_any(ApiKey.METADATA, about_brokers, newest=12, oldest=12)
    for broker in metadata.brokers:
        address = NodeAddress(broker.host, broker.port)
        filters = {"states_filter": (), "types_filter": ("share",)}
        answer = client.ask(address, ApiKey.LIST_GROUPS, filters, newest=5, oldest=5)
        _check(answer.error_code, f"broker={address}")
        states.update((group.group_id, group.group_state.lower()) for group in answer.groups)
    return states


def _coordinator(client: ClusterClient, group: str) -> NodeAddress:
    keys = {"key_type": _GROUP, "coordinator_keys": (group,)}
    (broker,) = client.ask_any(ApiKey.FIND_COORDINATOR, keys, newest=6, oldest=4).coordinators
    if broker.error_code is not ErrorCode.none:
        raise BrokerUnreachableError(
            f"the group's coordinator is not available group={group}"
            f" error={code_name(broker.error_code)}"
        )
    return NodeAddress(broker.host, broker.port)


def _check(code: ErrorCode, place: str, message: str | None = None) -> None:
    if code is not ErrorCode.none:
        reason = f" message={message!r}" if message else ""
        raise RejectedError(f"the broker refuses error={code_name(code)} {place}{reason}")
