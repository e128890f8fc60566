"""Which parts of a history are cleaned, and parts of segments that are rewritten."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isotherm.errors import CorruptObjectError
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.remote.compaction.compacted_piece import CompactionRules, compact_piece
from isotherm.remote.rewriting.pieces import Piece, read_chunks
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact import read_plan, report, settings_of
from isotherm.spark.jobs.compact_plan import (
    CompactionPlan,
    plan_compaction,
)
from isotherm.spark.jobs.rewrite_plan import unproven_histories
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import SegmentPiece, lineage_pieces
from isotherm.spark.reading.epoch_proof import WrongEpochsError
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.bucket_queries import QueriedBucket
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
    rewritten = compact_piece(storage, piece, newest, (), rules, segment_id, tmp_path)
    headers = [header for _, header in iterate_batches(rewritten.data.log_path.read_bytes())]
    assert [(header.base_offset, header.records_count) for header in headers] == [(10, 2)]
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
    rewritten = compact_piece(
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
        compact_piece(storage, piece, np.array([0]), (), RULES, segment_id, tmp_path)


# Leader epochs that decide which segment is the log


def elected_in_between(
    bucket: QueriedBucket, *, deposed_end: int
) -> list[RemoteLogSegmentMetadata]:
    """The leader of epoch 1 was elected uncleanly at 150. The deposed one stored its segment last.
    Its manifest is right, and that of the elected one hides epoch 1."""
    before = bucket.store(0, 100)
    elected = bucket.store(100, 180, epochs={0: 100, 1: 150})
    after = bucket.store(180, 200, epochs={1: 180})
    deposed = bucket.store(100, deposed_end)
    changes = ((elected, "segmentLeaderEpochs", {"0": 100}), (deposed, "eventTimestampMs", 1))
    for segment, name, value in changes:
        path = bucket.path(segment, "rsm-manifest")
        members = json.loads(path.read_bytes())
        members["remoteLogSegmentMetadata"][name] = value
        path.write_bytes(json.dumps(members).encode())
    elected = replace(elected, segment_leader_epochs={0: 100})
    return [before, elected, after, replace(deposed, event_timestamp_ms=1)]


def proven_plan(
    storage: ObjectStoreRemoteStorageManager,
    histories: dict[TopicPartition, list[RemoteLogSegmentMetadata]],
) -> CompactionPlan:
    unproven = unproven_histories(storage, histories)
    pieces = {partition: lineage_pieces(segments) for partition, segments in histories.items()}
    return plan_compaction(storage, pieces, in_place=True, unproven=unproven)


def test_in_place_no_record_of_a_deposed_leader_supersedes_another_one(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    tmp_path: Path,
) -> None:
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    bucket = QueriedBucket(storage_settings, storage, maker, OWNER)
    wrong = elected_in_between(bucket, deposed_end=180)
    other = TopicIdPartition(uuid.UUID(int=1), "t", 1)
    sound = QueriedBucket(storage_settings, storage, maker, other).store(0, 50)
    # The deposed leader's segment is the newer copy of the same offsets and epoch.
    assert [piece.segment for piece in lineage_pieces(wrong)] == [wrong[0], wrong[3], wrong[2]]
    plan = proven_plan(storage, {OWNER.topic_partition: wrong, other.topic_partition: [sound]})
    assert [piece.segment for piece in plan.cleaned] == [sound]
    assert [piece.is_cleaned for piece in plan.pieces] == [False, False, False, True]
    (error,) = plan.unproven.values()
    assert isinstance(error, WrongEpochsError)
    assert str(wrong[1].segment_id) in str(error)
    rows = [(each.partition, each.segments, each.uncleanable) for each in report(plan, [])]
    assert rows == [(OWNER, 3, 3), (other, 1, 0)]


def test_right_epochs_of_overlapping_segments_are_proven(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    tmp_path: Path,
) -> None:
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    bucket = QueriedBucket(storage_settings, storage, maker, OWNER)
    wrong = elected_in_between(bucket, deposed_end=196)
    right = [wrong[0], replace(wrong[1], segment_leader_epochs={0: 100, 1: 150}), *wrong[2:]]
    plan = proven_plan(storage, {OWNER.topic_partition: right})
    assert not plan.unproven
    assert [piece.is_cleaned for piece in plan.pieces] == [True, False, False, False]


@pytest.mark.parametrize("deposed_end", [180, 196])
def test_a_copy_is_refused_whose_records_would_be_those_of_a_deposed_leader(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    tmp_path: Path,
    deposed_end: int,
) -> None:
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    bucket = QueriedBucket(storage_settings, storage, maker, OWNER)
    elected = elected_in_between(bucket, deposed_end=deposed_end)[1]
    options = parse_options({"path": storage_settings.url, "subscribe": "t"})
    settings = settings_of(options, now_ms=1, delete_retention_ms=1, to_url=str(tmp_path / "copy"))
    with pytest.raises(WrongEpochsError, match=str(elected.segment_id)):
        read_plan(options, settings)


def test_a_segment_whose_epochs_are_not_those_of_its_batches_is_damage(
    storage_settings: ObjectStoreSettings,
    storage: ObjectStoreRemoteStorageManager,
    tmp_path: Path,
) -> None:
    """Nothing is left out for it, so only its own read can show it."""
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    bucket = QueriedBucket(storage_settings, storage, maker, OWNER)
    segment = bucket.store(0, 20, epochs={0: 0, 1: 10})
    for epochs in ({0: 0}, {0: 0, 1: 5}, {0: 0, 1: 15}, {0: 0, 2: 10}):
        piece = Piece(0, replace(segment, segment_leader_epochs=epochs), 0, 20)
        with pytest.raises(CorruptObjectError, match="another leader epoch"):
            list(read_chunks(storage, piece, 10**6))
    assert list(read_chunks(storage, Piece(0, segment, 0, 20), 10**6))
