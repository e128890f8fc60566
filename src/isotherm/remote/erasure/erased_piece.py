"""Writes a piece again without its selected records, or without what they say.

    DROP        the record goes, and its offset is a gap, as after compaction
    TOMBSTONE   its key stays; value and headers go
    REDACT      fields of its JSON value become null

A batch without a selected record stays byte for byte, data of aborted transactions and markers
included. A batch that loses all its records follows the log cleaner's rule: it is removed, unless
it is the last one of an active producer, or of the segment. Markers and the transaction index stay:
the next compaction drops a marker without batches, as the cleaner does.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import PolicyViolationError
from isotherm.record.batch import read_batch_header
from isotherm.record.batch_header import CONTROL_FLAG, DELETE_HORIZON_FLAG, encode_batch
from isotherm.record.compression import compress
from isotherm.record.filter import (
    FilteredBatches,
    decide_outcomes,
    locate_records,
    replace_batches,
    write_filtered,
)
from isotherm.record.varint import read_varint, write_varint, write_varlong
from isotherm.remote.erasure.redaction import FieldPath, redacted
from isotherm.remote.rewriting.pieces import Piece, located, read_chunks
from isotherm.remote.rewriting.segment_rewrite import (
    RewriteRules,
    RewrittenPart,
    RewrittenSegment,
    kept_part,
    write_segment,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.cleaning.chunk import Chunk, read_packed_chunk
from isotherm.segment.cleaning.filtering import has_last_data

if TYPE_CHECKING:
    from isotherm.record.batch_table import BoolArray, Int64Array
    from isotherm.record.filter import PlaceTable

_NULL_VALUE_AND_NO_HEADERS = bytes([1, 0])


class EraseAction(enum.Enum):
    DROP = "drop"
    TOMBSTONE = "tombstone"
    REDACT = "redact"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRules(RewriteRules):
    """`fields` are those that REDACT replaces."""

    action: EraseAction
    fields: tuple[FieldPath, ...] = ()


def erase_piece(
    storage: RemoteStorageManager,
    piece: Piece,
    selected: Int64Array,
    rules: ErasureRules,
    segment_id: RemoteLogSegmentId,
    directory: Path,
) -> RewrittenSegment:
    """Write the files of the segment that replaces a piece.

    `selected` has the offsets of the records, ascending and relative to the piece's start. Raises
    CorruptObjectError with the segment's name, and PolicyViolationError for a record whose value is
    not JSON and should be redacted; the caller removes the files.
    """
    parts = _parts(storage, piece, selected + piece.start_offset, rules)
    return write_segment(storage, piece, parts, rules, segment_id, directory)


def _parts(
    storage: RemoteStorageManager, piece: Piece, selected: Int64Array, rules: ErasureRules
) -> Iterator[RewrittenPart]:
    # Most batches are copied: only those with a selected record are decompressed.
    for chunk, is_last in read_chunks(storage, piece, rules.fetch_bytes, read_packed_chunk):
        with located(piece):
            # All batches, since one that is copied would not be checked.
            part = kept_part(piece, chunk)
            rows = _rows_with(chunk, selected)
            if len(rows) and rules.action is EraseAction.DROP:
                part = _dropped(piece, part, rows, selected, is_last=is_last)
            elif len(rows):
                part = _changed(piece, part, rows, selected, rules)
        yield part


def _rows_with(chunk: Chunk, selected: Int64Array) -> Int64Array:
    """The rows of the batches among whose offsets are selected ones. A batch that an earlier round
    has emptied is none of them: it loses nothing."""
    starts = np.searchsorted(selected, chunk.batches["base_offset"])
    ends = np.searchsorted(selected, chunk.last_offsets, side="right")
    return np.flatnonzero((starts < ends) & (chunk.records_count > 0))


def _dropped(
    piece: Piece, part: RewrittenPart, rows: Int64Array, selected: Int64Array, *, is_last: bool
) -> RewrittenPart:
    """The chunk without its selected records, which are in the batches of `rows`."""
    from isotherm.kernels.filter import COPIED, DROPPED

    chunk = part.chunk
    kept_when_empty = has_last_data(chunk, piece.last_records or {})
    kept_when_empty[-1] |= is_last
    new, lost = [], 0
    for rows_at_once, unpacked in chunk.unpacked_rows(rows):
        batches = unpacked.batches
        places, is_selected = _located_records(unpacked, selected)
        places["is_kept"] = ~is_selected
        never = np.zeros(len(batches), dtype=np.bool_)
        outcomes = decide_outcomes(
            batches,
            places,
            unpacked.records_count,
            kept_when_empty=kept_when_empty[rows_at_once],
            gets_horizon=never,
            gets_horizon_with_tombstone=never,
            new_horizon_ms=0,
        )
        changes = outcomes["kind"] != COPIED
        if not changes.any():
            continue
        filtered = write_filtered(
            chunk.data, unpacked.unpacked, batches, places, outcomes, is_verified=~never
        )
        lost += int(is_selected.sum())
        new.append(_NewBatches(rows_at_once, outcomes["kind"] != DROPPED, filtered))
    return _with_new(part, new, lost)


def _located_records(chunk: Chunk, selected: Int64Array) -> tuple[PlaceTable, BoolArray]:
    """All records of a chunk, and which of them are selected. Control records never are."""
    places = locate_records(chunk.data, chunk.unpacked, chunk.batches)
    is_control = chunk.batches["attributes"][places["batch"]] & CONTROL_FLAG != 0
    rows = np.minimum(np.searchsorted(selected, places["offset"]), len(selected) - 1)
    is_selected: BoolArray = (selected[rows] == places["offset"]) & ~is_control
    return places, is_selected


class _NewBatches(NamedTuple):
    """What becomes of the batches of some rows of a chunk: those that are left are `filtered`."""

    rows: Int64Array
    is_left: BoolArray
    filtered: FilteredBatches


def _changed(
    piece: Piece, part: RewrittenPart, rows: Int64Array, selected: Int64Array, rules: ErasureRules
) -> RewrittenPart:
    """The chunk with other values in the selected records, which are in the batches of `rows`.
    Python runs for each record of these batches."""
    new = []
    for rows_at_once, unpacked in part.chunk.unpacked_rows(rows):
        places, is_selected = _located_records(unpacked, selected)
        changed_rows, changed = [], []
        for row in np.unique(places["batch"][is_selected]).tolist():
            ours = places["batch"] == row
            data = _changed_batch(piece, unpacked, row, places[ours], is_selected[ours], rules)
            if data is not None:
                changed_rows.append(int(rows_at_once[row]))
                changed.append(data)
        if changed:
            written = part.spliced.batches[changed_rows]
            written["size"] = [len(data) for data in changed]
            written["is_new"] = 1
            filtered = FilteredBatches(memoryview(b"".join(changed)), written)
            is_left = np.ones(len(changed), dtype=np.bool_)
            new.append(_NewBatches(np.array(changed_rows), is_left, filtered))
    return _with_new(part, new, lost=0)


def _with_new(part: RewrittenPart, new: list[_NewBatches], lost: int) -> RewrittenPart:
    if not new:
        return part
    spliced = replace_batches(
        part.chunk.data,
        part.chunk.batches,
        np.concatenate([batches.rows for batches in new]),
        np.concatenate([batches.is_left for batches in new]),
        FilteredBatches(
            memoryview(b"".join([batches.filtered.records for batches in new])),
            np.concatenate([batches.filtered.batches for batches in new]),
        ),
    )
    return part._replace(spliced=spliced, records_kept=part.records_kept - lost)


def _changed_batch(
    piece: Piece,
    chunk: Chunk,
    row: int,
    places: PlaceTable,
    is_selected: BoolArray,
    rules: ErasureRules,
) -> bytearray | None:
    """The batch with its changed records, None if none of them changes."""
    header = read_batch_header(chunk.data, int(chunk.batches["position"][row]))
    is_unpacked = bool(chunk.batches["is_unpacked"][row])
    source = memoryview((chunk.unpacked if is_unpacked else chunk.array).data)
    if rules.action is EraseAction.TOMBSTONE and header.has_delete_horizon:
        # The horizon is that of older tombstones. The new ones would be dropped by it before their
        # readers have met them: the next compaction sets one for all.
        header = header._replace(
            attributes=header.attributes & ~DELETE_HORIZON_FLAG,
            base_timestamp=int(places["timestamp"][0]),
        )
    payload = bytearray()
    has_changed = False
    for place, is_ours in zip(places, is_selected.tolist(), strict=True):
        offset, key_size = int(place["offset"]), int(place["key_size"])
        rest = source[int(place["key_start"]) : int(place["end"])]
        if is_ours:
            after_key = _changed_rest(piece, offset, rest[max(key_size, 0) :], rules)
            if after_key is not None:
                has_changed = True
                rest = memoryview(bytes(rest[: max(key_size, 0)]) + after_key)
        body = bytearray(1)
        write_varlong(body, int(place["timestamp"]) - header.base_timestamp)
        write_varint(body, offset - header.base_offset)
        write_varint(body, key_size)
        write_varint(payload, len(body) + len(rest))
        payload += body
        payload += rest
    if not has_changed:
        return None
    return encode_batch(header, compress(header.compression_type, payload))


def _changed_rest(piece: Piece, offset: int, rest: memoryview, rules: ErasureRules) -> bytes | None:
    """A record's bytes behind its key (value and headers) as they become; None if they stay."""
    if rules.action is EraseAction.TOMBSTONE:
        return None if bytes(rest) == _NULL_VALUE_AND_NO_HEADERS else _NULL_VALUE_AND_NO_HEADERS
    size, start = read_varint(rest, 0)
    if size < 0:
        return None
    before = bytes(rest[start : start + size])
    try:
        after = redacted(before, rules.fields)
    except ValueError as error:
        raise PolicyViolationError(
            f"a value that should be redacted is not JSON"
            f" partition={piece.segment.topic_id_partition.topic_partition} offset={offset}"
            f" reason='{error}' hint='--action drop or --action tombstone'"
        ) from None
    if after == before:
        return None
    out = bytearray()
    write_varint(out, len(after))
    return bytes(out + after + bytes(rest[start + size :]))
