"""Tagged fields in which Produce and Fetch responses name the current leader (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.protocol.primitives import (
    write_compact_array_length,
    write_compact_nullable_string,
    write_compact_string,
)
from isotherm.types import BrokerId, LeaderEpoch

_LEADER = struct.Struct(">ii")
_INT32 = struct.Struct(">i")


class LeaderIdAndEpoch(NamedTuple):
    leader_id: BrokerId
    leader_epoch: LeaderEpoch


class NodeEndpoint(NamedTuple):
    node_id: BrokerId
    host: str
    port: int
    rack: str | None = None


def write_leader(leader: LeaderIdAndEpoch, out: bytearray) -> None:
    out += _LEADER.pack(leader.leader_id, leader.leader_epoch)
    out.append(0)


def write_node_endpoints(endpoints: Sequence[NodeEndpoint], out: bytearray) -> None:
    write_compact_array_length(len(endpoints), out)
    for endpoint in endpoints:
        out += _INT32.pack(endpoint.node_id)
        write_compact_string(endpoint.host, out)
        out += _INT32.pack(endpoint.port)
        write_compact_nullable_string(endpoint.rack, out)
        out.append(0)
