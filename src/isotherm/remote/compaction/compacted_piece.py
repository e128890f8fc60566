"""The second pass over a piece: writes its segment again without superseded records.

The rules are the log cleaner's (isotherm.segment.cleaning.filtering), with two additions: segments
are not merged, and the last batch stays even if it is empty (docs/decisions/0050).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isotherm.record.batch_header import CONTROL_FLAG
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
from isotherm.segment.cleaning.chunk import Chunk
from isotherm.segment.cleaning.filtering import BatchRules, filter_chunk
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.types import ProducerId

if TYPE_CHECKING:
    from isotherm.record.batch_table import Int64Array
    from isotherm.record.filter import PlaceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules(RewriteRules):
    """Delete horizons are compared with `now_ms` and set from it."""

    delete_retention_ms: int


def compact_piece(
    storage: RemoteStorageManager,
    piece: Piece,
    newest: Int64Array,
    open_producers: Collection[ProducerId],
    rules: CompactionRules,
    segment_id: RemoteLogSegmentId,
    directory: Path,
) -> RewrittenSegment:
    """Write the files of the segment that replaces a piece.

    `newest` has the offsets of the newest records of their keys, ascending and relative to the
    piece's start. `open_producers` have a transaction that is open at the start. Raises
    CorruptObjectError with the segment's name; the caller removes the files.
    """
    parts = _parts(storage, piece, _PieceCleaner(piece, newest, open_producers, rules), rules)
    return write_segment(storage, piece, parts, rules, segment_id, directory)


def _parts(
    storage: RemoteStorageManager, piece: Piece, cleaner: _PieceCleaner, rules: CompactionRules
) -> Iterator[RewrittenPart]:
    for chunk, is_last in read_chunks(storage, piece, rules.fetch_bytes):
        with located(piece):
            if piece.is_cleaned:
                part = cleaner.clean(chunk, is_last=is_last)
            else:
                part = kept_part(piece, chunk)
        yield part


class _PieceCleaner:
    def __init__(
        self,
        piece: Piece,
        newest: Int64Array,
        open_producers: Collection[ProducerId],
        rules: CompactionRules,
    ) -> None:
        self._piece = piece
        self._newest = newest + piece.start_offset
        self._rules = rules
        self._transactions = CleanedTransactions(open_producers, start_offset=piece.start_offset)
        self._transactions.add_aborted(piece.aborted)

    def clean(self, chunk: Chunk, *, is_last: bool) -> RewrittenPart:
        always = np.ones(len(chunk.batches), dtype=np.bool_)
        stays = ~always
        stays[-1] = is_last
        batch_rules = BatchRules(
            self._rules.now_ms,
            self._rules.delete_retention_ms,
            self._piece.last_records or {},
            kept_when_empty=stays,
            in_map=always,
            # The first pass has verified the CRCs, but in an earlier read of the object.
            is_verified=~always,
        )
        done = filter_chunk(chunk, batch_rules, self._transactions, self._choose)
        return RewrittenPart(
            chunk, done.filtered.spliced, done.records_kept, self._transactions.take_retained()
        )

    def _choose(self, chunk: Chunk, places: PlaceTable, expiry_ms: Int64Array) -> int:
        batches = places["batch"]
        is_control = chunk.batches["attributes"][batches] & CONTROL_FLAG != 0
        has_key = places["key_size"] >= 0
        # `newest` is sorted. np.isin would sort it again for each chunk.
        rows = np.searchsorted(self._newest, places["offset"])
        is_newest = np.zeros(len(places), dtype=np.bool_)
        inside = rows < len(self._newest)
        is_newest[inside] = self._newest[rows[inside]] == places["offset"][inside]
        has_expired = (places["value_size"] < 0) & (self._rules.now_ms >= expiry_ms[batches])
        # Control records are dropped with their batches alone, records without a key always.
        places["is_kept"] = is_control | (has_key & is_newest & ~has_expired)
        return int((~is_control & ~has_key).sum())
