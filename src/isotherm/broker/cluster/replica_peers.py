"""Several read replicas share the partitions: each partition belongs to one of those that answer.

All replicas compute the same owner from the same ids, so they need not talk to each other
(rendezvous hashing). If one dies, only its partitions move. While two replicas disagree on who
answers, both serve: each has all partitions, and only Metadata says where to read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import ConfigError, RetriableError
from isotherm.types import BrokerId, TopicIdPartition

PROBE_TIMEOUT_S = 1.0
_RESPONSE_BYTES_MAX = 1024


def parse_peers(text: str) -> dict[BrokerId, NodeAddress]:
    """Parse `ID=HOST:PORT,ID=HOST:PORT`. Raises ConfigError."""
    peers: dict[BrokerId, NodeAddress] = {}
    for part in text.split(","):
        node_id, separator, address = part.strip().partition("=")
        if not separator or not node_id.isdecimal() or int(node_id) in peers:
            raise ConfigError(
                f"not replicas of different ids option=--peers value={text!r}"
                " expected=ID=HOST:PORT,ID=HOST:PORT"
            )
        peers[int(node_id)] = bootstrap_addresses(address)[0]
    return peers


def owner_of(place: TopicIdPartition, replicas: Collection[BrokerId]) -> BrokerId:
    """The replica that a partition belongs to. `replicas` is not empty."""
    partition = place.topic_id.bytes + place.partition.to_bytes(4, "big")

    def weight(replica: BrokerId) -> tuple[bytes, BrokerId]:
        key = partition + replica.to_bytes(8, "big")
        return hashlib.blake2b(key, digest_size=8).digest(), replica

    return max(replicas, key=weight)


def answering(peers: Mapping[BrokerId, NodeAddress]) -> dict[BrokerId, NodeAddress]:
    """The peers that accept a connection now. Takes at most PROBE_TIMEOUT_S."""
    if not peers:
        return {}
    with ThreadPoolExecutor(len(peers), thread_name_prefix="isotherm-peers") as pool:
        accepted = dict(zip(peers, pool.map(_accepts, peers.values()), strict=True))
    return {node_id: address for node_id, address in peers.items() if accepted[node_id]}


def _accepts(address: NodeAddress) -> bool:
    connection = NodeConnection(
        address,
        client_id="isotherm-replica",
        connect_timeout_s=PROBE_TIMEOUT_S,
        request_timeout_s=PROBE_TIMEOUT_S,
        response_bytes_max=_RESPONSE_BYTES_MAX,
    )
    try:
        connection.open()
    except RetriableError:
        return False
    finally:
        connection.close()
    return True
