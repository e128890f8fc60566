"""Encodes a task as plain values, which Spark pickles for the executors.

A query over a long history has a hundred thousand tasks. Pickled as objects, they would take most
of the planning's time and bytes. The form may change at any time, because driver and executors have
the same version of this package.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, TypeAlias

from isotherm.remote.metadata.state.segment_rows import pack_segment, unpack_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.spark.plan.listed_segments import ListedSegment, SegmentName
from isotherm.spark.plan.planning import (
    Beside,
    BrokerRead,
    ProducersAt,
    Read,
    ReadTask,
    SegmentPiece,
    SegmentRead,
)
from isotherm.types import Offset, TopicIdPartition, TopicPartition

PlainRead: TypeAlias = tuple[Any, ...]


def encode_task(task: ReadTask) -> list[PlainRead]:
    return [_encode_read(read) for read in task.reads]


def decode_task(reads: Iterable[PlainRead]) -> ReadTask:
    """Inverse of `encode_task`."""
    return ReadTask(tuple(map(_decode_read, reads)))


def _encode_read(read: Read) -> PlainRead:
    if isinstance(read, BrokerRead):
        partition = read.topic_partition
        offsets = (read.start_offset, read.end_offset)
        return partition.topic, partition.partition, *offsets, read.record_size
    segment = read.segment
    owner = segment.topic_id_partition
    return (
        owner.topic,
        owner.partition,
        read.start_offset,
        read.end_offset,
        owner.topic_id.bytes,
        segment.segment_id.id.bytes,
        _encode_listed(segment) if isinstance(segment, ListedSegment) else pack_segment(segment),
        _encode_transactions(read),
    )


def _encode_transactions(read: SegmentRead) -> tuple[Any, ...] | None:
    if read.aborted is None or read.beside is None:
        return None
    piece_start, piece_end, before = read.beside
    return (
        tuple(map(tuple, read.aborted)),
        piece_start,
        piece_end,
        before and _encode_producers(before),
    )


def _encode_producers(before: ProducersAt) -> tuple[Any, ...]:
    return (
        before.snapshot_of and _encode_neighbour(before.snapshot_of),
        tuple(
            (_encode_neighbour(piece.segment), piece.start_offset, piece.end_offset)
            for piece in before.since
        ),
    )


def _decode_producers(owner: TopicIdPartition, fields: Any) -> ProducersAt:
    snapshot_of, since = fields
    return ProducersAt(
        snapshot_of and _decode_neighbour(owner, snapshot_of),
        tuple(SegmentPiece(_decode_neighbour(owner, held), *offsets) for held, *offsets in since),
    )


def _encode_neighbour(segment: RemoteLogSegmentMetadata) -> tuple[Any, ...]:
    return segment.segment_id.id.bytes, pack_segment(segment)


def _decode_neighbour(owner: TopicIdPartition, fields: Any) -> RemoteLogSegmentMetadata:
    return unpack_segment(RemoteLogSegmentId(owner, uuid.UUID(bytes=fields[0])), fields[1])


def _encode_listed(segment: ListedSegment) -> tuple[Any, ...]:
    before = segment.previous
    previous = before and (before.start_offset, before.segment_uuid.bytes)
    end_offset = segment.end_offset_inclusive + 1
    return segment.start_offset, end_offset, segment.segment_size_in_bytes, previous


def _decode_read(fields: PlainRead) -> Read:
    topic, partition, start_offset, end_offset, *rest = fields
    if len(rest) == 1:
        return BrokerRead(TopicPartition(topic, partition), start_offset, end_offset, rest[0])
    topic_id, segment_id, row, transactions = rest
    owner = TopicIdPartition(uuid.UUID(bytes=topic_id), topic, partition)
    named = RemoteLogSegmentId(owner, uuid.UUID(bytes=segment_id))
    listed = isinstance(row, tuple)
    segment = _decode_listed(named, *row) if listed else unpack_segment(named, row)
    if transactions is None:
        return SegmentRead(segment, start_offset, end_offset)
    entries, piece_start, piece_end, before = transactions
    aborted = tuple(AbortedTransaction(*entry) for entry in entries)
    beside = Beside(piece_start, piece_end, before and _decode_producers(owner, before))
    return SegmentRead(segment, start_offset, end_offset, aborted, beside)


def _decode_listed(
    named: RemoteLogSegmentId, start: Offset, end: Offset, size: int, previous: Any
) -> ListedSegment:
    before = previous and SegmentName(previous[0], uuid.UUID(bytes=previous[1]))
    return SegmentName(start, named.id).in_partition(named.topic_id_partition, end, size, before)
