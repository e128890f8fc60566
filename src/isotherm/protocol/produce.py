"""Produce requests and responses, with hand-written codecs: all produced bytes pass here.

Requests   transactional_id nullable string | acks int16 | timeout_ms int32 |
           [ topic name string, or from v13 topic id uuid | [ partition int32 | records ] ]
Responses  [ topic | [ partition int32 | error int16 | base_offset int64 | log_append_time_ms
           int64 | v5 log_start_offset int64 | v8 record errors, error message | v10 tag 0 current
           leader ] ] | throttle_time_ms int32 | v10 tag 0 node endpoints

Versions 3 to 13, flexible from 9. Versions not named here changed the meaning, not the layout: 7
allows zstd, 11 and 12 belong to newer transaction protocols.

Records are memoryviews into the frame. Source: Kafka ProduceRequest.json, ProduceResponse.json.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.errors import RecordFault
from isotherm.protocol.dialect import COMPACT, LEGACY, Dialect
from isotherm.protocol.leader_hints import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    write_leader,
    write_node_endpoints,
)
from isotherm.protocol.primitives import Buffer, read_topic_id, write_tagged_field, write_uuid
from isotherm.types import NO_TIMESTAMP, Offset, TimestampMs

FIRST_FLEXIBLE_VERSION = 9
FIRST_TOPIC_ID_VERSION = 13

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_PARTITION_RESPONSE = struct.Struct(">ihqq")
_PARTITION_RESPONSE_V5 = struct.Struct(">ihqqq")


class ProducePartition(NamedTuple):
    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """`name` is None from version 13 on; `topic_id` identifies the topic there."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProducePartitionResponse(NamedTuple):
    partition: int
    error_code: int = 0
    base_offset: Offset = -1
    log_append_time_ms: TimestampMs = NO_TIMESTAMP
    log_start_offset: Offset = -1
    record_errors: Sequence[RecordFault] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


class ProduceTopicResponse(NamedTuple):
    """Name and id as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: Sequence[ProducePartitionResponse]


class ProduceResponse(NamedTuple):
    topics: Sequence[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def _dialect(version: int) -> Dialect:
    return COMPACT if version >= FIRST_FLEXIBLE_VERSION else LEGACY


def request_reader(version: int) -> Callable[[Buffer, int], tuple[ProduceRequest, int]]:
    """A function that reads a request, and returns it with the position after it.

    It raises ProtocolError or one of `codec.MALFORMED`. Records are views into the buffer, not validated.
    """
    dialect = _dialect(version)
    read_records, read_count, skip_tags = (
        dialect.read_records,
        dialect.read_count,
        dialect.skip_tags,
    )
    has_tags = dialect.flexible
    has_topic_ids = version >= FIRST_TOPIC_ID_VERSION

    def read_topic(buffer: Buffer, position: int) -> tuple[ProduceTopic, int]:
        name = topic_id = None
        if has_topic_ids:
            topic_id, position = read_topic_id(buffer, position)
        else:
            name, position = dialect.read_string(buffer, position)
        count, position = read_count(buffer, position, 5)
        partitions = []
        for _ in range(count):
            (partition,) = _INT32.unpack_from(buffer, position)
            records, position = read_records(buffer, position + 4)
            partitions.append(ProducePartition(partition, records))
            if has_tags:
                position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
        if has_tags:
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
        return ProduceTopic(name, topic_id, partitions), position

    def read(buffer: Buffer, position: int) -> tuple[ProduceRequest, int]:
        transactional_id, position = dialect.read_nullable_string(buffer, position)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(buffer, position)
        count, position = read_count(buffer, position + _ACKS_AND_TIMEOUT.size, 3)
        topics = []
        for _ in range(count):
            topic, position = read_topic(buffer, position)
            topics.append(topic)
        if has_tags:
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
        return ProduceRequest(transactional_id, acks, timeout_ms, topics), position

    return read


def response_writer(version: int) -> Callable[[ProduceResponse, bytearray], None]:
    """A function that appends a response to a buffer."""
    dialect = _dialect(version)
    no_tags, counts = dialect.no_tags, dialect.counts

    def write(response: ProduceResponse, out: bytearray) -> None:
        out += counts[len(response.topics)]
        for topic in response.topics:
            if version >= FIRST_TOPIC_ID_VERSION:
                write_uuid(topic.topic_id, out)
            else:
                assert topic.name is not None
                dialect.write_string(topic.name, out)
            out += counts[len(topic.partitions)]
            for partition in topic.partitions:
                _write_partition_response(partition, version, dialect, out)
            out += no_tags
        out += _INT32.pack(response.throttle_time_ms)
        if version >= 10 and response.node_endpoints:
            out.append(1)
            write_tagged_field(0, write_node_endpoints, response.node_endpoints, out)
        else:
            out += no_tags

    return write


def _write_partition_response(
    response: ProducePartitionResponse, version: int, dialect: Dialect, out: bytearray
) -> None:
    fields = response.partition, response.error_code, response.base_offset
    if version < 5:
        out += _PARTITION_RESPONSE.pack(*fields, response.log_append_time_ms)
        return
    out += _PARTITION_RESPONSE_V5.pack(
        *fields, response.log_append_time_ms, response.log_start_offset
    )
    if version >= 8 and not response.record_errors and response.error_message is None:
        out += dialect.no_items + dialect.no_string
    elif version >= 8:
        dialect.write_count(len(response.record_errors), out)
        for record_error in response.record_errors:
            out += _INT32.pack(record_error.batch_index)
            dialect.write_nullable_string(record_error.message, out)
            out += dialect.no_tags
        dialect.write_nullable_string(response.error_message, out)
    if version >= 10 and response.current_leader is not None:
        out.append(1)
        write_tagged_field(0, write_leader, response.current_leader, out)
    else:
        out += dialect.no_tags
