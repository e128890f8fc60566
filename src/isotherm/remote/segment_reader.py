"""Record batches of one remote segment, checked, through the read-ahead.

Everything that the bytes can be wrong about becomes a CorruptObjectError that names the segment,
its topic, partition and offsets; the ranges in memory are dropped then, so that the next attempt
fetches the object anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from isotherm.errors import CorruptObjectError, CorruptRecordError
from isotherm.record.batch import (
    HEADER_SIZE,
    BatchHeader,
    iterate_batches,
    read_batch_header,
    verify_batch_crc,
)
from isotherm.remote.read_ahead import ReadAhead
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import Offset, Position


class BatchRun(NamedTuple):
    """Whole batches that follow one another. `next_offset` is the one after the last; `is_last`
    tells that nothing below the end asked for follows in this segment."""

    records: memoryview
    next_offset: Offset
    is_last: bool


class RemoteSegmentReader:
    """Thread-safe."""

    def __init__(self, read_ahead: ReadAhead) -> None:
        self._read_ahead = read_ahead

    def headers(
        self, metadata: RemoteLogSegmentMetadata, position: Position, from_offset: Offset = 0
    ) -> Iterator[tuple[Position, BatchHeader]]:
        """Position and header of each batch from `position` on; CRCs are not checked, but that
        offsets rise, from `from_offset` on."""
        next_offset = from_offset
        while position < metadata.segment_size_in_bytes:
            with self._damage_named(metadata):
                header = read_batch_header(self._read_ahead.read(metadata, position, HEADER_SIZE))
                _check_place(metadata, position, header, next_offset)
            yield position, header
            position += header.size_in_bytes
            next_offset = header.next_offset

    def batch(
        self, metadata: RemoteLogSegmentMetadata, position: Position, header: BatchHeader
    ) -> memoryview:
        """One whole batch, its CRC checked."""
        data = self._read_ahead.read(metadata, position, header.size_in_bytes)
        with self._damage_named(metadata):
            verify_batch_crc(data, 0, header)
        return data

    def run(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size_max: int,
        end_offset: Offset,
    ) -> BatchRun:
        """The whole batches in `size_max` bytes from `position` on, where a batch begins, as far
        as they begin below `end_offset`. Every CRC is checked, and that offsets rise."""
        data = self._read_ahead.read(metadata, position, size_max)
        size = next_offset = 0
        is_last = False
        with self._damage_named(metadata):
            for at, header in iterate_batches(data):
                _check_place(metadata, position + at, header, next_offset)
                if header.base_offset >= end_offset:
                    is_last = True
                    break
                verify_batch_crc(data, at, header)
                size, next_offset = at + header.size_in_bytes, header.next_offset
        is_last = is_last or position + size == metadata.segment_size_in_bytes
        return BatchRun(data[:size], next_offset, is_last)

    @contextmanager
    def _damage_named(self, metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
        try:
            yield
        except CorruptRecordError as error:
            self._read_ahead.forget(metadata.segment_id)
            raise damaged_segment(metadata, str(error)) from error


def _check_place(
    metadata: RemoteLogSegmentMetadata,
    position: Position,
    header: BatchHeader,
    next_offset: Offset,
) -> None:
    """What the CRC does not cover, or what is needed before it can be checked."""
    if position + header.size_in_bytes > metadata.segment_size_in_bytes:
        raise CorruptRecordError(
            f"batch reaches beyond its segment position={position} size={header.size_in_bytes}"
        )
    if (
        not metadata.start_offset
        <= header.base_offset
        <= header.last_offset
        <= (metadata.end_offset_inclusive)
    ):
        raise CorruptRecordError(
            f"batch has offsets outside its segment position={position}"
            f" base_offset={header.base_offset} last_offset={header.last_offset}"
        )
    if header.base_offset < next_offset:
        raise CorruptRecordError(
            f"batch offsets go back position={position} base_offset={header.base_offset}"
            f" expected_from={next_offset}"
        )


def damaged_segment(metadata: RemoteLogSegmentMetadata, reason: str) -> CorruptObjectError:
    partition = metadata.topic_id_partition
    return CorruptObjectError(
        f"remote segment is damaged object={metadata.segment_id}.log topic={partition.topic}"
        f" partition={partition.partition} start_offset={metadata.start_offset}"
        f" end_offset={metadata.end_offset_inclusive} reason={reason!r}"
    )
