"""Where the readers of a segment go on: the batches that their last reads did not hold as a whole.

A reader that is behind the log's end takes as many bytes as it may have. The batch that they end in
is where its next fetch begins, so that needs no look-up.
"""

from __future__ import annotations

import struct

from isotherm.log.batch_scan import impossible_length
from isotherm.record.batch_header import HEADER_SIZE, LOG_OVERHEAD
from isotherm.segment.offset_index import Buffer
from isotherm.types import Offset, Position

# Of each segment: with more readers at as many places, some look theirs up again.
READ_ENDS_MAX = 32

_OFFSET_AND_LENGTH = struct.Struct(">qi")


class ReadEnds:
    """`batches` has position and size of each such batch, as its header says it, by base offset.
    Any thread."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: dict[Offset, tuple[Position, int]] = {}

    def whole_size(self, data: Buffer, start: int, position: Position) -> int:
        """Size of `data` without a trailing partial batch, which is noted. A batch starts at byte
        `start`; the first byte is at `position`.

        Raises CorruptRecordError at a batch with an impossible length.
        """
        while start + LOG_OVERHEAD <= len(data):
            base_offset, length = _OFFSET_AND_LENGTH.unpack_from(data, start)
            size = length + LOG_OVERHEAD
            if size < HEADER_SIZE:
                raise impossible_length(length, start)
            if start + size > len(data):
                if len(self.batches) >= READ_ENDS_MAX:
                    self.batches.clear()
                self.batches[base_offset] = position + start, size
                break
            start += size
        return start
