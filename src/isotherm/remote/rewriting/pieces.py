"""The pieces of a tiered log that a job reads and writes again, one for each segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.errors import (
    CorruptObjectError,
    CorruptRecordError,
    KeyPairNotConfiguredError,
    UnreadableDataError,
)
from isotherm.record.batch_table import leader_epochs
from isotherm.record.header_contradictions import header_contradictions
from isotherm.remote.history.epoch_columns import ExpectedEpochs
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.segment_blocks import (
    BatchJoiner,
    segment_blocks_ahead,
    unreadable_records,
)
from isotherm.segment.cleaning.chunk import Chunk, read_chunk
from isotherm.segment.producer_snapshot import LastRecord
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import Offset, ProducerId

if TYPE_CHECKING:
    from isotherm.record.varint import ReadBuffer

    ReadChunk: TypeAlias = Callable[[ReadBuffer], Chunk | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start_offset, end_offset) of a partition, in `segment`.

    `number` is dense over all pieces of a job, and rises with the offsets of a partition.
    `aborted` are the aborted transactions that touch the piece, by the offset of their markers;
    `last_records` the producers whose last record is in the piece, or is a marker anywhere. A piece
    that is not `is_cleaned` lies above the offsets that may be cleaned: all of it stays, and its
    keys supersede no record.
    """

    number: int
    segment: RemoteLogSegmentMetadata
    start_offset: Offset
    end_offset: Offset
    aborted: tuple[AbortedTransaction, ...] = ()
    last_records: Mapping[ProducerId, LastRecord] | None = None
    is_cleaned: bool = True

    @property
    def is_whole_segment(self) -> bool:
        segment = self.segment
        return (self.start_offset, self.end_offset) == (
            segment.start_offset,
            segment.end_offset_inclusive + 1,
        )


def read_chunks(
    storage: RemoteStorageManager,
    piece: Piece,
    fetch_bytes: int,
    read: ReadChunk = read_chunk,
) -> Iterator[tuple[Chunk, bool]]:
    """Yield the batches of a piece in order, as chunks, each with whether it is the last one.
    Fetches one range ahead. `read_packed_chunk` decompresses nothing.

    Raises CorruptObjectError with the segment's name if the segment is missing or cut off, or if
    its batches are not in order or have other leader epochs. The caller checks the CRCs.
    """
    epochs = ExpectedEpochs(piece.segment.segment_leader_epochs)
    joiner = BatchJoiner(piece.segment.segment_size_in_bytes)
    next_offset = piece.segment.start_offset
    waiting: Chunk | None = None
    with located(piece), ThreadPoolExecutor(1, "isotherm-rewrite-fetch") as pool:
        for block in segment_blocks_ahead(storage, piece.segment, fetch_bytes, pool):
            for chunk in _chunks(joiner, block, read):
                chunk.check_order(next_offset)
                _check_headers(chunk)
                _check_epochs(chunk, epochs)
                next_offset = int(chunk.last_offsets[-1]) + 1
                if next_offset > piece.segment.end_offset_inclusive + 1:
                    raise CorruptRecordError(
                        f"object holds the batches of other offsets next_offset={next_offset}"
                    )
                part = _within(piece, chunk, read)
                if part is None:
                    continue
                # One chunk is held back: only the next one, or the end, shows whether it is the
                # last.
                if waiting is not None:
                    yield waiting, False
                waiting = part
        # Before the last chunk is yielded as the last one: a log that is cut off raises here.
        joiner.end()
        if waiting is not None:
            yield waiting, True


def _chunks(joiner: BatchJoiner, block: memoryview, read: ReadChunk) -> Iterator[Chunk]:
    for part in joiner.parts(block):
        rest = part
        while (chunk := read(rest)) is not None:
            rest = rest[chunk.size :]
            yield chunk
        joiner.took(part, len(part) - len(rest))


def _check_headers(chunk: Chunk) -> None:
    for fact, is_wrong in header_contradictions(chunk.data, chunk.batches):
        offset = int(chunk.batches["base_offset"][is_wrong.argmax()])
        raise CorruptRecordError(f"{fact} base_offset={offset}")


def _check_epochs(chunk: Chunk, expected: ExpectedEpochs) -> None:
    """Raise CorruptRecordError for a batch with another leader epoch than the metadata say. The
    epochs decide which of several segments is the log."""
    base_offsets = chunk.batches["base_offset"]
    is_wrong = expected.wrong(leader_epochs(chunk.data, chunk.batches), base_offsets)
    if is_wrong.any():
        offset = int(base_offsets[is_wrong.argmax()])
        raise CorruptRecordError(
            f"batch has another leader epoch than its segment base_offset={offset}"
        )


def _within(piece: Piece, chunk: Chunk, read: ReadChunk) -> Chunk | None:
    """The batches with offsets of the piece. Raises CorruptRecordError if one crosses its
    border."""
    first, last = chunk.batches["base_offset"], chunk.last_offsets
    inside = (first >= piece.start_offset) & (last < piece.end_offset)
    outside = (last < piece.start_offset) | (first >= piece.end_offset)
    if inside.all():
        return chunk
    # Borders are where epochs or segments begin, so no batch lies across one.
    if not (inside | outside).all():
        raise CorruptRecordError("a batch lies across the border of what is read of the segment")
    rows = np.flatnonzero(inside)
    if not len(rows):
        return None
    batches = chunk.batches
    start = int(batches["position"][rows[0]])
    end = int(batches["position"][rows[-1]] + batches["size"][rows[-1]])
    return read(memoryview(chunk.data)[start:end])


@contextmanager
def located(piece: Piece) -> Iterator[None]:
    """Raise lost or damaged data as a CorruptObjectError that names the records."""
    try:
        yield
    except KeyPairNotConfiguredError:
        raise  # a setting is missing, and no record is lost
    except UnreadableDataError as error:
        raise CorruptObjectError(
            unreadable_records(piece.segment, piece.start_offset, piece.end_offset, error)
        ) from error
