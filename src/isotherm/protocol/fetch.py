"""Fetch requests and responses, with hand-written codecs: all bytes that consumers read pass here.

Requests   replica_id int32, until v14 | max_wait_ms int32 | min_bytes int32 | max_bytes int32 |
           isolation_level int8 | v7 session_id int32, session_epoch int32 |
           [ topic name, or from v13 topic id | [ partition int32 | v9 current_leader_epoch int32 |
           fetch_offset int64 | v12 last_fetched_epoch int32 | v5 log_start_offset int64 |
           partition_max_bytes int32 | v17 tag 0 replica directory id | v18 tag 1 high watermark ] ]
           | v7 [ forgotten topic | [ partition int32 ] ] | v11 rack_id string |
           v12 tag 0 cluster id | v15 tag 1 replica state (replica_id int32, replica_epoch int64)
Responses  throttle_time_ms int32 | v7 error int16, session_id int32 | [ topic | [ partition int32 |
           error int16 | high_watermark int64 | last_stable_offset int64 | v5 log_start_offset int64
           | nullable [ producer_id int64, first_offset int64 ] | v11 preferred_read_replica int32 |
           records | v12 tag 0 diverging epoch, 1 current leader, 2 snapshot id ] ] |
           v16 tag 0 node endpoints

Versions 4 to 18, flexible from 12. Fields that only followers and quorum replicas use (replica
directory id, the follower's high watermark, cluster id, snapshot id) are skipped.

A response contains the caller's buffers of records, uncopied. Source: Kafka FetchRequest.json,
FetchResponse.json.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from isotherm.protocol.dialect import COMPACT, LEGACY, Dialect
from isotherm.protocol.leader_hints import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    write_leader,
    write_node_endpoints,
)
from isotherm.protocol.primitives import (
    Buffer,
    read_tag_header,
    read_topic_id,
    read_unsigned_varint,
    spend_elements,
    topic_id_of,
    write_tagged_field,
    write_unsigned_varint,
    write_uuid,
)
from isotherm.types import BrokerId, LeaderEpoch, Offset, ProducerId, make_tuple

P = TypeVar("P")
T = TypeVar("T")

FIRST_FLEXIBLE_VERSION = 12
FIRST_TOPIC_ID_VERSION = 13
FIRST_REPLICA_STATE_VERSION = 15

CONSUMER_REPLICA_ID = -1
NO_REPLICA: BrokerId = -1
"""The preferred replica of a response whose consumer stays at this broker."""

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_ERROR_AND_SESSION = struct.Struct(">hi")
_REPLICA_STATE_TAG = 1
_REPLICA_STATE = struct.Struct(">iq")
_ABORTED_TRANSACTION = struct.Struct(">qq")
_EPOCH_END_OFFSET = struct.Struct(">iq")


class FetchPartition(NamedTuple):
    partition: int
    fetch_offset: Offset
    partition_max_bytes: int
    current_leader_epoch: LeaderEpoch = -1
    last_fetched_epoch: LeaderEpoch = -1
    log_start_offset: Offset = -1


class FetchTopic(NamedTuple):
    """`name` is None from version 13 on; `topic_id` identifies the topic there."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[int]


class FetchRequest(NamedTuple):
    replica_id: BrokerId
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics: list[ForgottenTopic]
    rack_id: str
    replica_epoch: int = -1


class EpochEndOffset(NamedTuple):
    epoch: LeaderEpoch
    end_offset: Offset


class FetchPartitionResponse(NamedTuple):
    """`records` are written unchanged, one buffer after the other; None is sent as empty.

    `aborted_transactions` is None for read_uncommitted. Its items are pairs of producer id and
    first offset.
    """

    partition: int
    error_code: int = 0
    high_watermark: Offset = -1
    last_stable_offset: Offset = -1
    log_start_offset: Offset = -1
    aborted_transactions: Sequence[tuple[ProducerId, Offset]] | None = None
    records: Sequence[bytes | bytearray | memoryview] = ()
    preferred_read_replica: BrokerId = NO_REPLICA
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None


