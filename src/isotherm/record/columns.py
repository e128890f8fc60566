"""Decodes record batches to Arrow columns, without a Python object per record.

Compiled kernels (`isotherm.kernels.columns`) scan the batches. Python runs once per batch at most:
for CRC, decompression and aborted transactions. The kernels are loaded by the first call, or
earlier by importing their module. All functions are thread-safe and release the GIL while they
decode.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import RECORD_SIZE_MIN, BatchHeader, read_batch_header
from isotherm.record.batch_header import (
    CONTROL_FLAG,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
)
from isotherm.record.batch_table import (
    DECODED_SIZE_MAX,
    byte_array,
    damaged,
    read_batch_table,
    rows_of,
    unpack_records,
    verify_crcs,
)
from isotherm.record.compression import DECOMPRESSED_SIZE_MAX
from isotherm.record.control import ControlRecordType, read_control_record
from isotherm.types import UNKNOWN_OFFSET

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch_table import (
        BatchTable,
        ByteArray,
        Int8Array,
        Int32Array,
        Int64Array,
    )
    from isotherm.record.varint import ReadBuffer
    from isotherm.types import Offset, Position, ProducerId

__all__ = ["COLUMNS", "COLUMNS_DEFAULT", "RecordColumns", "decode_columns"]

COLUMNS = frozenset({"offset", "timestamp", "key", "value", "headers"})
COLUMNS_DEFAULT = frozenset({"offset", "timestamp", "key", "value"})

_OFFSET_MAX = 2**63 - 1
_COLUMNS_INSIDE = frozenset({"key", "value", "headers"})
# Bytes per row without key, value and headers: offset, timestamp and timestamp type.
_ROW_SIZE = 17
# Bytes behind those of a binary column, which kernels overwrite: COPY_ROOM of
# isotherm.kernels.raw_memory, which is not imported at a start.
_COPY_ROOM = 64
# A call scans headers in twice as many bytes as it may decode, plus this many.
_WINDOW_SIZE_MIN = 4096


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Columns of equal length, one row per record, in the order of the log.

    `position_end` is how many bytes of the buffer were processed, complete batches only.
    `next_offset` is the offset after the last processed batch of any kind, -1 if there was none.
    The CRC does not cover a batch's offset, so a caller that reads consecutive buffers must compare
    `next_offset` with the base offset of the next buffer.
    """

    count: int
    offset: Int64Array
    timestamp_ms: Int64Array | None
    timestamp_type: Int8Array
    key: pa.BinaryArray | None
    value: pa.BinaryArray | None
    headers: pa.ListArray[Any] | None
    position_end: Position
    next_offset: Offset


