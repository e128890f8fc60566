"""Produce requests that repeat an earlier one of their connection, but for the records.

A producer sends one request after the other to the same partitions. Of a request with one batch for
one partition only the correlation id, the records and their size differ from the one before. So the
first is decoded, handled and answered as any other (`produce`), and remembered; a later one with
equal bytes before its records has equal fields. Its batch is appended, and the answer is that of
the first with other offsets. This takes a quarter off the broker's CPU time for a batch of 16 KiB
(docs/decisions/0308).

    api_key, version | correlation_id | beginning ...... | size | records | no tags (flexible)
    equal            | any            | equal            | any  | any     | equal

Whatever is not plain is left to `produce`, before anything has changed: another beginning, a batch
that is transactional or large, a partition that is gone or has to wait for replicas or a flush, and
each batch that the log refuses. With an authorizer or while quotas are in force nothing is
repeated. Event loop thread only.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.broker.apis.batch_checks import (
    FIRST_ZSTD_VERSION,
    LOOP_SIZE_MAX,
    WRITTEN_BY_BROKER_ALONE,
    size_bound,
)
from isotherm.broker.partitions.partition import ACKS_ALL, ACKS_LEADER
from isotherm.config.definition import LONG_MAX
from isotherm.errors import IsothermError
from isotherm.protocol.codec import MALFORMED
from isotherm.protocol.framing import version_codec
from isotherm.protocol.primitives import read_unsigned_varint
from isotherm.protocol.produce import (
    FIRST_FLEXIBLE_VERSION,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from isotherm.record.batch_header import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    peek_header,
)
from isotherm.record.compression import CompressionType

if TYPE_CHECKING:
    from isotherm.broker.partitions.partition import Partition
    from isotherm.broker.server.net.connection import Answer
    from isotherm.broker.server.requests.context import BrokerServices, RequestContext
    from isotherm.metrics.broker_traffic import TopicTraffic

RequestKind: TypeAlias = "tuple[int, int]"

# The first version whose answer has the log start offset behind the other two.
_FIRST_VERSION = 5
# Of each connection: librdkafka sends a request for each partition. With more, all are forgotten.
REPEATED_MAX = 128

_CORRELATION_ID = slice(4, 8)
_BEGINNING_POSITION = 8
_RECORDS_SIZE = struct.Struct(">i")
_OFFSETS = struct.Struct(">qqq")
# Nothing else in an answer has these bytes.
_MARKED_OFFSETS = (-0x0102030405060708, -0x1112131415161718, -0x2122232425262728)
# The tags of partition, topic and request.
_NO_TAGS = b"\0\0\0"


class _Repeated:
    """What requests with an equal beginning have in common. `answer` is that to one of them, and
    has its offsets at `offsets_position`."""

    __slots__ = ("acks", "answer", "kind", "offsets_position", "partition", "traffic")

    def __init__(
        self,
        kind: RequestKind,
        acks: int,
        partition: Partition,
        traffic: TopicTraffic,
        answer: bytes,
        offsets_position: int,
    ) -> None:
        self.kind = kind
        self.acks = acks
        self.partition = partition
        self.traffic = traffic
        self.answer = answer
        self.offsets_position = offsets_position


class RepeatedRequests:
    """What a connection remembers. Beginnings that are looked for have the size of the last one
    that was remembered: those of a topic's partitions are equally long."""

    __slots__ = ("beginning_end", "by_beginning")

    def __init__(self) -> None:
        self.beginning_end = 0
        self.by_beginning: dict[bytes, _Repeated] = {}

    def has(self, frame: memoryview) -> bool:
        return bytes(frame[_BEGINNING_POSITION : self.beginning_end]) in self.by_beginning