class FetchTopicResponse(NamedTuple):
    """Name and id as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: Sequence[FetchPartitionResponse]


class FetchResponse(NamedTuple):
    topics: Sequence[FetchTopicResponse]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()

    def without_records(self) -> FetchResponse:
        """The response to a client that is over its quota."""
        return FetchResponse((), session_id=self.session_id)


def _dialect(version: int) -> Dialect:
    return COMPACT if version >= FIRST_FLEXIBLE_VERSION else LEGACY


def _partition_reader(
    version: int, dialect: Dialect
) -> Callable[[Buffer, int], tuple[FetchPartition, int]]:
    """Reads the fields up to partition_max_bytes. Fields that a version lacks get defaults."""
    has_tags, skip_tags = dialect.flexible, dialect.skip_tags
    if version >= 12:
        layout = struct.Struct(">iiqiqi")
    elif version >= 9:
        layout = struct.Struct(">iiqqi")
    else:
        layout = struct.Struct(">iqqi" if version >= 5 else ">iqi")

    def read(buffer: Buffer, position: int) -> tuple[FetchPartition, int]:
        values = layout.unpack_from(buffer, position)
        leader_epoch = last_fetched_epoch = log_start_offset = -1
        if version >= 12:
            partition, leader_epoch, offset, last_fetched_epoch, log_start_offset, size = values
        elif version >= 9:
            partition, leader_epoch, offset, log_start_offset, size = values
        elif version >= 5:
            partition, offset, log_start_offset, size = values
        else:
            partition, offset, size = values
        fetch_partition = FetchPartition(
            partition, offset, size, leader_epoch, last_fetched_epoch, log_start_offset
        )
        position += layout.size
        if has_tags:
            position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
        return fetch_partition, position

    return read


def _read_partition_index(buffer: Buffer, position: int) -> tuple[int, int]:
    (partition,) = _INT32.unpack_from(buffer, position)
    return partition, position + 4


def _topics_reader(
    version: int,
    dialect: Dialect,
    make_topic: Callable[[str | None, uuid.UUID | None, list[P]], T],
    read_partition: Callable[[Buffer, int], tuple[P, int]],
    partition_size_min: int,
) -> Callable[[Buffer, int], tuple[list[T], int]]:
    """Reads an array of topics, each with an array of partitions."""
    has_tags, has_topic_ids = dialect.flexible, version >= FIRST_TOPIC_ID_VERSION
    read_count, skip_tags = dialect.read_count, dialect.skip_tags

    def read(buffer: Buffer, position: int) -> tuple[list[T], int]:
        # A topic takes at least 3 bytes: name, array and tags of one byte each.
        topic_count, position = read_count(buffer, position, 3)
        topics = []
        for _ in range(topic_count):
            name = topic_id = None
            if has_topic_ids:
                topic_id, position = read_topic_id(buffer, position)
            else:
                name, position = dialect.read_string(buffer, position)
            count, position = read_count(buffer, position, partition_size_min)
            partitions = []
            for _ in range(count):
                partition, position = read_partition(buffer, position)
                partitions.append(partition)
            if has_tags:
                position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
            topics.append(make_topic(name, topic_id, partitions))
        return topics, position

    return read


def _read_replica_state(buffer: Buffer, position: int) -> tuple[BrokerId, int, int]:
    """The replica's id and epoch among the request's tagged fields, and the position after them."""
    replica_id, replica_epoch = CONSUMER_REPLICA_ID, -1
    count, position = read_unsigned_varint(buffer, position)
    spend_elements(count)
    for _ in range(count):
        tag, start, position = read_tag_header(buffer, position)
        if tag == _REPLICA_STATE_TAG:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(buffer[start:position])
    return replica_id, replica_epoch, position


def _plain_request_reader(
    nothing_more: bytes,
) -> tuple[int, Callable[[Buffer, int], FetchRequest | None]]:
    """The size of a consumer's request for one partition and nothing else, from version 15 on, and
    a reader of requests of that size: most of one that keeps up. None for any other request.
    """
    # One item, as a compact count, and the absent tags of partition and topic.
    one, no_tags = 2, b"\0\0"
    layout = struct.Struct(f">iiibiiB16sBiiqiqi{len(no_tags) + len(nothing_more)}s")
    expected = no_tags + nothing_more

    def read(buffer: Buffer, position: int) -> FetchRequest | None:
        (
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
            topic_count,
            topic_id,
            partition_count,
            partition,
            leader_epoch,
            offset,
            last_fetched_epoch,
            log_start_offset,
            size,
            rest,
        ) = layout.unpack_from(buffer, position)
        if topic_count != one or partition_count != one or rest != expected:
            return None
        fetched = FetchPartition(
            partition, offset, size, leader_epoch, last_fetched_epoch, log_start_offset
        )
        return make_tuple(
            FetchRequest,
            (
                CONSUMER_REPLICA_ID,
                max_wait_ms,
                min_bytes,
                max_bytes,
                isolation_level,
                session_id,
                session_epoch,
                [make_tuple(FetchTopic, (None, topic_id_of(topic_id), [fetched]))],
                [],
                "",
                -1,
            ),
        )

    return layout.size, read


def request_reader(version: int) -> Callable[[Buffer, int], tuple[FetchRequest, int]]:
    """A function that reads a request, and returns it with the position after it.

    It raises ProtocolError or one of `codec.MALFORMED`.
    """
    dialect = _dialect(version)
    has_replica_state = version >= FIRST_REPLICA_STATE_VERSION
    layout = struct.Struct(
        (">" if has_replica_state else ">i") + "iiib" + ("ii" if version >= 7 else "")
    )
    # 16 bytes is a partition of version 4, the smallest.
    read_topics = _topics_reader(
        version, dialect, FetchTopic, _partition_reader(version, dialect), 16
    )
    read_forgotten = _topics_reader(version, dialect, ForgottenTopic, _read_partition_index, 4)
    # No forgotten topics, no rack, no tags.
    nothing_more = b""
    if version >= 7:
        nothing_more += dialect.no_items
    if version >= 11:
        nothing_more += dialect.empty_string
    nothing_more += dialect.no_tags
    plain_size, read_plain = _plain_request_reader(nothing_more)

    def read(buffer: Buffer, position: int) -> tuple[FetchRequest, int]:
        if has_replica_state and len(buffer) - position == plain_size:
            plain = read_plain(buffer, position)
            if plain is not None:
                return plain, len(buffer)
        values = list(layout.unpack_from(buffer, position))
        replica_id = CONSUMER_REPLICA_ID if has_replica_state else values.pop(0)
        max_wait_ms, min_bytes, max_bytes, isolation_level, *session = values
        session_id, session_epoch = session or (0, -1)
        topics, position = read_topics(buffer, position + layout.size)
        forgotten: list[ForgottenTopic] = []
        rack_id, replica_epoch = "", -1
        end = position + len(nothing_more)
        if buffer[position:end] == nothing_more:  # most requests
            position = end
        else:
            if version >= 7:
                forgotten, position = read_forgotten(buffer, position)
            if version >= 11:
                rack_id, position = dialect.read_string(buffer, position)
            if has_replica_state:
                replica_id, replica_epoch, position = _read_replica_state(buffer, position)
            else:
                position = dialect.skip_tags(buffer, position)
        request = FetchRequest(
            replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation_level,
            session_id,
            session_epoch,
            topics,
            forgotten,
            rack_id,
            replica_epoch,
        )
        return request, position

    return read


def response_writer(
    version: int,
) -> Callable[[FetchResponse, bytearray], list[bytes | bytearray | memoryview]]:
    """A function that encodes a response as buffers in order; the first is `head`, appended to.

    The partitions' records are passed on without a copy.
    """
    dialect = _dialect(version)
    counts = dialect.counts

    def write(response: FetchResponse, head: bytearray) -> list[bytes | bytearray | memoryview]:
        buffers: list[bytes | bytearray | memoryview] = [head]
        out = head
        out += _INT32.pack(response.throttle_time_ms)
        if version >= 7:
            out += _ERROR_AND_SESSION.pack(response.error_code, response.session_id)
        out += counts[len(response.topics)]
        for topic in response.topics:
            if version >= FIRST_TOPIC_ID_VERSION:
                write_uuid(topic.topic_id, out)
            else:
                assert topic.name is not None
                dialect.write_string(topic.name, out)
            out += counts[len(topic.partitions)]
            for partition in topic.partitions:
                _write_partition_start(partition, version, dialect, out)
                # The records stand between two buffers of fields, so that they are not copied.
                if partition.records:
                    buffers += partition.records
                    out = bytearray()
                    buffers.append(out)
                if partition.diverging_epoch is None and partition.current_leader is None:
                    out += dialect.no_tags
                elif version >= FIRST_FLEXIBLE_VERSION:
                    _write_partition_tags(partition, out)
            out += dialect.no_tags
        if version >= 16 and response.node_endpoints:
            out.append(1)
            write_tagged_field(0, write_node_endpoints, response.node_endpoints, out)
        else:
            out += dialect.no_tags
        return buffers

    return write


_PARTITION_START = struct.Struct(">ihqq")


def _write_partition_start(
    response: FetchPartitionResponse, version: int, dialect: Dialect, out: bytearray
) -> None:
    """Write the fields before the records, including the size of the records."""
    out += _PARTITION_START.pack(
        response.partition,
        response.error_code,
        response.high_watermark,
        response.last_stable_offset,
    )
    if version >= 5:
        out += _INT64.pack(response.log_start_offset)
    aborted = response.aborted_transactions
    if aborted is None:
        out += dialect.no_array
    else:
        out += dialect.counts[len(aborted)]
        for producer_id, first_offset in aborted:
            out += _ABORTED_TRANSACTION.pack(producer_id, first_offset)
            out += dialect.no_tags
    if version >= 11:
        out += _INT32.pack(response.preferred_read_replica)
    out += dialect.encode_count(sum(map(len, response.records)))


def _write_epoch_end_offset(value: EpochEndOffset, out: bytearray) -> None:
    out += _EPOCH_END_OFFSET.pack(*value)
    out.append(0)


def _write_partition_tags(response: FetchPartitionResponse, out: bytearray) -> None:
    """Write the tagged fields of a response that has some."""
    write_unsigned_varint(
        (response.diverging_epoch is not None) + (response.current_leader is not None), out
    )
    if response.diverging_epoch is not None:
        write_tagged_field(0, _write_epoch_end_offset, response.diverging_epoch, out)
    if response.current_leader is not None:
        write_tagged_field(1, write_leader, response.current_leader, out)
