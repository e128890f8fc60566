"""ShareFetch requests and responses, with hand-written codecs: all bytes that share consumers read
pass here.

Requests   group_id string | member_id string | share_session_epoch int32 | max_wait_ms int32 |
           min_bytes int32 | max_bytes int32 | max_records int32 | batch_size int32 |
           v2 share_acquire_mode int8, is_renew_ack bool | [ topic id | [ partition int32 |
           [ first_offset int64, last_offset int64, [ acknowledge type int8 ] ] ] ] |
           [ forgotten topic id | [ partition int32 ] ]
Responses  throttle_time_ms int32 | error int16 | message string | acquisition_lock_timeout_ms int32
           | [ topic id | [ partition int32 | error int16 | message string | acknowledge error int16
           | message string | current leader (leader_id int32, leader_epoch int32) | records | [
           first_offset int64, last_offset int64, delivery_count int16 ] ] ] | [ node endpoint ]

Versions 1 and 2, flexible. The responses are the same in both; their messages are null. A response
contains the caller's buffers of records, uncopied. Source: Kafka ShareFetchRequest.json,
ShareFetchResponse.json.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.protocol.dialect import COMPACT
from isotherm.protocol.leader_hints import LeaderIdAndEpoch, NodeEndpoint, write_node_endpoints
from isotherm.protocol.primitives import (
    Buffer,
    read_compact_count,
    read_compact_nullable_string,
    read_topic_id,
    skip_tagged_fields,
    write_compact_nullable_string,
    write_uuid,
)
from isotherm.types import Offset

FIRST_MODE_VERSION = 2

_OFFSETS = struct.Struct(">qq")
_RESPONSE_START = struct.Struct(">ih")
_INT32 = struct.Struct(">i")
_PARTITION_START = struct.Struct(">ih")
_ERROR = struct.Struct(">h")
_LEADER = struct.Struct(">ii")
_ACQUIRED = struct.Struct(">qqh")

# The default of Kafka's schema, not "unknown".
NO_CURRENT_LEADER = LeaderIdAndEpoch(0, 0)


class AcknowledgementBatch(NamedTuple):
    """`acknowledge_types` has one for the whole range, or one for each offset, as bytes."""

    first_offset: Offset
    last_offset: Offset
    acknowledge_types: bytes


class ShareFetchPartition(NamedTuple):
    partition_index: int
    acknowledgement_batches: Sequence[AcknowledgementBatch]


class ShareFetchTopic(NamedTuple):
    topic_id: uuid.UUID | None
    partitions: Sequence[ShareFetchPartition]


class ForgottenShareTopic(NamedTuple):
    topic_id: uuid.UUID | None
    partitions: Sequence[int]


class ShareFetchRequest(NamedTuple):
    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    topics: Sequence[ShareFetchTopic]
    forgotten_topics_data: Sequence[ForgottenShareTopic]
    share_acquire_mode: int = 0
    is_renew_ack: bool = False


def request_reader(version: int) -> Callable[[Buffer, int], tuple[ShareFetchRequest, int]]:
    """A function that reads a request, and returns it with the position after it.

    It raises ProtocolError or one of `codec.MALFORMED`.
    """
    has_mode = version >= FIRST_MODE_VERSION
    layout = struct.Struct(">iiiiii" + ("b?" if has_mode else ""))

    def read(buffer: Buffer, position: int) -> tuple[ShareFetchRequest, int]:
        group_id, position = read_compact_nullable_string(buffer, position)
        member_id, position = read_compact_nullable_string(buffer, position)
        epoch, max_wait_ms, min_bytes, max_bytes, max_records, batch_size, *mode = (
            layout.unpack_from(buffer, position)
        )
        topics, position = _read_topics(buffer, position + layout.size)
        forgotten, position = _read_forgotten(buffer, position)
        share_acquire_mode, is_renew_ack = mode or (0, False)
        request = ShareFetchRequest(
            group_id,
            member_id,
            epoch,
            max_wait_ms,
            min_bytes,
            max_bytes,
            max_records,
            batch_size,
            topics,
            forgotten,
            share_acquire_mode,
            is_renew_ack,
        )
        return request, skip_tagged_fields(buffer, position)

    return read


def _read_topics(buffer: Buffer, position: int) -> tuple[list[ShareFetchTopic], int]:
    # A topic takes at least 18 bytes: id, array and tags. A partition takes 6.
    topic_count, position = read_compact_count(buffer, position, 18)
    topics = []
    for _ in range(topic_count):
        topic_id, position = read_topic_id(buffer, position)
        count, position = read_compact_count(buffer, position, 6)
        partitions = []
        for _ in range(count):
            (partition,) = _INT32.unpack_from(buffer, position)
            batches, position = _read_acknowledgements(buffer, position + 4)
            position = skip_tagged_fields(buffer, position)
            partitions.append(ShareFetchPartition(partition, batches))
        position = skip_tagged_fields(buffer, position)
        topics.append(ShareFetchTopic(topic_id, partitions))
    return topics, position


def _read_acknowledgements(buffer: Buffer, position: int) -> tuple[list[AcknowledgementBatch], int]:
    # Offsets, array and tags take 18 bytes.
    batch_count, position = read_compact_count(buffer, position, 18)
    batches = []
    for _ in range(batch_count):
        first_offset, last_offset = _OFFSETS.unpack_from(buffer, position)
        count, position = read_compact_count(buffer, position + _OFFSETS.size, 1)
        types, position = bytes(buffer[position : position + count]), position + count
        position = skip_tagged_fields(buffer, position)
        batches.append(AcknowledgementBatch(first_offset, last_offset, types))
    return batches, position


def _read_forgotten(buffer: Buffer, position: int) -> tuple[list[ForgottenShareTopic], int]:
    topic_count, position = read_compact_count(buffer, position, 18)
    topics = []
    for _ in range(topic_count):
        topic_id, position = read_topic_id(buffer, position)
        count, position = read_compact_count(buffer, position, 4)
        partitions = list(struct.unpack_from(f">{count}i", buffer, position))
        position = skip_tagged_fields(buffer, position + 4 * count)
        topics.append(ForgottenShareTopic(topic_id, partitions))
    return topics, position


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
