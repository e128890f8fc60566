"""The record batches of a fetch, of which members acquire ranges. Pure.

A fetch reads whole batches into one or several pieces of memory, one after the other; a batch may
lie in two of them. Nothing is copied but headers that do so, and control batches.

Source: Kafka ShareFetchUtils, SharePartition.fetchAbortedTransactionRecordBatches.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from isotherm.broker.share_partitions.acquisition import Acquired, LogBatch
from isotherm.record.batch_header import HEADER_SIZE, BatchHeader, read_batch_header
from isotherm.record.control import ControlRecordType, read_control_record
from isotherm.types import Offset, Position, ProducerId

_base_offset = operator.attrgetter("header.base_offset")

Piece: TypeAlias = "bytes | bytearray | memoryview"


class FetchedBatch(NamedTuple):
    """`position` is the batch's first byte in the pieces, in bytes."""

    position: Position
    header: BatchHeader

    @property
    def end_position(self) -> Position:
        return self.position + self.header.size_in_bytes


def fetched_batches(pieces: Sequence[Piece]) -> list[FetchedBatch]:
    """The batches in `pieces`. Raises CorruptRecordError."""
    size = sum(map(len, pieces))
    batches: list[FetchedBatch] = []
    position = 0
    while size - position >= HEADER_SIZE:
        if len(pieces) == 1:
            header = read_batch_header(pieces[0], position)
        else:
            header = read_batch_header(_bytes_at(pieces, position, HEADER_SIZE))
        if position + header.size_in_bytes > size:
            break
        batches.append(FetchedBatch(position, header))
        position += header.size_in_bytes
    return batches


def _cut(pieces: Sequence[Piece], begin: Position, end: Position) -> Iterator[memoryview]:
    start = 0
    for piece in pieces:
        if start < end and begin < start + len(piece):
            yield memoryview(piece)[max(begin - start, 0) : end - start]
        start += len(piece)


def _bytes_at(pieces: Sequence[Piece], position: Position, size: int) -> Piece:
    parts = list(_cut(pieces, position, position + size))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def log_batches(batches: Sequence[FetchedBatch]) -> list[LogBatch]:
    return [LogBatch(header.base_offset, header.last_offset) for _, header in batches]


def aborted_batches(
    pieces: Sequence[Piece],
    batches: Sequence[FetchedBatch],
    transactions: Sequence[tuple[ProducerId, Offset]],
) -> list[LogBatch]:
    """The batches of aborted transactions, which are pairs of producer id and first offset."""
    pending = sorted(transactions, key=_first_offset)
    aborting: set[ProducerId] = set()
    aborted: list[LogBatch] = []
    for batch in batches:
        header = batch.header
        if not header.has_producer_id:
            continue
        begun = bisect.bisect_right(pending, header.last_offset, key=_first_offset)
        aborting.update(producer_id for producer_id, _ in pending[:begun])
        del pending[:begun]
        if header.is_control:
            if _is_abort_marker(pieces, batch):
                aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            aborted.append(LogBatch(header.base_offset, header.last_offset))
    return aborted


def _first_offset(transaction: tuple[ProducerId, Offset]) -> Offset:
    return transaction[1]


def _is_abort_marker(pieces: Sequence[Piece], batch: FetchedBatch) -> bool:
    content = _bytes_at(pieces, batch.position, batch.header.size_in_bytes)
    record = read_control_record(content, 0, batch.header)
    return record is not None and record.type is ControlRecordType.ABORT


def acquired_pieces(
    pieces: Sequence[Piece], batches: Sequence[FetchedBatch], acquired: Sequence[Acquired]
) -> Sequence[Piece]:
    """The batches from the first to the last acquired record, which stand in one range."""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset_inclusive
    # As in Kafka no batch in between is left out: clients know what they have acquired.
    begin = max(bisect.bisect_right(batches, first_offset, key=_base_offset) - 1, 0)
    end = max(bisect.bisect_right(batches, last_offset, key=_base_offset), begin + 1)
    if begin == 0 and end == len(batches):
        return pieces
    return tuple(_cut(pieces, batches[begin].position, batches[end - 1].end_position))
