"""Encodes the fetch requests of a follower, and decodes their responses.

It is the other direction of `protocol.fetch`, which has the layouts, from version 13 on (topic
ids). A response's records are memoryviews into the received buffer, neither copied nor decoded.

A follower sets no cluster id, directory id or high watermark. It skips a response's aborted
transactions, which only consumers get, its preferred replica, snapshot ids and node endpoints.
Source: Kafka FetchRequest.json, FetchResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from isotherm.protocol.codec import guarded
from isotherm.protocol.fetch import (
    FIRST_REPLICA_STATE_VERSION,
    FIRST_TOPIC_ID_VERSION,
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.protocol.leader_hints import LeaderIdAndEpoch
from isotherm.protocol.primitives import (
    Buffer,
    read_compact_array_length,
    read_compact_nullable_slice,
    read_tag_header,
    read_unsigned_varint,
    read_uuid,
    skip_tagged_fields,
    spend_elements,
    write_compact_array_length,
    write_compact_string,
    write_tagged_field,
    write_uuid,
)

_INT32 = struct.Struct(">i")
_LIMITS_AND_SESSION = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqi")
_REPLICA_STATE_TAG = 1
_REPLICA_STATE = struct.Struct(">iq")

_RESPONSE_START = struct.Struct(">ihi")
_PARTITION_START = struct.Struct(">ihqqq")
_TRANSACTION_SIZE = 16
_DIVERGING_EPOCH_TAG = 0
_CURRENT_LEADER_TAG = 1
_EPOCH_END_OFFSET = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")

# The smallest sizes of items: with them the received bytes bound an array's count.
_TOPIC_SIZE_MIN = 18
_PARTITION_SIZE_MIN = _PARTITION_START.size + 7


class _ReplicaState(NamedTuple):
    replica_id: int
    replica_epoch: int


def request_writer(version: int) -> Callable[[FetchRequest, int, bytearray], None]:
    """A function that appends a request to a buffer. Its arguments are the request, the broker
    epoch of its sender, and the buffer. Topics are named by their ids.
    """
    assert version >= FIRST_TOPIC_ID_VERSION
    has_replica_state = version >= FIRST_REPLICA_STATE_VERSION

    def write(request: FetchRequest, replica_epoch: int, out: bytearray) -> None:
        if not has_replica_state:
            out += _INT32.pack(request.replica_id)
        out += _LIMITS_AND_SESSION.pack(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
        )
        write_compact_array_length(len(request.topics), out)
        for topic in request.topics:
            write_uuid(topic.topic_id, out)
            write_compact_array_length(len(topic.partitions), out)
            for partition in topic.partitions:
                out += _PARTITION.pack(
                    partition.partition,
                    partition.current_leader_epoch,
                    partition.fetch_offset,
                    partition.last_fetched_epoch,
                    partition.log_start_offset,
                    partition.partition_max_bytes,
                )
                out.append(0)
            out.append(0)
        write_compact_array_length(len(request.forgotten_topics), out)
        for forgotten in request.forgotten_topics:
            write_uuid(forgotten.topic_id, out)
            write_compact_array_length(len(forgotten.partitions), out)
            for index in forgotten.partitions:
                out += _INT32.pack(index)
            out.append(0)
        write_compact_string(request.rack_id, out)
        if has_replica_state:
            out.append(1)
            state = _ReplicaState(request.replica_id, replica_epoch)
            write_tagged_field(_REPLICA_STATE_TAG, _write_replica_state, state, out)
        else:
            out.append(0)

    return write


def _write_replica_state(state: _ReplicaState, out: bytearray) -> None:
    out += _REPLICA_STATE.pack(*state)
    out.append(0)


def response_reader(version: int) -> Callable[[Buffer, int], tuple[FetchResponse, int]]:
    """A function that reads a response, and returns it with the position after it.

    It raises ProtocolError for malformed bytes.
    """
    assert version >= FIRST_TOPIC_ID_VERSION
    return guarded(_read_response, f"FetchResponse version={version}")


def _read_response(buffer: Buffer, position: int) -> tuple[FetchResponse, int]:
    throttle_time_ms, error_code, session_id = _RESPONSE_START.unpack_from(buffer, position)
    position += _RESPONSE_START.size
    topics = []
    count, position = read_compact_array_length(buffer, position, _TOPIC_SIZE_MIN)
    for _ in range(count or 0):
        topic, position = _read_topic(buffer, position)
        topics.append(topic)
    position = skip_tagged_fields(buffer, position)
    return FetchResponse(topics, error_code, session_id, throttle_time_ms), position


def _read_topic(buffer: Buffer, position: int) -> tuple[FetchTopicResponse, int]:
    topic_id, position = read_uuid(buffer, position)
    partitions = []
    count, position = read_compact_array_length(buffer, position, _PARTITION_SIZE_MIN)
    for _ in range(count or 0):
        partition, position = _read_partition(buffer, position)
        partitions.append(partition)
    position = skip_tagged_fields(buffer, position)
    return FetchTopicResponse(None, topic_id, partitions), position


def _read_partition(buffer: Buffer, position: int) -> tuple[FetchPartitionResponse, int]:
    partition, error_code, high_watermark, last_stable_offset, log_start_offset = (
        _PARTITION_START.unpack_from(buffer, position)
    )
    position += _PARTITION_START.size
    aborted, position = read_compact_array_length(buffer, position, _TRANSACTION_SIZE + 1)
    for _ in range(aborted or 0):
        position = skip_tagged_fields(buffer, position + _TRANSACTION_SIZE)
    (preferred_read_replica,) = _INT32.unpack_from(buffer, position)
    records, position = read_compact_nullable_slice(buffer, position + _INT32.size)
    diverging, leader, position = _read_partition_tags(buffer, position)
    response = FetchPartitionResponse(
        partition,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        None,
        (records,) if records else (),
        preferred_read_replica,
        diverging,
        leader,
    )
    return response, position


def _read_partition_tags(
    buffer: Buffer, position: int
) -> tuple[EpochEndOffset | None, LeaderIdAndEpoch | None, int]:
    diverging = leader = None
    count, position = read_unsigned_varint(buffer, position)
    spend_elements(count)
    for _ in range(count):
        tag, start, position = read_tag_header(buffer, position)
        if tag == _DIVERGING_EPOCH_TAG:
            diverging = EpochEndOffset(*_EPOCH_END_OFFSET.unpack_from(buffer[start:position]))
        elif tag == _CURRENT_LEADER_TAG:
            leader = LeaderIdAndEpoch(*_LEADER.unpack_from(buffer[start:position]))
    return diverging, leader, position