def remember(
    context: RequestContext, frame: memoryview, request: ProduceRequest, response: ProduceResponse
) -> None:
    """Remember a request of this frame, and its response, if the like may be repeated."""
    services, connection, header = context.services, context.connection, context.header
    if (
        services.authorizer is not None
        or connection is None
        or header.api_version < _FIRST_VERSION
        or request.transactional_id is not None
        or request.acks not in (ACKS_ALL, ACKS_LEADER)
        or len(request.topics) != 1
        or len(request.topics[0].partitions) != 1
    ):
        return
    kept = connection.repeated_requests
    if kept is not None and kept.has(frame):
        return  # something about its batch was not plain
    ((_, _, (produced,)),) = request.topics
    ((name, topic_id, (answered,)),) = response.topics
    if answered.error_code:
        return
    partition = services.replica_manager.find_partition(name, topic_id, produced.partition)
    topic = partition.topic_partition.topic
    if topic in WRITTEN_BY_BROKER_ALONE:
        return
    records = produced.records
    assert records is not None, "it was appended"
    is_flexible = header.api_version >= FIRST_FLEXIBLE_VERSION
    records_start = _address(records) - _address(frame)
    if frame[records_start + len(records) :] != (_NO_TAGS if is_flexible else b""):
        return
    beginning_end = records_start - _size_of_size(len(records), is_flexible=is_flexible)
    marked = ProducePartitionResponse(produced.partition, 0, *_MARKED_OFFSETS)
    write = version_codec(header.api_key, header.api_version).write_response
    (answer,) = write(0, ProduceResponse([ProduceTopicResponse(name, topic_id, [marked])]))
    if kept is None:
        kept = connection.repeated_requests = RepeatedRequests()
    elif len(kept.by_beginning) >= REPEATED_MAX:
        kept.by_beginning.clear()
    kept.beginning_end = beginning_end
    kept.by_beginning[bytes(frame[_BEGINNING_POSITION:beginning_end])] = _Repeated(
        (header.api_key, header.api_version),
        request.acks,
        partition,
        services.traffic.topics[topic],
        bytes(answer),
        bytes(answer).index(_OFFSETS.pack(*_MARKED_OFFSETS)),
    )


def repeat(
    services: BrokerServices, kind: RequestKind, frame: memoryview, kept: RepeatedRequests
) -> Answer | None:
    """Handle a request that repeats an earlier one, and return its answer. None for any other
    request; nothing has changed then."""
    # With few calls: this runs for each request of most producers (docs/decisions/0136).
    end = kept.beginning_end
    repeated = kept.by_beginning.get(bytes(frame[_BEGINNING_POSITION:end]))
    if repeated is None or repeated.kind != kind or not services.kernels.is_ready:
        return None
    records = _records(frame, end, is_flexible=kind[1] >= FIRST_FLEXIBLE_VERSION)
    header = None if records is None else peek_header(records)
    if records is None or header is None or not _is_plain(services, repeated, header, records):
        return None
    head = bytes(records[:HEADER_SIZE])
    try:
        info = repeated.partition.append(
            records, required_acks=repeated.acks, now_ms=services.clock.now_ms(), header=header
        )
    except IsothermError:
        # Nothing is appended, and `produce` answers with the error, which it meets again. The
        # header may have its offset already.
        records[:HEADER_SIZE] = head
        return None
    traffic = repeated.traffic
    traffic.total_produce_requests += 1
    if not info.duplicate:
        traffic.messages_in += info.last_offset - info.first_offset + 1
        traffic.bytes_in += len(records)
    answer = bytearray(repeated.answer)
    # Behind the size, as in the request behind key and version.
    answer[_CORRELATION_ID] = frame[_CORRELATION_ID]
    offsets = info.first_offset, info.log_append_time_ms, info.log_start_offset
    _OFFSETS.pack_into(answer, repeated.offsets_position, *offsets)
    return (answer,)


def _records(frame: memoryview, position: int, *, is_flexible: bool) -> memoryview | None:
    """The records whose size is at `position`; None unless nothing but absent tags follows."""
    try:
        if is_flexible:
            size, start = read_unsigned_varint(frame, position)
            end = start + size - 1
            ends = frame[end:] == _NO_TAGS
        else:
            (size,) = _RECORDS_SIZE.unpack_from(frame, position)
            start = position + _RECORDS_SIZE.size
            end = start + size
            ends = end == len(frame)
    except MALFORMED:
        return None
    return frame[start:end] if ends and start < end else None


def _is_plain(
    services: BrokerServices, repeated: _Repeated, header: BatchHeader, records: memoryview
) -> bool:
    partition, codec = repeated.partition, header.attributes & CODEC_MASK
    if (
        header.magic != MAGIC
        or header.length != len(records) - LOG_OVERHEAD
        or len(records) > LOOP_SIZE_MAX
        or header.attributes & TRANSACTIONAL_FLAG
        or partition.is_gone
        or not (partition.is_alone or repeated.acks == ACKS_LEADER)
        or partition.log.config.flush_messages != LONG_MAX
    ):
        return False
    return not codec or (
        (codec != CompressionType.ZSTD or repeated.kind[1] >= FIRST_ZSTD_VERSION)
        and size_bound(header, records[HEADER_SIZE:])
        <= min(LOOP_SIZE_MAX, services.config.message_decompressed_max_bytes)
    )


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def _size_of_size(size: int, *, is_flexible: bool) -> int:
    """The bytes of the size field before records."""
    return -(-(size + 1).bit_length() // 7) if is_flexible else _RECORDS_SIZE.size
