"""The state of a cluster with thousands of topics. Its broker is scripted, and refuses what a
broker refuses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import PeerDisconnectedError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.framing import REQUEST_ELEMENTS_MAX
from isotherm.storage_view.cluster_reader import read_cluster


def elements(fields: object) -> int:
    """The number of elements in all arrays, at any depth."""
    if isinstance(fields, Mapping):
        return sum(map(elements, fields.values()))
    if isinstance(fields, list | tuple):
        return len(fields) + sum(map(elements, fields))
    return 0


class ScriptedClient:
    """A broker whose partition p ends at offset p + 1. A topic's name ends with its
    segment.bytes."""

    def __init__(self, topics: int, partitions: int) -> None:
        self._topics = {f"topic-{1000 + number}": range(partitions) for number in range(topics)}

    def ask_any(self, api: ApiKey, fields: Mapping[str, Any], *, newest: int) -> Any:
        return self.ask(NodeAddress("broker", 9092), api, fields, newest=newest)

    def ask(
        self,
        _: NodeAddress,
        api: ApiKey,
        fields: Mapping[str, Any],
        *,
        newest: int,
        oldest: int = 0,
    ) -> Any:
        if elements(fields) > REQUEST_ELEMENTS_MAX:
            raise PeerDisconnectedError("it was closed")
        return {
            ApiKey.METADATA: self._metadata,
            ApiKey.DESCRIBE_CONFIGS: self._configs,
            ApiKey.LIST_OFFSETS: self._offsets,
            ApiKey.DESCRIBE_LOG_DIRS: self._log_dirs,
        }[api](fields)

    def _metadata(self, _: Mapping[str, Any]) -> Any:
        return SimpleNamespace(
            cluster_id="cluster",
            controller_id=1,
            brokers=[SimpleNamespace(node_id=1, host="broker", port=9092, rack=None)],
            topics=[
                SimpleNamespace(
                    name=name,
                    topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name),
                    is_internal=False,
                    partitions=[
                        SimpleNamespace(
                            partition_index=number,
                            leader_id=1,
                            leader_epoch=0,
                            replica_nodes=[1],
                            isr_nodes=[1],
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in self._topics.items()
            ],
        )

    def _log_dirs(self, _: Mapping[str, Any]) -> Any:
        return SimpleNamespace(results=[])

    def _configs(self, fields: Mapping[str, Any]) -> Any:
        names = [each["resource_name"] for each in fields["resources"]]
        return SimpleNamespace(
            results=[
                SimpleNamespace(
                    resource_name=name,
                    error_code=ErrorCode.none,
                    configs=[SimpleNamespace(name="segment.bytes", value=name.partition("-")[2])],
                )
                for name in names
            ]
        )

    def _offsets(self, fields: Mapping[str, Any]) -> Any:
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic["name"],
                    partitions=[
                        SimpleNamespace(
                            partition_index=each["partition_index"],
                            offset=each["partition_index"] + 1,
                            error_code=ErrorCode.none,
                        )
                        for each in topic["partitions"]
                    ],
                )
                for topic in fields["topics"]
            ]
        )


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "partitions"), [(3000, 1), (1, 20_000), (0, 1)])
def test_every_topic_of_a_large_cluster_has_settings_and_offsets(
    topics: int, partitions: int
) -> None:
    client = cast("ClusterClient", ScriptedClient(topics, partitions))
    found = read_cluster(client, lambda _: True)
    assert len(found.topics) == topics
    for topic in found.topics:
        assert topic.tier_settings.segment_bytes == int(topic.name.partition("-")[2])
        for state in topic.partitions:
            assert state.local is not None, state.error
            assert state.local.high_watermark == state.partition.partition + 1


def test_settings_that_the_client_may_not_read_are_unknown() -> None:
    """A broker answers with an error and no settings. The topic seemed to be not tiered."""

    class Refusing(ScriptedClient):
        def _configs(self, fields: Mapping[str, Any]) -> Any:
            code = ErrorCode.topic_authorization_failed
            names = [resource["resource_name"] for resource in fields["resources"]]
            return SimpleNamespace(
                results=[
                    SimpleNamespace(resource_name=name, error_code=code, configs=[])
                    for name in names
                ]
            )

    (topic,) = read_cluster(cast("ClusterClient", Refusing(1, 1)), lambda _: True).topics
    assert topic.settings_error == "TOPIC_AUTHORIZATION_FAILED"
    assert topic.partitions[0].local is not None
    client = cast("ClusterClient", ScriptedClient(1, 1))
    assert read_cluster(client, lambda _: True).topics[0].settings_error is None


def test_disks_that_the_client_may_not_see_are_unknown() -> None:
    """A broker answers with an error and no directories. All local bytes seemed to be 0."""

    class Refusing(ScriptedClient):
        def _log_dirs(self, _: Mapping[str, Any]) -> Any:
            return SimpleNamespace(results=[], error_code=ErrorCode.cluster_authorization_failed)

    (topic,) = read_cluster(cast("ClusterClient", Refusing(1, 1)), lambda _: True).topics
    assert topic.partitions[0].local is not None
    assert topic.partitions[0].disks_error == "CLUSTER_AUTHORIZATION_FAILED"
    client = cast("ClusterClient", ScriptedClient(1, 1))
    assert read_cluster(client, lambda _: True).topics[0].partitions[0].disks_error is None
