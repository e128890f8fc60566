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
from isotherm.record.batch_header import BatchHeader, peek_header
from isotherm.types import NO_TIMESTAMP, Offset, TimestampMs

FIRST_FLEXIBLE_VERSION = 9
FIRST_TOPIC_ID_VERSION = 13

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_PARTITION_RESPONSE = struct.Struct(">ihqq")
_PARTITION_RESPONSE_V5 = struct.Struct(">ihqqq")


class ProducePartition(NamedTuple):
    """`header` is that of the batch with which the records begin, as the client sent it and
    unchecked; None if they are too short for one."""

    partition: int
    records: memoryview | None
    header: BatchHeader | None

    @classmethod
    def of(cls, partition: int, records: memoryview | None) -> ProducePartition:
        return cls(partition, records, None if records is None else peek_header(records))


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

    It raises ProtocolError or one of `codec.MALFORMED`. Records are views into the buffer, not
    validated. The header of each batch is read here, and nowhere again on the way into the log.
    """
    dialect = _dialect(version)
    read_records, read_count, skip_tags = (
        dialect.read_records,
        dialect.read_count,
        dialect.skip_tags,
    )
    has_tags = dialect.flexible
    has_topic_ids = version >= FIRST_TOPIC_ID_VERSION

    def read(buffer: Buffer, position: int) -> tuple[ProduceRequest, int]:
        transactional_id, position = dialect.read_nullable_string(buffer, position)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(buffer, position)
        # A topic takes at least 3 bytes (name, array and tags), a partition
        # 5 (its number and a null).
        topic_count, position = read_count(buffer, position + _ACKS_AND_TIMEOUT.size, 3)
        topics = []
        for _ in range(topic_count):
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
                # As `ProducePartition.of`, without its call (docs/decisions/0136).
                header = None if records is None else peek_header(records)
                partitions.append(ProducePartition(partition, records, header))
                if has_tags:
                    has_none = buffer[position] == 0
                    position = position + 1 if has_none else skip_tags(buffer, position)
            if has_tags:
                position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
            topics.append(ProduceTopic(name, topic_id, partitions))
        if has_tags:
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
        return ProduceRequest(transactional_id, acks, timeout_ms, topics), position

    return read


def response_writer(version: int) -> Callable[[ProduceResponse, bytearray], None]:
    """A function that appends a response to a buffer."""
    dialect = _dialect(version)
    no_tags, counts = dialect.no_tags, dialect.counts
    layout, field_count = (_PARTITION_RESPONSE_V5, 5) if version >= 5 else (_PARTITION_RESPONSE, 4)
    # No errors of records, no message, no leader.
    nothing_more = (dialect.no_items + dialect.no_string if version >= 8 else b"") + no_tags

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
                out += layout.pack(*partition[:field_count])
                if partition[5:] == _PLAIN:
                    out += nothing_more
                else:
                    _write_partition_details(partition, version, dialect, out)
            out += no_tags
        out += _INT32.pack(response.throttle_time_ms)
        if version >= 10 and response.node_endpoints:
            out.append(1)
            write_tagged_field(0, write_node_endpoints, response.node_endpoints, out)
        else:
            out += no_tags

    return write


_PLAIN = ProducePartitionResponse(0)[5:]


def _write_partition_details(
    response: ProducePartitionResponse, version: int, dialect: Dialect, out: bytearray
) -> None:
    if version >= 8:
        out += dialect.counts[len(response.record_errors)]
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
