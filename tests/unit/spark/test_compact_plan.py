"""Which parts of a history are cleaned, and parts of segments that are rewritten."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import numpy as np
import pytest

from isotherm.errors import CorruptObjectError
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.remote.compaction.rewrite import CompactionRules, rewrite_piece
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact_plan import CompactionPlan, plan_compaction
from isotherm.spark.plan.planning import SegmentPiece, lineage_pieces
from isotherm.types import TopicIdPartition
from tests.support.compacted_log import CompactedLog
from tests.support.record_segments import RecordSegmentMaker
from tests.support.tiered_history import tier_closed_segments

OWNER = TopicIdPartition(uuid.UUID(int=1), "t", 0)
RULES = CompactionRules(now_ms=1, delete_retention_ms=1)


@pytest.fixture
def storage(tmp_path: Path) -> ObjectStoreRemoteStorageManager:
    settings = ObjectStoreSettings(url=(tmp_path / "bucket").as_uri())
    return ObjectStoreRemoteStorageManager(settings)


def plan_of(
    storage: ObjectStoreRemoteStorageManager,
    segments: list[RemoteLogSegmentMetadata],
    *,
    in_place: bool,
) -> CompactionPlan:
    pieces = {OWNER.topic_partition: lineage_pieces(segments)}
    return plan_compaction(storage, pieces, in_place=in_place)


def test_nothing_is_cleaned_from_a_transaction_on_that_is_open_at_the_end_of_the_bucket(
    tmp_path: Path, storage: ObjectStoreRemoteStorageManager
) -> None:
    log = CompactedLog(tmp_path / "t-0")
    log.append(("a", "1"))
    log.log.roll()
    log.transact(("a", "2"), producer=(7, 0))
    log.append(("a", "3"))
    log.log.roll()
    log.abort((7, 0))
    log.log.roll()
    segments = tier_closed_segments(storage, OWNER, log.log, itertools.count(1))
    assert len(segments) == 3
    decided = plan_of(storage, segments, in_place=True)
    assert [piece.is_cleaned for piece in decided.pieces] == [True, True, True]
    assert [len(piece.aborted) for piece in decided.pieces] == [0, 1, 1]
    open_at_the_end = plan_of(storage, segments[:2], in_place=True)
    assert [piece.is_cleaned for piece in open_at_the_end.pieces] == [True, False]


@pytest.fixture
def overlapping(
    tmp_path: Path, storage: ObjectStoreRemoteStorageManager
) -> list[RemoteLogSegmentMetadata]:
    """Three segments with offsets 0-9, 5-14 and 15-19, in batches of five."""
    maker = RecordSegmentMaker(tmp_path / "made", storage)

    def segment(*starts: int) -> RemoteLogSegmentMetadata:
        batches = [
            build_batch(
                [(1, b"k%d" % n, b"v", ()) for n in range(start, start + 5)], base_offset=start
            )
            for start in starts
        ]
        return maker.tier(OWNER, batches)

    return [segment(0, 5), segment(5, 10), segment(15)]


def test_in_place_a_segment_that_overlaps_another_ends_what_is_cleaned(
    storage: ObjectStoreRemoteStorageManager, overlapping: list[RemoteLogSegmentMetadata]
) -> None:
    in_place = plan_of(storage, overlapping, in_place=True)
    assert [(p.start_offset, p.end_offset) for p in in_place.pieces] == [
        (0, 10),
        (10, 15),
        (15, 20),
    ]
    assert [piece.is_cleaned for piece in in_place.pieces] == [True, False, False]
    copy = plan_of(storage, overlapping, in_place=False)
    assert copy.cleaned == copy.pieces
    assert copy.partitions == [OWNER]


@pytest.mark.parametrize("fetch_bytes", [70, 1_000_000])
def test_of_a_segment_that_overlaps_the_part_that_is_the_log_is_written(
    tmp_path: Path,
    storage: ObjectStoreRemoteStorageManager,
    overlapping: list[RemoteLogSegmentMetadata],
    fetch_bytes: int,
) -> None:
    piece = plan_of(storage, overlapping, in_place=False).pieces[1]
    rules = CompactionRules(now_ms=1, delete_retention_ms=1, fetch_bytes=fetch_bytes)
    segment_id = RemoteLogSegmentId(OWNER, uuid.UUID(int=5))
    newest = np.array([1, 4])
    rewritten = rewrite_piece(storage, piece, newest, (), rules, segment_id, tmp_path)
    headers = [header for _, header in iterate_batches(rewritten.data.log_path.read_bytes())]
    assert [(each.base_offset, each.records_count) for each in headers] == [(10, 2)]
    new = rewritten.metadata
    assert (new.start_offset, new.end_offset_inclusive) == (10, 14)
    assert dict(new.segment_leader_epochs) == {0: 10}
    assert rewritten.counts.records_kept == 2


def test_what_is_above_the_cleaned_part_stays_as_it_is(
    tmp_path: Path,
    storage: ObjectStoreRemoteStorageManager,
    overlapping: list[RemoteLogSegmentMetadata],
) -> None:
    piece = plan_of(storage, overlapping, in_place=True).pieces[2]
    segment_id = RemoteLogSegmentId(OWNER, uuid.UUID(int=5))
    rewritten = rewrite_piece(
        storage, piece, np.array([], np.int64), (), RULES, segment_id, tmp_path
    )
    assert not rewritten.is_changed
    source = storage.fetch_log_segment(overlapping[2], 0)
    assert rewritten.data.log_path.read_bytes() == bytes(source)


def test_a_border_inside_a_batch_is_damage(
    tmp_path: Path,
    storage: ObjectStoreRemoteStorageManager,
    overlapping: list[RemoteLogSegmentMetadata],
) -> None:
    pieces = {OWNER.topic_partition: [SegmentPiece(overlapping[0], 2, 10)]}
    (piece,) = plan_compaction(storage, pieces, in_place=False).pieces
    segment_id = RemoteLogSegmentId(OWNER, uuid.UUID(int=5))
    with pytest.raises(CorruptObjectError, match="across the border"):
        rewrite_piece(storage, piece, np.array([0]), (), RULES, segment_id, tmp_path)