def decode_columns(
    buffer: ReadBuffer,
    *,
    offset_range: tuple[Offset, Offset] | None = None,
    columns: frozenset[str] = COLUMNS_DEFAULT,
    aborted: Sequence[tuple[int, ...]] = (),
    verify_crc: bool = True,
    decompressed_size_max: int = DECOMPRESSED_SIZE_MAX,
    decoded_size_max: int = DECODED_SIZE_MAX,
) -> RecordColumns:
    """Decode the complete batches of a buffer that starts at a batch.

    `offset_range` is half-open. Records outside it are left out; control records always are.
    Offsets and timestamp types are always returned, other columns if `columns` names them. Header
    names that are not UTF-8 get replacement characters.

    Fewer columns need less reading. For offsets alone the batch headers are enough, unless
    compaction has removed records. For timestamps, the first bytes of each record are read.

    The call stops before a batch if it would decode more than `decoded_size_max` bytes of records
    (one batch is always decoded). Call again from `position_end` until it is 0: the rest is then a
    partial batch or empty.

    `aborted` lists aborted transactions, whose records are left out. Entries are either
    (producer_id, first_offset, last_offset, ...) with the offset of the abort marker, like the
    entries of a transaction index; or (producer_id, first_offset), like a fetch response. The
    latter kind ends at the producer's first abort marker in this buffer, so a transaction that
    ended before the buffer must not be listed.

    Raises CorruptRecordError on any damage in what is read, and then returns nothing. The CRC is
    checked for all processed batches that overlap `offset_range`, even without a record in it, and
    with `aborted` for all control batches.
    """
    if not columns <= COLUMNS:
        raise ValueError(f"no such columns names={sorted(columns - COLUMNS)}")
    # Arrow's binary arrays have offsets of 32 bits.
    assert decoded_size_max < 2**31
    start, end = (0, _OFFSET_MAX) if offset_range is None else offset_range
    # Not the whole buffer: a caller that comes back for the rest would scan all headers each time.
    batches, position_end = _first_batches(buffer, 2 * decoded_size_max + _WINDOW_SIZE_MIN)
    in_range = _rows_in_range(batches, start, end)
    is_control = batches["attributes"] & CONTROL_FLAG != 0
    is_decoded = in_range & ~is_control & (batches["records_count"] > 0)
    if aborted:
        # Markers outside the range count too: they end the transactions that are left out.
        if verify_crc:
            verify_crcs(buffer, rows_of(batches, is_control))
        is_decoded &= ~_aborted_rows(buffer, batches, aborted)
    selected = rows_of(batches, is_decoded)
    try:
        unpacked, taken = _unpacked(
            buffer, selected, columns, decompressed_size_max, decoded_size_max
        )
    except CorruptRecordError:
        # Damaged data decompresses to anything. If the CRC is wrong, that is the better message.
        if verify_crc:
            verify_crcs(buffer, rows_of(batches, in_range))
        raise
    if taken < len(selected):
        position_end = int(selected["position"][taken])
        selected = selected[:taken]
    processed = int(np.searchsorted(batches["position"], position_end))
    # After unpacking, which shows how many batches this call processes. The next call begins at the
    # others and checks them: no batch is checked twice.
    if verify_crc:
        verify_crcs(buffer, rows_of(batches[:processed], in_range[:processed]))
    next_offset = _next_offset(batches, processed - 1) if processed else UNKNOWN_OFFSET
    reached = (position_end, next_offset)
    if unpacked is None:
        return _rows_of_headers(selected, start, end, columns, reached)
    return _decode(byte_array(buffer), unpacked, selected, start, end, columns, reached)


def _first_batches(buffer: ReadBuffer, size: int) -> tuple[BatchTable, Position]:
    """The complete batches in the first `size` bytes; at least the first batch if it is whole."""
    batches, position_end = read_batch_table(memoryview(buffer)[:size])
    if position_end == 0 and len(buffer) > size:
        return read_batch_table(buffer)
    return batches, position_end


def _unpacked(
    buffer: ReadBuffer,
    batches: BatchTable,
    columns: frozenset[str],
    decompressed_size_max: int,
    decoded_size_max: int,
) -> tuple[ByteArray | None, int]:
    """Like `unpack_records`; None if these columns need nothing decompressed."""
    if _headers_suffice(batches, columns):
        return None, _fitting_rows(batches, decoded_size_max, decompressed_size_max)
    return unpack_records(
        buffer,
        batches,
        decompressed_size_max=decompressed_size_max,
        decoded_size_max=decoded_size_max,
    )


def _headers_suffice(batches: BatchTable, columns: frozenset[str]) -> bool:
    """Whether the batch headers have everything that these columns need.

    A batch with as many records as offsets has each offset once, in order.
    """
    if columns & _COLUMNS_INSIDE:
        return False
    if "timestamp" in columns and not (batches["attributes"] & TIMESTAMP_TYPE_FLAG).all():
        return False
    return bool((batches["last_offset_delta"] + 1 == batches["records_count"]).all())


