"""The types of many control batches at once: Python looks into those of an unusual form alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import read_batch_header
from isotherm.record.batch_header import CODEC_MASK, CONTROL_FLAG, HEADER_SIZE
from isotherm.record.batch_table import gather_integers
from isotherm.record.control import ControlRecordType, read_control_record

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, Int64Array
    from isotherm.record.varint import ReadBuffer

NO_MARKER = -2
"""The type of a batch that holds data."""

# A marker as every broker writes it: one uncompressed record of 17 bytes.
_MARKER_BATCH_SIZE = HEADER_SIZE + 17
_MARKER_TYPE_POSITION = HEADER_SIZE + 7


def marker_types(buffer: ReadBuffer, batches: BatchTable) -> Int64Array:
    """The type of each batch's control record (ControlRecordType); UNKNOWN also of a control batch
    that compaction has emptied, and of one that cannot be read: its CRC is wrong then."""
    types = np.full(len(batches), NO_MARKER, dtype=np.int64)
    attributes = batches["attributes"]
    is_control = (attributes & CONTROL_FLAG) != 0
    if not is_control.any():
        return types
    is_usual = is_control & (batches["size"] == _MARKER_BATCH_SIZE) & (attributes & CODEC_MASK == 0)
    places = batches["position"][is_usual] + _MARKER_TYPE_POSITION
    types[is_usual] = gather_integers(buffer, places, ">i2")
    for row in np.flatnonzero(is_control & ~is_usual).tolist():
        position = int(batches["position"][row])
        types[row] = ControlRecordType.UNKNOWN
        try:
            marker = read_control_record(buffer, position, read_batch_header(buffer, position))
        except CorruptRecordError:
            continue
        if marker is not None:
            types[row] = marker.type
    return types
