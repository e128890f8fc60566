"""Elects leaders by raw requests to a cluster's brokers: the JVM of Kafka's tools takes longer
than the move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of

PREFERRED = 0
ANSWER_BYTES_MAX = 1 << 20
# A broker that is paused is passed over, and one that is slow is not.
TIMEOUT_S = 60


def elect_leader(servers: str, topic: str, partition: int, replicas: Sequence[int]) -> bool:
    """Make the partition's first replica its leader; return whether the controller did so.

    The set of replicas stays as it is. ConnectionError if none of the servers answers.
    """
    place = {"partition_index": partition, "replicas": tuple(replicas)}
    _send(
        servers,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        {"topics": [{"name": topic, "partitions": [place]}]},
    )
    answer = _send(
        servers,
        ApiKey.ELECT_LEADERS,
        2,
        {
            "election_type": PREFERRED,
            "topic_partitions": [{"topic": topic, "partitions": (partition,)}],
        },
    )
    codes = {
        each.error_code
        for result in answer.replica_election_results
        for each in result.partition_result
    }
    return bool(codes) and codes <= {ErrorCode.none, ErrorCode.election_not_needed}


def _send(servers: str, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    """Send a request to the first broker that answers; return the answer."""
    request = entity_of(request_class(key, version), fields)
    lost: Exception | None = None
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        connection = NodeConnection(
            NodeAddress(host, int(port)),
            client_id="leader-moves",
            connect_timeout_s=TIMEOUT_S,
            request_timeout_s=TIMEOUT_S,
            response_bytes_max=ANSWER_BYTES_MAX,
        )
        try:
            return connection.send(request)
        except (PeerDisconnectedError, PeerTimeoutError) as error:
            lost = error
        finally:
            connection.close()
    raise ConnectionError(f"no broker answers servers={servers}") from lost