def _fitting_rows(batches: BatchTable, decoded_size_max: int, decompressed_size_max: int) -> int:
    """The number of batches that fit the limit if nothing is decompressed; at least one."""
    # The counts are trusted without a look at the records, and decide the size of the columns.
    too_many = np.flatnonzero(batches["records_count"] > decompressed_size_max // RECORD_SIZE_MIN)
    if len(too_many):
        raise damaged(batches, int(too_many[0]), "batch claims more records than it can hold")
    sizes = np.cumsum(batches["records_count"]) * _ROW_SIZE
    return max(int(np.searchsorted(sizes, decoded_size_max, side="right")), min(1, len(batches)))


def _rows_of_headers(
    batches: BatchTable,
    start: Offset,
    end: Offset,
    columns: frozenset[str],
    reached: tuple[Position, Offset],
) -> RecordColumns:
    counts = batches["records_count"]
    before = np.cumsum(counts) - counts
    offsets: Int64Array = np.repeat(batches["base_offset"] - before, counts)
    offsets += np.arange(len(offsets))
    rows = slice(*np.searchsorted(offsets, (start, end)).tolist())
    types = ((batches["attributes"] & TIMESTAMP_TYPE_FLAG) != 0).astype(np.int8)
    timestamps = (
        np.repeat(batches["max_timestamp"], counts)[rows] if "timestamp" in columns else None
    )
    return RecordColumns(
        count=len(offsets[rows]),
        offset=offsets[rows],
        timestamp_ms=timestamps,
        timestamp_type=np.repeat(types, counts)[rows],
        key=None,
        value=None,
        headers=None,
        position_end=reached[0],
        next_offset=reached[1],
    )


def _next_offset(batches: BatchTable, row: int) -> Offset:
    return int(batches["base_offset"][row]) + int(batches["last_offset_delta"][row]) + 1


def _rows_in_range(batches: BatchTable, start: Offset, end: Offset) -> npt.NDArray[np.bool_]:
    base_offset: Int64Array = batches["base_offset"]
    next_offset: Int64Array = base_offset + batches["last_offset_delta"] + 1
    # The CRC does not cover the base offset, so the order is the only check on it.
    disordered = np.flatnonzero(base_offset[1:] < next_offset[:-1])
    if len(disordered):
        raise damaged(batches, int(disordered[0]) + 1, "batch begins before the last one ends")
    return (next_offset > start) & (base_offset < end)


def _aborted_rows(
    buffer: ReadBuffer, batches: BatchTable, aborted: Sequence[tuple[int, ...]]
) -> npt.NDArray[np.bool_]:
    """Whether each row is data of an aborted transaction, by the rule of Kafka's consumer."""
    dropped = np.zeros(len(batches), dtype=np.bool_)
    # As in Kafka's CompletedFetch, an entry counts from the batch whose last offset reaches it.
    pending = [(entry[1], entry[0], entry[2] if len(entry) > 2 else None) for entry in aborted]
    heapq.heapify(pending)
    # The offset of the abort marker by producer; None until the marker is found.
    active: dict[ProducerId, Offset | None] = {}
    for row in np.flatnonzero(batches["attributes"] & TRANSACTIONAL_FLAG).tolist():
        header = read_batch_header(buffer, int(batches["position"][row]))
        while pending and pending[0][0] <= header.last_offset:
            _, producer_id, last_offset = heapq.heappop(pending)
            active[producer_id] = last_offset
        if header.producer_id not in active:
            continue
        marker_offset = active[header.producer_id]
        # A marker that compaction has emptied ends its transaction by the offset in the entry.
        if marker_offset is not None and header.base_offset > marker_offset:
            del active[header.producer_id]
        elif not header.is_control:
            dropped[row] = True
        elif _is_abort_marker(buffer, int(batches["position"][row]), header):
            del active[header.producer_id]
    return dropped


def _is_abort_marker(buffer: ReadBuffer, position: Position, header: BatchHeader) -> bool:
    marker = read_control_record(buffer, position, header)
    return marker is not None and marker.type is ControlRecordType.ABORT


def _decode(
    data: ByteArray,
    unpacked: ByteArray,
    batches: BatchTable,
    start: Offset,
    end: Offset,
    columns: frozenset[str],
    reached: tuple[Position, Offset],
) -> RecordColumns:
    # Upper bounds: the kernel leaves out the records outside the range.
    count_max = int(batches["records_count"].sum())
    size_max = int((batches["payload_end"] - batches["payload_start"]).sum())
    rows = (
        _room(count_max, np.int64),
        _room(count_max, np.int64),
        _room(count_max, np.int8),
    )
    keys = _BinaryBuilder(count_max, size_max, is_wanted="key" in columns)
    values = _BinaryBuilder(count_max, size_max, is_wanted="value" in columns)
    with_headers = "headers" in columns
    headers_positions: Int64Array = np.empty(count_max if with_headers else 0, dtype=np.int64)
    keys_size, values_size, headers_sizes = 0, 0, (0, 0, 0)
    if columns & _COLUMNS_INSIDE:
        from isotherm.kernels import columns as kernels

        damaged_row, damaged_record, count, keys_size, values_size, *headers_sizes = (
            kernels.decode_records(
                *(data, unpacked, batches, start, end),
                *(rows, keys.arrays, values.arrays, headers_positions),
            )
        )
    else:
        # Keys, values and headers are not wanted, and need not be decoded.
        from isotherm.kernels.heads import decode_heads

        damaged_row, damaged_record, count = decode_heads(
            *(data, unpacked, batches, start, end, rows)
        )
    if damaged_row >= 0 and damaged_record < 0:
        raise damaged(batches, damaged_row, "batch has another largest timestamp than its records")
    if damaged_row >= 0:
        raise damaged(batches, damaged_row, f"record is damaged record_index={damaged_record}")
    headers = None
    if with_headers:
        headers = _decode_headers(data, unpacked, headers_positions[:count], *headers_sizes)
    offsets, timestamps, timestamp_types = rows
    return RecordColumns(
        count=count,
        offset=offsets[:count],
        timestamp_ms=timestamps[:count] if "timestamp" in columns else None,
        timestamp_type=timestamp_types[:count],
        key=keys.finish(count, keys_size) if keys.is_wanted else None,
        value=values.finish(count, values_size) if values.is_wanted else None,
        headers=headers,
        position_end=reached[0],
        next_offset=reached[1],
    )


def _room(count: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Uninitialized memory from Arrow's pool, which reuses memory that was freed.

    With numpy's own allocation, a reader of many pieces may get fresh pages for each of them, and
    page faults then take longer than decoding.
    """
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(memoryview(pa.allocate_buffer(size)), dtype=dtype)


class _BinaryBuilder:
    """Memory for a binary column that a kernel fills; empty if the column is not wanted.

    The data area has room for all bytes that could go there. Pages that are not written take no
    memory.
    """

    def __init__(self, count_max: int, size_max: int, *, is_wanted: bool = True) -> None:
        self.is_wanted = is_wanted
        self.ends: Int32Array = _room(count_max + 1 if is_wanted else 0, np.int32)
        self.ends[:1] = 0
        # The kernel clears the bits of nulls.
        self.validity: ByteArray = np.full((count_max + 7) // 8 if is_wanted else 0, 0xFF, np.uint8)
        self.data: ByteArray = _room(size_max + _COPY_ROOM if is_wanted else 0, np.uint8)

    @property
    def arrays(self) -> tuple[Int32Array, ByteArray, ByteArray]:
        return self.ends, self.validity, self.data

    def finish(self, count: int, size: int) -> pa.BinaryArray:
        buffers: list[pa.Buffer | None] = [
            pa.py_buffer(array.data)
            for array in (self.validity, self.ends[: count + 1], self.data[:size])
        ]
        return cast("pa.BinaryArray", pa.Array.from_buffers(pa.binary(), count, buffers))


def _decode_headers(
    data: ByteArray,
    unpacked: ByteArray,
    positions: Int64Array,
    count: int,
    names_size: int,
    values_size: int,
) -> pa.ListArray[Any]:
    from isotherm.kernels import columns as kernels

    list_ends: Int32Array = np.zeros(len(positions) + 1, dtype=np.int32)
    names = _BinaryBuilder(count, names_size)
    values = _BinaryBuilder(count, values_size)
    # Their number and sizes are known from the first pass, so the columns get exact memory.
    kernels.decode_headers(data, unpacked, positions, list_ends, names.arrays, values.arrays)
    pairs = pa.StructArray.from_arrays(
        [_to_strings(names.finish(count, names_size)), values.finish(count, values_size)],
        fields=[pa.field("key", pa.string()), pa.field("value", pa.binary())],
    )
    list_offsets = pa.array(list_ends, pa.int32())
    return cast("pa.ListArray[Any]", pa.ListArray.from_arrays(list_offsets, pairs))


def _to_strings(names: pa.BinaryArray) -> pa.StringArray:
    try:
        return cast("pa.StringArray", names.cast(pa.string()))
    except pa.ArrowInvalid:
        # A name is not UTF-8. This is the only loop per record, and runs for damaged names only.
        texts = [str(name, "utf-8", "replace") for name in names.to_pylist() if name is not None]
        return pa.array(texts, pa.string())
