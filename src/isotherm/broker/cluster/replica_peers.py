"""Several read replicas share the partitions: each partition belongs to one of those that answer.

All replicas compute the same owner from the same ids, so they need not talk to each other
(rendezvous hashing). If one dies, only its partitions move. A consumer that names its rack is sent
to the owner among the replicas of that rack (KIP-392, docs/decisions/0302). While two replicas
disagree on who answers, both serve: each has all partitions, and only Metadata says where to read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import ConfigError, RetriableError
from isotherm.types import BrokerId, TopicIdPartition

PROBE_TIMEOUT_S = 1.0
_RESPONSE_BYTES_MAX = 1024


class Peer(NamedTuple):
    """A replica as clients reach it. Without a rack it is in none that a consumer names."""

    address: NodeAddress
    rack: str | None = None


def parse_peers(text: str) -> dict[BrokerId, Peer]:
    """Parse `ID=HOST:PORT@RACK,ID=HOST:PORT`. Raises ConfigError."""
    peers: dict[BrokerId, Peer] = {}
    for part in text.split(","):
        node_id, separator, address = part.strip().partition("=")
        address, has_rack, rack = address.partition("@")
        is_named = bool(rack) or not has_rack
        if not (separator and node_id.isdecimal() and is_named) or int(node_id) in peers:
            raise ConfigError(
                f"not replicas of different ids option=--peers value={text!r}"
                " expected=ID=HOST:PORT,ID=HOST:PORT or ID=HOST:PORT@RACK"
            )
        peers[int(node_id)] = Peer(bootstrap_addresses(address)[0], rack or None)
    return peers


def owner_of(place: TopicIdPartition, replicas: Collection[BrokerId]) -> BrokerId:
    """The replica that a partition belongs to. `replicas` is not empty."""
    partition = place.topic_id.bytes + place.partition.to_bytes(4, "big")

    def weight(replica: BrokerId) -> tuple[bytes, BrokerId]:
        key = partition + replica.to_bytes(8, "big")
        return hashlib.blake2b(key, digest_size=8).digest(), replica

    return max(replicas, key=weight)


def answering(peers: Mapping[BrokerId, Peer]) -> dict[BrokerId, Peer]:
    """The peers that accept a connection now. Takes at most PROBE_TIMEOUT_S."""
    if not peers:
        return {}
    with ThreadPoolExecutor(len(peers), thread_name_prefix="isotherm-peers") as pool:
        addresses = [peer.address for peer in peers.values()]
        accepted = dict(zip(peers, pool.map(_accepts, addresses), strict=True))
    return {node_id: peer for node_id, peer in peers.items() if accepted[node_id]}


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
