"""A tiered log with keys, and the segments that a job stages for it, without Spark."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isotherm.remote.compaction.compacted_piece import CompactionRules, compact_piece
from isotherm.remote.compaction.newest_keys import PLACE_BITS, newest_places, relative_offsets
from isotherm.remote.rewriting.journal import (
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
    SegmentReplacement,
)
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.staging import stage_segment
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.segment.cleaning.transactions import OpenTransactions
from isotherm.types import TopicIdPartition

FETCH_BYTES = 1000


class LocalCompaction:
    """Runs the steps of the job in order, in one process."""

    def __init__(
        self,
        storage: ObjectStoreRemoteStorageManager,
        journals: RewriteJournals,
        directory: Path,
        rules: CompactionRules,
    ) -> None:
        self.storage = storage
        self.journals = journals
        self.directory = directory
        self.rules = rules
        self._ids = itertools.count(1000)

    def stage(
        self,
        run: str,
        segments: list[RemoteLogSegmentMetadata],
        *,
        in_place: bool,
        keep_old_ms: int = 0,
        target: ObjectStoreRemoteStorageManager | None = None,
        kind: RunKind = RunKind.COMPACTION,
    ) -> RewriteJournal:
        owner: TopicIdPartition = segments[0].topic_id_partition
        journal = RewriteJournal(
            kind=kind,
            run=run,
            partition=owner,
            state=JournalState.STAGING,
            time_ms=self.rules.now_ms,
            in_place=in_place,
            keep_old_ms=keep_old_ms,
        )
        self.journals.put(journal)
        pieces = [
            Piece(number, each, each.start_offset, each.end_offset_inclusive + 1)
            for number, each in enumerate(segments)
        ]
        newest: dict[bytes, int] = {}
        for piece in pieces:
            for table in newest_places(self.storage, piece, FETCH_BYTES, OpenTransactions()):
                for key, place in zip(*table.to_pydict().values(), strict=True):
                    newest[key] = max(place, newest.get(key, -1))
        kept = defaultdict(list)
        for place in newest.values():
            kept[place >> PLACE_BITS].append(place)
        staged = tuple(
            self._stage(
                run, piece, sorted(kept[piece.number]), target or self.storage, in_place=in_place
            )
            for piece in pieces
        )
        done = RewriteJournal(
            kind=kind,
            run=run,
            partition=owner,
            state=JournalState.STAGED,
            time_ms=self.rules.now_ms,
            in_place=in_place,
            keep_old_ms=keep_old_ms,
            replacements=tuple(each for each in staged if each is not None),
        )
        self.journals.put(done)
        return done

    def _stage(
        self,
        run: str,
        piece: Piece,
        places: list[int],
        target: ObjectStoreRemoteStorageManager,
        *,
        in_place: bool,
    ) -> SegmentReplacement | None:
        number = next(self._ids)
        directory = self.directory / f"{run}-{number}"
        directory.mkdir(parents=True)
        rewritten = compact_piece(
            self.storage,
            piece,
            relative_offsets(np.array(places, dtype=np.int64)),
            (),
            self.rules,
            RemoteLogSegmentId(piece.segment.topic_id_partition, uuid.UUID(int=number)),
            directory,
        )
        if in_place and not rewritten.is_changed:
            return None
        return stage_segment(target, self.journals, run, piece.segment, rewritten, FETCH_BYTES)


@pytest.fixture
def local_compaction() -> Callable[..., LocalCompaction]:
    return LocalCompaction
