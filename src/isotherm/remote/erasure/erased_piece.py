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
from isotherm.record.batch_table import verify_crcs
from isotherm.record.compression import compress
from isotherm.record.filter import (
    FilteredBatches,
    copy_batches,
    decide_outcomes,
    locate_records,
    write_filtered,
)
from isotherm.record.varint import read_varint, write_varint, write_varlong
from isotherm.remote.erasure.redaction import FieldPath, redacted
from isotherm.remote.rewriting.pieces import Piece, located, read_chunks
from isotherm.remote.rewriting.segment_rewrite import (
    RewriteRules,
    RewrittenPart,
    RewrittenSegment,
    aborted_of,
    kept_part,
    write_segment,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.cleaning.chunk import Chunk
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
    for chunk, is_last in read_chunks(storage, piece, rules.fetch_bytes):
        with located(piece):
            first, last = int(chunk.batches["base_offset"][0]), int(chunk.last_offsets[-1])
            start, end = np.searchsorted(selected, (first, last + 1)).tolist()
            if start == end:
                part = kept_part(piece, chunk)
            elif rules.action is EraseAction.DROP:
                part = _dropped(piece, chunk, selected[start:end], is_last=is_last)
            else:
                part = _changed(piece, chunk, selected[start:end], rules)
        yield part


def _dropped(piece: Piece, chunk: Chunk, selected: Int64Array, *, is_last: bool) -> RewrittenPart:
    batches = chunk.batches
    # All of them, since a batch that is copied would not be checked.
    verify_crcs(chunk.data, batches)
    aborted = aborted_of(piece, chunk)
    places, is_selected = _located_records(chunk, selected)
    places["is_kept"] = ~is_selected
    kept_when_empty = has_last_data(chunk, piece.last_records or {})
    kept_when_empty[-1] |= is_last
    never = np.zeros(len(batches), dtype=np.bool_)
    outcomes = decide_outcomes(
        batches,
        places,
        chunk.records_count,
        kept_when_empty=kept_when_empty,
        gets_horizon=never,
        gets_horizon_with_tombstone=never,
        new_horizon_ms=0,
    )
    from isotherm.kernels.filter import COPIED

    # A batch that an earlier round has emptied loses nothing, and stays.
    outcomes["kind"][chunk.records_count == 0] = COPIED
    filtered = write_filtered(
        chunk.data, chunk.unpacked, batches, places, outcomes, is_verified=~never
    )
    return RewrittenPart(chunk, filtered, int(outcomes["kept_count"].sum()), aborted)


def _located_records(chunk: Chunk, selected: Int64Array) -> tuple[PlaceTable, BoolArray]:
    """All records of a chunk, and which of them are selected. Control records never are."""
    places = locate_records(chunk.data, chunk.unpacked, chunk.batches)
    is_control = chunk.batches["attributes"][places["batch"]] & CONTROL_FLAG != 0
    rows = np.minimum(np.searchsorted(selected, places["offset"]), len(selected) - 1)
    is_selected: BoolArray = (selected[rows] == places["offset"]) & ~is_control
    return places, is_selected


class _NewBatch(NamedTuple):
    row: int
    data: bytearray


def _changed(
    piece: Piece, chunk: Chunk, selected: Int64Array, rules: ErasureRules
) -> RewrittenPart:
    """The chunk with other values in the selected records. Python runs for each record of a batch
    that holds one of them, and for no other batch."""
    kept = kept_part(piece, chunk)
    places, is_selected = _located_records(chunk, selected)
    new = []
    for row in np.unique(places["batch"][is_selected]).tolist():
        ours = places["batch"] == row
        data = _changed_batch(piece, chunk, row, places[ours], is_selected[ours], rules)
        if data is not None:
            new.append(_NewBatch(row, data))
    return kept._replace(filtered=_with_new(chunk, new)) if new else kept


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


def _with_new(chunk: Chunk, new: list[_NewBatch]) -> FilteredBatches:
    """The batches of the chunk, some of them replaced."""
    kept = copy_batches(chunk.data, chunk.batches)
    written = kept.batches
    positions, sizes = written["position"].copy(), written["size"].copy()
    out = bytearray()
    copied_to = int(positions[0])
    for row, data in new:
        out += chunk.data[copied_to : int(positions[row])]
        out += data
        copied_to = int(positions[row] + sizes[row])
        written["size"][row] = len(data)
        written["is_new"][row] = 1
    out += chunk.data[copied_to : int(positions[-1] + sizes[-1])]
    written["position"] = np.cumsum(written["size"]) - written["size"]
    return FilteredBatches(memoryview(out), written)
