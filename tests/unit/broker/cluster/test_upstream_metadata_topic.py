"""The ends of a metadata topic in another cluster. The cluster is a model: a leader for each
partition, which answers for its own partitions alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.cluster import upstream_metadata_topic
from isotherm.broker.cluster.upstream_metadata_topic import UpstreamMetadataTopic
from isotherm.errors import PeerDisconnectedError
from isotherm.protocol.api_keys import ApiKey

PARTITIONS = 6
LEADERS = 2


class Cluster:
    """Partition n is led by node n % LEADERS, and ends at 10 * n."""

    def __init__(self) -> None:
        self.errors: dict[int, ErrorCode] = {}
        self.lost: set[int] = set()
        self.requests: list[int] = []

    def ask_any(self, key: ApiKey, fields: Mapping[str, Any], **versions: int) -> Any:
        assert key is ApiKey.METADATA
        partitions = [
            SimpleNamespace(partition_index=number, leader_id=number % LEADERS)
            for number in range(PARTITIONS)
        ]
        brokers = [
            SimpleNamespace(node_id=number, host="broker", port=number) for number in range(LEADERS)
        ]
        topic = SimpleNamespace(error_code=ErrorCode.none, partitions=partitions)
        return SimpleNamespace(topics=[topic], brokers=brokers)

    def ask(self, leader: Any, key: ApiKey, fields: Mapping[str, Any], **versions: int) -> Any:
        assert key is ApiKey.LIST_OFFSETS
        self.requests.append(leader.port)
        if leader.port in self.lost:
            raise PeerDisconnectedError("gone")
        (topic,) = fields["topics"]
        listed = []
        for item in topic["partitions"]:
            number = item["partition_index"]
            assert number % LEADERS == leader.port, "only a leader answers"
            error = self.errors.get(number, ErrorCode.none)
            offset = 10 * number if error is ErrorCode.none else -1
            listed.append(SimpleNamespace(partition_index=number, error_code=error, offset=offset))
        return SimpleNamespace(topics=[SimpleNamespace(partitions=listed)])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(
        upstream_metadata_topic, "ClusterClient", lambda properties, client_id: cluster
    )
    return cluster


def test_ends_take_a_request_to_each_leader(cluster: Cluster) -> None:
    topic = UpstreamMetadataTopic({})
    assert topic.end_offsets(range(PARTITIONS)) == {n: 10 * n for n in range(PARTITIONS)}
    assert sorted(cluster.requests) == [0, 1]
    assert topic.end_offsets([3, 5]) == {3: 30, 5: 50}
    assert len(cluster.requests) == 3


def test_ends_lack_what_cannot_be_read(cluster: Cluster) -> None:
    topic = UpstreamMetadataTopic({})
    cluster.errors[2] = ErrorCode.not_leader_or_follower
    cluster.lost = {1}
    assert topic.end_offsets(range(PARTITIONS)) == {0: 0, 4: 40}
    cluster.lost = set()
    cluster.errors = {}
    assert set(topic.end_offsets(range(PARTITIONS))) == set(range(PARTITIONS))
