"""The types of many control batches at once. Python reads only those of an unusual form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import read_batch_header
from isotherm.record.batch_header import CODEC_MASK, CONTROL_FLAG, HEADER_SIZE
from isotherm.record.batch_table import gather_integers
from isotherm.record.control import ControlRecord, ControlRecordType, read_control_record
from isotherm.types import NO_COORDINATOR_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.record.batch_table import BatchTable, BoolArray, Int64Array
    from isotherm.record.varint import ReadBuffer

NO_MARKER = -2
"""The type of a batch that holds data."""

# A marker as every broker writes it: one uncompressed record of 17 bytes.
_MARKER_BATCH_SIZE = HEADER_SIZE + 17
_MARKER_TYPE_POSITION = HEADER_SIZE + 7
# The first eight bytes of that record: its length, attributes and deltas, a key of four bytes, the
# key's version 0, and the first byte of the type.
_MARKER_HEAD = 0x2000000008000000
_COORDINATOR_EPOCH_POSITION = HEADER_SIZE + 12


def marker_types(buffer: ReadBuffer, batches: BatchTable) -> Int64Array:
    """The ControlRecordType of each batch, NO_MARKER for data. UNKNOWN also for a control batch
    that compaction has emptied, or that cannot be read: then its CRC is wrong."""
    types = np.full(len(batches), NO_MARKER, dtype=np.int64)
    is_control = (batches["attributes"] & CONTROL_FLAG) != 0
    if not is_control.any():
        return types
    is_usual = is_control & _are_usual(batches)
    places = batches["position"][is_usual] + _MARKER_TYPE_POSITION
    types[is_usual] = gather_integers(buffer, places, ">i2")
    # Those that `_unusual` cannot read, and emptied ones, keep this type.
    types[is_control & ~is_usual] = ControlRecordType.UNKNOWN
    for row, marker in _unusual(buffer, batches, is_control & ~is_usual):
        types[row] = marker.type
    return types


def coordinator_epochs(buffer: ReadBuffer, batches: BatchTable) -> Int64Array:
    """The epoch of the coordinator that wrote each batch; NO_COORDINATOR_EPOCH for other
    batches."""
    epochs = np.full(len(batches), NO_COORDINATOR_EPOCH, dtype=np.int64)
    is_control = (batches["attributes"] & CONTROL_FLAG) != 0
    if not is_control.any():
        return epochs
    is_usual = is_control & _are_usual(batches)
    places = batches["position"][is_usual] + _COORDINATOR_EPOCH_POSITION
    epochs[is_usual] = gather_integers(buffer, places, ">i4")
    for row, marker in _unusual(buffer, batches, is_control & ~is_usual):
        if marker.coordinator_epoch is not None:
            epochs[row] = marker.coordinator_epoch
    return epochs


def without_control_record(buffer: ReadBuffer, batches: BatchTable) -> BoolArray:
    """Whether each batch has the control bit but holds something other than one control record of
    Kafka: it is data with an altered bit. A control batch that compaction has emptied is sound."""
    is_control = (batches["attributes"] & CONTROL_FLAG) != 0
    wrong: BoolArray = is_control & (batches["records_count"] > 1)
    is_single = is_control & (batches["records_count"] == 1)
    if not is_single.any():
        return wrong
    is_usual = is_single & _are_usual(batches)
    heads = gather_integers(buffer, batches["position"][is_usual] + HEADER_SIZE, ">i8")
    types = gather_integers(buffer, batches["position"][is_usual] + _MARKER_TYPE_POSITION, ">i2")
    is_marker = np.zeros(len(batches), np.bool_)
    # The head ends in the first byte of the type, which is 0: the type is not negative.
    is_marker[is_usual] = (heads == _MARKER_HEAD) & (types <= ControlRecordType.COMMIT)
    is_other = is_single & ~is_marker
    wrong |= is_other
    for row, control in _unusual(buffer, batches, is_other):
        wrong[row] = control.type is ControlRecordType.UNKNOWN or control.version != 0
    return wrong


def _are_usual(batches: BatchTable) -> BoolArray:
    usual: BoolArray = (batches["size"] == _MARKER_BATCH_SIZE) & (
        batches["attributes"] & CODEC_MASK == 0
    )
    return usual


def _unusual(
    buffer: ReadBuffer, batches: BatchTable, is_chosen: BoolArray
) -> Iterator[tuple[int, ControlRecord]]:
    """The control records that can be read, with their rows."""
    for row in np.flatnonzero(is_chosen).tolist():
        position = int(batches["position"][row])
        try:
            marker = read_control_record(buffer, position, read_batch_header(buffer, position))
        except CorruptRecordError:
            # Its CRC is wrong, which the caller's check of CRCs reports.
            continue
        if marker is not None:
            yield row, marker
