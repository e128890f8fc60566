"""The replica fetchers of this broker: up to num.replica.fetchers threads per leader.

Source: Kafka ReplicaFetcherManager, AbstractFetcherManager.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.replication.leader_endpoint import (
    LeaderEndpoint,
    RequestVersions,
)
from isotherm.broker.partitions.replication.replica_fetcher import (
    FetcherContext,
    FollowedPartition,
    ReplicaFetcher,
)
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import PLAINTEXT, NodeSecurity
from isotherm.config.replication import ReplicationConfig
from isotherm.types import BrokerId, Offset, TopicPartition

logger = logging.getLogger(__name__)

_RESPONSE_OVERHEAD_MAX = 1024 * 1024
"""Bytes of a response apart from its records."""


class LeaderToFetch(NamedTuple):
    """A partition to fetch, its leader, and the leader's inter-broker endpoint."""

    partition: FollowedPartition
    leader: BrokerId
    endpoint: Endpoint


# The address belongs to the key: a leader that has registered at another one gets a new fetcher,
# as in Kafka's addFetcherForPartitions.
class _FetcherKey(NamedTuple):
    leader: BrokerId
    address: NodeAddress
    fetcher_id: int


Connect = Callable[[NodeAddress, str], LeaderEndpoint]
"""Makes the `LeaderEndpoint` at an address, for a client id. It connects on the first call."""


class ReplicaFetcherManager:
    """Thread-safe."""

    def __init__(self, context: FetcherContext, connect: Connect) -> None:
        self._context = context
        self._connect = connect
        # Taken before the lock of a fetcher. A fetcher calls nothing of its manager.
        self._lock = threading.Lock()
        self._fetchers_per_leader = context.config.num_replica_fetchers
        self._fetchers: dict[_FetcherKey, ReplicaFetcher] = {}
        self._ending: list[ReplicaFetcher] = []
        self._is_stopped = False

    def add(self, fetches: Iterable[LeaderToFetch]) -> None:
        """Fetch each partition from its leader, in the partition's current leader epoch.

        The caller first removes a partition that another fetcher fetches.
        """
        with self._lock:
            if self._is_stopped:
                return
            self._add(
                (
                    fetch.leader,
                    NodeAddress(fetch.endpoint.host, fetch.endpoint.port),
                    fetch.partition,
                )
                for fetch in fetches
            )

    def _add(self, fetches: Iterable[tuple[BrokerId, NodeAddress, FollowedPartition]]) -> None:
        grouped: dict[_FetcherKey, list[FollowedPartition]] = {}
        for leader, address, partition in fetches:
            fetcher_id = self._fetcher_id(partition.topic_id_partition.topic_partition)
            grouped.setdefault(_FetcherKey(leader, address, fetcher_id), []).append(partition)
        for key, partitions in grouped.items():
            self._fetcher(key).add(partitions)

    def resize(self, fetchers_per_leader: int) -> None:
        """Redistribute the partitions over this many fetchers per leader.

        The effect is that of `remove` and `add`: the old fetcher finishes an append in progress.
        Failed partitions continue to wait for a new leader epoch.
        """
        with self._lock:
            if self._is_stopped or fetchers_per_leader == self._fetchers_per_leader:
                return
            self._fetchers_per_leader = fetchers_per_leader
            # Under the lock throughout: `_add` would bring back a partition that was removed.
            moved = []
            for key, fetcher in list(self._fetchers.items()):
                followed = fetcher.followed
                moved += [(key.leader, key.address, partition) for partition in followed]
                # All are removed before one is added: only one thread may append to a log.
                self._remove(
                    key,
                    fetcher,
                    [partition.topic_id_partition.topic_partition for partition in followed],
                )
            self._add(moved)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. After the return nothing more is appended to them.

        A fetcher without partitions ends. One with failed partitions stays: it still reports them.
        """
        removed = list(partitions)
        with self._lock:
            for key, fetcher in list(self._fetchers.items()):
                self._remove(key, fetcher, removed)

    def _remove(
        self, key: _FetcherKey, fetcher: ReplicaFetcher, partitions: list[TopicPartition]
    ) -> None:
        fetcher.remove(partitions)
        if not fetcher.followed and not fetcher.failed_partitions:
            fetcher.stop()
            self._ending.append(self._fetchers.pop(key))
        # Not joined here: a fetcher may still wait for its leader, and the caller holds the lock.
        self._ending = [
            replica_fetcher for replica_fetcher in self._ending if not replica_fetcher.join(0)
        ]

    def stop(self, timeout_s: float) -> bool:
        """End all threads; returns whether they ended within `timeout_s`.

        Nothing is fetched afterwards.
        """
        with self._lock:
            self._is_stopped = True
            fetchers = [*self._fetchers.values(), *self._ending]
            self._fetchers, self._ending = {}, []
        # Without the lock: metrics take it, and a late fetcher would hold them up.
        for fetcher in fetchers:
            fetcher.stop()
        deadline_s = self._context.clock.monotonic_s() + timeout_s
        late = [
            fetcher.name
            for fetcher in fetchers
            if not fetcher.join(max(0.0, deadline_s - self._context.clock.monotonic_s()))
        ]
        if late:
            logger.warning("replica fetchers have not ended in time fetchers=%s", late)
        return not late

    def lags(self) -> dict[TopicPartition, Offset]:
        """See `ReplicaFetcher.lags`."""
        return {place: lag for fetcher in self._all() for place, lag in fetcher.lags().items()}

    def failed_partitions(self) -> frozenset[TopicPartition]:
        return frozenset().union(*(fetcher.failed_partitions for fetcher in self._all()))

    def _all(self) -> list[ReplicaFetcher]:
        with self._lock:
            return list(self._fetchers.values())

    def _fetcher_id(self, place: TopicPartition) -> int:
        # A partition gets the same fetcher at every start. Python's hash of strings differs per
        # process.
        return (zlib.crc32(place.topic.encode()) + place.partition) % self._fetchers_per_leader

    def _fetcher(self, key: _FetcherKey) -> ReplicaFetcher:
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            client_id = f"broker-{self._context.broker_id}-fetcher-{key.fetcher_id}"
            fetcher = self._fetchers[key] = ReplicaFetcher(
                f"isotherm-replica-fetcher-{key.fetcher_id}-{key.leader}",
                self._connect(key.address, client_id),
                self._context,
            )
            fetcher.start()
        return fetcher


def connect_to_leaders(
    config: ReplicationConfig,
    *,
    broker_id: BrokerId,
    broker_epoch: Callable[[], int],
    metadata_version: Callable[[], int],
    batch_bytes_max: int,
    security: NodeSecurity = PLAINTEXT,
) -> Connect:
    """Makes leaders that are reached over TCP. `broker_epoch` and `metadata_version` are called per
    request.

    `batch_bytes_max` is the largest batch. A response may exceed replica.fetch.response.max.bytes
    by it, because a leader sends the first batch even if it is larger.
    """
    response_bytes_max = (
        max(config.replica_fetch_response_max_bytes, batch_bytes_max) + _RESPONSE_OVERHEAD_MAX
    )

    def connect(address: NodeAddress, client_id: str) -> LeaderEndpoint:
        timeout_s = config.replica_socket_timeout_ms / 1000
        connection = NodeConnection(
            address,
            client_id=client_id,
            connect_timeout_s=timeout_s,
            request_timeout_s=timeout_s,
            response_bytes_max=response_bytes_max,
            security=security,
        )
        return LeaderEndpoint(
            connection,
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            versions=lambda: RequestVersions.of(metadata_version()),
        )

    return connect
