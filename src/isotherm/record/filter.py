"""Rewrites record batches without some of their records, as compaction does.

    unpack_records (batch_table)   decompress
    locate_records                 find every record; the caller clears `is_kept` of some
    decide_outcomes                decide for each batch: drop, copy, empty or rebuild
    write_filtered                 write the bytes

A batch that loses records keeps its base offset, last offset delta, leader epoch, producer id,
epoch and base sequence, flags, timestamp type and codec (at its default level). Its maximum
timestamp is that of the kept records (with LogAppendTime: unchanged). A batch that keeps all
records is copied unchanged. Python runs once per batch at most, and only for rebuilt ones.
Source: Kafka MemoryRecords.filterTo, KIP-534.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from isotherm.record.batch_header import CODEC_MASK, CODECS, DELETE_HORIZON_FLAG, HEADER_SIZE
from isotherm.record.batch_table import CRC_START, byte_array, damaged, verify_crcs
from isotherm.record.compression import compress
from isotherm.record.crc32c import crc32c_of_array

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch_table import BatchTable, BoolArray, ByteArray, Int64Array
    from isotherm.record.varint import ReadBuffer
    from isotherm.types import TimestampMs

    # Rows of PLACE of isotherm.kernels.tables, of OUTCOME and WRITTEN of isotherm.kernels.filter.
    PlaceTable: TypeAlias = npt.NDArray[np.void]
    OutcomeTable: TypeAlias = npt.NDArray[np.void]
    WrittenTable: TypeAlias = npt.NDArray[np.void]
    IndexArray: TypeAlias = npt.NDArray[np.intp]

_CRC = struct.Struct(">I")
_CRC_POSITION = 17


class FilteredBatches(NamedTuple):
    """`batches` has the fields for index entries of each batch in `records`."""

    records: memoryview
    batches: WrittenTable

    def head(self, count: int) -> FilteredBatches:
        return FilteredBatches(self.records[: self._start_of(count)], self.batches[:count])

    def tail(self, count: int) -> FilteredBatches:
        return FilteredBatches(self.records[self._start_of(count) :], self.batches[count:])

    @property
    def spliced(self) -> SplicedBatches:
        return SplicedBatches((self.records,), self.batches)

    def _start_of(self, index: int) -> int:
        return int(self.batches["size"][:index].sum())


class SplicedBatches(NamedTuple):
    """Same as `FilteredBatches`, with the records in parts: most of them are in the buffer that was
    read, and are not copied."""

    records: Sequence[memoryview]
    batches: WrittenTable


def locate_records(buffer: ReadBuffer, unpacked: ByteArray, batches: BatchTable) -> PlaceTable:
    """Locate every record of unpacked batches, except in rows with `records_count` 0.

    Raises CorruptRecordError at a damaged record.
    """
    from isotherm.kernels import places as kernels
    from isotherm.kernels.tables import PLACE

    unread = batches["records_count"] == 0
    # The kernel takes bytes after the last record for damage. These rows have no records to read.
    batches["payload_end"][unread] = batches["payload_start"][unread]
    places = np.empty(int(batches["records_count"].sum()), dtype=PLACE)
    damaged_row, damaged_record, _ = kernels.locate_records(
        byte_array(buffer), unpacked, batches, places
    )
    if damaged_row >= 0:
        raise damaged(batches, damaged_row, f"record is damaged record_index={damaged_record}")
    return places


def decide_outcomes(
    batches: BatchTable,
    places: PlaceTable,
    records_count: npt.NDArray[np.int64],
    *,
    kept_when_empty: BoolArray,
    keeps_all: BoolArray | None = None,
    gets_horizon: BoolArray,
    gets_horizon_with_tombstone: BoolArray,
    new_horizon_ms: TimestampMs,
) -> OutcomeTable:
    """Decide for each batch whether it is dropped, copied, emptied or rebuilt.

    `is_kept` must be set in `places`. `records_count` is the original count of each batch (rows
    skipped by `locate_records` have 0). Those of `keeps_all` keep their records, though none was
    located. The delete horizon `new_horizon_ms` is set on batches that
    have none and keep a record, if `gets_horizon`, or if `gets_horizon_with_tombstone` and a kept
    record has no value.
    """
    from isotherm.kernels import filter as kernels

    # Zeros: DROPPED, unless it is decided otherwise below.
    outcomes = np.zeros(len(batches), dtype=kernels.OUTCOME)
    kernels.summarize_kept(batches, places, outcomes)
    kept_count = outcomes["kept_count"]
    if keeps_all is not None:
        kept_count[keeps_all] = records_count[keeps_all]
    is_empty = kept_count == 0
    has_horizon = batches["attributes"] & DELETE_HORIZON_FLAG != 0
    gets_horizon = gets_horizon | (gets_horizon_with_tombstone & (outcomes["keeps_tombstone"] != 0))
    gets_horizon = gets_horizon & ~has_horizon & ~is_empty
    is_rebuilt = ~is_empty & (gets_horizon | (kept_count < records_count))
    kind = outcomes["kind"]
    kind[is_empty & kept_when_empty] = kernels.EMPTIED
    kind[~is_empty] = kernels.COPIED
    kind[is_rebuilt] = kernels.REBUILT
    outcomes["has_horizon"] = has_horizon | gets_horizon
    # A horizon is set once (KIP-534): a later round must not prolong the life of a tombstone.
    outcomes["base_timestamp"][has_horizon] = batches["base_timestamp"][has_horizon]
    outcomes["base_timestamp"][gets_horizon] = new_horizon_ms
    return outcomes


def write_filtered(
    buffer: ReadBuffer,
    unpacked: ByteArray,
    batches: BatchTable,
    places: PlaceTable,
    outcomes: OutcomeTable,
    *,
    is_verified: BoolArray,
) -> FilteredBatches:
    """The remaining batches, and their bytes.

    Raises CorruptRecordError for a batch that loses records and fails its CRC. Its keys may not be
    those that were written, and a new CRC would hide the damage for good. Batches of `is_verified`
    are not checked again.
    """
    from isotherm.kernels import filter as kernels

    data = byte_array(buffer)
    # The usual outcome of a log that was cleaned before. The bytes are passed on without a copy.
    if (outcomes["kind"] == kernels.COPIED).all():
        return copy_batches(buffer, batches)
    rebuilt = outcomes["kind"] == kernels.REBUILT
    verify_crcs(buffer, batches[(outcomes["kind"] != kernels.COPIED) & ~is_verified])
    has_codec = batches["attributes"] & CODEC_MASK != 0
    payloads = _write_payloads(
        data, unpacked, batches, places, outcomes, np.flatnonzero(rebuilt & has_codec)
    )
    copied_size = batches["size"][outcomes["kind"] == kernels.COPIED].sum()
    plain_size = _rebuilt_size_max(batches, outcomes, rebuilt & ~has_codec)
    size_max = int(copied_size) + plain_size + len(payloads) + HEADER_SIZE * len(batches)
    out = np.empty(size_max, dtype=np.uint8)
    written = np.empty(len(batches), dtype=kernels.WRITTEN)
    count, size = kernels.write_batches(data, payloads, batches, places, outcomes, out, written)
    (kernels.set_crcs or set_crcs_by_library)(out, written[:count])
    return FilteredBatches(memoryview(out.data)[:size], written[:count])


def copy_batches(buffer: ReadBuffer, batches: BatchTable) -> FilteredBatches:
    """All batches of a buffer without other content, unchanged."""
    from isotherm.kernels import filter as kernels

    written = np.zeros(len(batches), dtype=kernels.WRITTEN)
    for name in ("position", "size", "base_offset", "max_timestamp"):
        written[name] = batches[name]
    written["last_offset"] = batches["base_offset"] + batches["last_offset_delta"]
    return FilteredBatches(memoryview(buffer)[: int(batches["size"].sum())], written)


def replace_batches(
    buffer: ReadBuffer,
    batches: BatchTable,
    rows: Int64Array,
    is_left: BoolArray,
    new: FilteredBatches,
) -> SplicedBatches:
    """All batches of a buffer without other content: those of `rows`, which ascend, as `new` has
    them, or left out where `is_left` is false, and the others unchanged. Python runs for each row
    of `rows`."""
    written = copy_batches(buffer, batches).batches
    starts, ends = written["position"][rows], (written["position"] + written["size"])[rows]
    new_sizes = np.zeros(len(rows), dtype=np.int64)
    new_sizes[is_left] = new.batches["size"]
    new_ends = np.cumsum(new_sizes)
    old, copied_to = memoryview(buffer), 0
    records: list[memoryview] = []
    for start, end, new_start, new_end in zip(
        starts.tolist(), ends.tolist(), (new_ends - new_sizes).tolist(), new_ends.tolist(),
        strict=True,
    ):  # fmt: skip
        records += old[copied_to:start], new.records[new_start:new_end]
        copied_to = end
    records.append(old[copied_to : int(batches["size"].sum())])
    written[rows[is_left]] = new.batches
    written = np.delete(written, rows[~is_left])
    written["position"] = np.cumsum(written["size"]) - written["size"]
    return SplicedBatches(records, written)


def _rebuilt_size_max(
    batches: BatchTable, outcomes: OutcomeTable, rows: BoolArray | IndexArray
) -> int:
    """The largest size of the records of rebuilt batches, not compressed."""
    from isotherm.kernels import filter as kernels

    old = batches["payload_end"][rows] - batches["payload_start"][rows]
    # A horizon replaces the base timestamp: deltas become negative, and may take more bytes.
    growth = outcomes["kept_count"][rows].sum() * kernels.RECORD_GROWTH_MAX
    return int(old.sum() + growth)


def _write_payloads(
    data: ByteArray,
    unpacked: ByteArray,
    batches: BatchTable,
    places: PlaceTable,
    outcomes: OutcomeTable,
    rows: IndexArray,
) -> ByteArray:
    """The records of the rebuilt batches with a codec, compressed. Sets their places in
    `outcomes`."""
    from isotherm.kernels import filter as kernels

    if not len(rows):
        return byte_array(b"")
    payloads = np.empty(_rebuilt_size_max(batches, outcomes, rows), dtype=np.uint8)
    kernels.write_payloads(data, unpacked, batches, places, outcomes, payloads)
    codecs = (batches["attributes"][rows] & CODEC_MASK).tolist()
    starts, ends = outcomes["payload_start"][rows].tolist(), outcomes["payload_end"][rows].tolist()
    parts = [
        compress(CODECS[codec], payloads.data[start:end])
        for codec, start, end in zip(codecs, starts, ends, strict=True)
    ]
    payload_ends = np.cumsum([len(part) for part in parts])
    outcomes["payload_start"][rows] = np.concatenate(([0], payload_ends[:-1]))
    outcomes["payload_end"][rows] = payload_ends
    return byte_array(b"".join(parts))


def set_crcs_by_library(out: ByteArray, written: WrittenTable) -> None:
    """The same as the kernel `set_crcs`, for processors that it does not support."""
    new = written[written["is_new"] != 0]
    starts = new["position"].tolist()
    ends = (new["position"] + new["size"]).tolist()
    value = crc32c_of_array
    pack_into = _CRC.pack_into
    for start, end in zip(starts, ends, strict=True):
        pack_into(out.data, start + _CRC_POSITION, value(out[start + CRC_START : end]))
