"""Responses to ShareFetch, with a hand-written encoder: all bytes that share consumers read pass
here.

throttle_time_ms int32 | error int16 | message string | acquisition_lock_timeout_ms int32 |
[ topic id | [ partition int32 | error int16 | message string | acknowledge error int16 |
message string | current leader (leader_id int32, leader_epoch int32) | records |
[ first_offset int64, last_offset int64, delivery_count int16 ] ] ] | [ node endpoint ]

Versions 1 and 2, which are the same, and flexible; messages are null. A response contains the
caller's buffers of records, uncopied. Source: Kafka ShareFetchResponse.json.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.protocol.dialect import COMPACT
from isotherm.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint, write_node_endpoints
from isotherm.protocol.primitives import write_compact_nullable_string, write_uuid
from isotherm.types import Offset

_RESPONSE_START = struct.Struct(">ih")
_INT32 = struct.Struct(">i")
_PARTITION_START = struct.Struct(">ih")
_ERROR = struct.Struct(">h")
_LEADER = struct.Struct(">ii")
_ACQUIRED = struct.Struct(">qqh")

# The default of Kafka's schema, not "unknown".
NO_CURRENT_LEADER = LeaderIdAndEpoch(0, 0)


class ShareFetchPartitionResponse(NamedTuple):
    """`records` are written unchanged, one buffer after the other. The items of `acquired` are
    first offset, last offset (inclusive) and delivery count."""

    partition: int
    error_code: int = 0
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    records: Sequence[bytes | bytearray | memoryview] = ()
    acquired: Sequence[tuple[Offset, Offset, int]] = ()
    current_leader: LeaderIdAndEpoch = NO_CURRENT_LEADER


class ShareFetchTopicResponse(NamedTuple):
    topic_id: uuid.UUID | None
    partitions: Sequence[ShareFetchPartitionResponse]


class ShareFetchResponse(NamedTuple):
    topics: Sequence[ShareFetchTopicResponse]
    error_code: int = 0
    acquisition_lock_timeout_ms: int = 0
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()

    def without_records(self) -> ShareFetchResponse:
        """The response to a client that is over its quota."""
        return ShareFetchResponse((), 0, self.acquisition_lock_timeout_ms)


def write_response(
    response: ShareFetchResponse, head: bytearray
) -> list[bytes | bytearray | memoryview]:
    """Encode a response as buffers in order; the first is `head`, appended to."""
    buffers: list[bytes | bytearray | memoryview] = [head]
    out = head
    out += _RESPONSE_START.pack(response.throttle_time_ms, response.error_code)
    write_compact_nullable_string(None, out)
    out += _INT32.pack(response.acquisition_lock_timeout_ms)
    out += COMPACT.counts[len(response.topics)]
    for topic in response.topics:
        write_uuid(topic.topic_id, out)
        out += COMPACT.counts[len(topic.partitions)]
        for partition in topic.partitions:
            _write_partition_start(partition, out)
            # The records stand between two buffers of fields, so that they are not copied.
            if partition.records:
                buffers += partition.records
                out = bytearray()
                buffers.append(out)
            out += COMPACT.counts[len(partition.acquired)]
            for acquired in partition.acquired:
                out += _ACQUIRED.pack(*acquired)
                out += COMPACT.no_tags
            out += COMPACT.no_tags
        out += COMPACT.no_tags
    write_node_endpoints(response.node_endpoints, out)
    out += COMPACT.no_tags
    return buffers


def _write_partition_start(response: ShareFetchPartitionResponse, out: bytearray) -> None:
    """Write the fields before the records, including the size of the records."""
    out += _PARTITION_START.pack(response.partition, response.error_code)
    write_compact_nullable_string(None, out)
    out += _ERROR.pack(response.acknowledge_error_code)
    write_compact_nullable_string(response.acknowledge_error_message, out)
    out += _LEADER.pack(*response.current_leader)
    out += COMPACT.no_tags
    out += COMPACT.encode_count(sum(map(len, response.records)))
