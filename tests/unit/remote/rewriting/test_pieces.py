"""The two passes over one segment: which records count as newest, and what is written again."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isotherm.errors import CorruptObjectError
from isotherm.record.batch import BatchHeader, build_batch, iterate_batches, read_records
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.crc32c import crc32c
from isotherm.remote.compaction.compacted_piece import CompactionRules, compact_piece
from isotherm.remote.compaction.newest_keys import newest_places, place_of, relative_offsets
from isotherm.remote.rewriting.pieces import Piece, read_chunks
from isotherm.remote.rewriting.segment_rewrite import RewrittenSegment
from isotherm.remote.rewriting.staging import verify_staged
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.cleaning.transactions import OpenTransactions
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.segment.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    read_producer_snapshot,
)
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.types import TopicIdPartition
from tests.support.filtered_batch import filtered_batch
from tests.support.record_segments import write_segment

OWNER = TopicIdPartition(uuid.UUID(int=1), "t", 0)
NEW = RemoteLogSegmentId(OWNER, uuid.UUID(int=5))
# Smaller than a batch, so that each batch comes alone, and larger than the segment.
FETCHES = [60, 10**6]
ABORTED = AbortedTransaction(7, 103, 106, 105)


def data(
    start: int, *keys: bytes | None, producer: int | None = None, value: bytes | None = b"v"
) -> bytes:
    batch = build_batch(
        [(1, key, value, ()) for key in keys],
        base_offset=start,
        producer_id=-1 if producer is None else producer,
        producer_epoch=-1 if producer is None else 0,
        base_sequence=-1 if producer is None else 0,
        is_transactional=producer is not None,
    )
    return bytes(batch)


BATCHES = [
    data(100, b"a", b"b", None),
    data(103, b"c", b"a", producer=7),
    data(105, b"d", producer=8),
    bytes(
        build_end_transaction_marker(
            ControlRecordType.ABORT,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=1,
            base_offset=106,
        )
    ),
    data(107, b"a", b"b"),
]


class Tier:
    """A bucket with one segment of batches."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        settings = ObjectStoreSettings(url=(directory / "bucket").as_uri())
        self.storage = ObjectStoreRemoteStorageManager(settings)
        self.written = 0

    def tier(
        self,
        batches: Sequence[bytes],
        *,
        snapshot: Sequence[ProducerSnapshotEntry] = (),
        max_timestamp_ms: int = 1,
    ) -> RemoteLogSegmentMetadata:
        made = write_segment(
            self.directory / "made",
            RemoteLogSegmentId(OWNER, uuid.UUID(int=9)),
            batches,
            end_offset_inclusive=None,
            leader_epochs={0: 100, 1: 105} if len(batches) == len(BATCHES) else {0: 100},
            event_timestamp_ms=9,
            index_interval_bytes=1,
        )
        made.data.producer_snapshot_path.write_bytes(encode_producer_snapshot(snapshot))
        metadata = replace(made.metadata, max_timestamp_ms=max_timestamp_ms)
        self.storage.copy_log_segment_data(metadata, made.data)
        return replace(metadata, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED)

    def rewrite(
        self,
        piece: Piece,
        *newest: int,
        fetch_bytes: int = 10**6,
        now_ms: int = 50,
        delete_retention_ms: int = 1000,
    ) -> RewrittenSegment:
        """`newest` are offsets of the log."""
        self.written += 1
        folder = self.directory / f"new-{self.written}"
        folder.mkdir()
        rules = CompactionRules(
            now_ms=now_ms, delete_retention_ms=delete_retention_ms, fetch_bytes=fetch_bytes
        )
        places = np.array(newest, dtype=np.int64) - piece.start_offset
        return compact_piece(self.storage, piece, places, (), rules, NEW, folder)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


def whole(segment: RemoteLogSegmentMetadata, *, number: int = 3) -> Piece:
    return Piece(
        number, segment, segment.start_offset, segment.end_offset_inclusive + 1, (ABORTED,)
    )


def headers_of(rewritten: RewrittenSegment) -> list[BatchHeader]:
    return [header for _, header in iterate_batches(rewritten.data.log_path.read_bytes())]


def offsets_of(rewritten: RewrittenSegment) -> list[int]:
    content = rewritten.data.log_path.read_bytes()
    return [
        record.offset
        for position, header in iterate_batches(content)
        for record in read_records(content, position, header)
    ]


# The first pass


@pytest.mark.parametrize("fetch_bytes", FETCHES)
def test_newest_place_of_a_key_passes_over_what_no_reader_gets(
    tier: Tier, fetch_bytes: int
) -> None:
    transactions = OpenTransactions()
    newest: dict[bytes, int] = {}
    for table in newest_places(tier.storage, whole(tier.tier(BATCHES)), fetch_bytes, transactions):
        for key, place in zip(*table.to_pydict().values(), strict=True):
            newest[key] = max(place, newest.get(key, -1))
    assert newest == {
        key: place_of(3, offset - 100) for key, offset in ((b"a", 107), (b"b", 108), (b"d", 105))
    }
    assert relative_offsets(np.array([newest[b"d"]])).tolist() == [5]
    assert dict(transactions.items()) == {7: False, 8: True}


def test_places_are_in_the_order_of_pieces_and_offsets() -> None:
    ends = [place_of(number, offset) for number in (0, 1, 2**20) for offset in (0, 1, 2**31 - 1)]
    assert ends == sorted(set(ends))
    assert relative_offsets(np.array(ends)).tolist() == 3 * [0, 1, 2**31 - 1]


@pytest.mark.parametrize("fetch_bytes", FETCHES)
@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (100, 109, [100, 103, 105, 106, 107]),
        (100, 103, [100]),
        (103, 107, [103, 105, 106]),
        (106, 109, [106, 107]),
        (109, 109, []),
    ],
)
def test_piece_has_its_batches_and_knows_the_last_one(
    tier: Tier, start: int, end: int, expected: list[int], fetch_bytes: int
) -> None:
    piece = Piece(0, tier.tier(BATCHES), start, end)
    assert piece.is_whole_segment == ((start, end) == (100, 109))
    chunks = list(read_chunks(tier.storage, piece, fetch_bytes))
    assert [base for chunk, _ in chunks for base in chunk.batches["base_offset"]] == expected
    assert [is_last for _, is_last in chunks] == [False] * (len(chunks) - 1) + [True] * bool(chunks)
    if fetch_bytes < 100:
        assert len(chunks) == len(expected)


def test_batches_beyond_the_end_of_their_segment_are_damage(tier: Tier) -> None:
    segment = tier.tier(BATCHES)
    wrong = replace(segment, end_offset_inclusive=107)
    with pytest.raises(CorruptObjectError, match="other offsets next_offset=109"):
        list(read_chunks(tier.storage, whole(wrong), 10**6))


def test_segment_that_is_gone_is_named_with_its_records(tier: Tier) -> None:
    segment = tier.tier(BATCHES)
    tier.storage.delete_log_segment_data(segment)
    with pytest.raises(CorruptObjectError, match="start_offset=100 end_offset=109 segment="):
        list(read_chunks(tier.storage, whole(segment), 10**6))


def test_segment_that_ends_within_a_batch_is_damage(tier: Tier) -> None:
    segment = tier.tier(BATCHES)
    cut = replace(segment, segment_size_in_bytes=segment.segment_size_in_bytes - 1)
    with pytest.raises(CorruptObjectError, match="topic=t partition=0"):
        list(read_chunks(tier.storage, whole(cut), 10**6))


def test_batch_that_no_broker_stores_is_damage(tier: Tier) -> None:
    wrong = build_batch([(1, b"k", b"v", ())], base_offset=107, is_transactional=True)
    with pytest.raises(CorruptObjectError, match="no producer base_offset=107"):
        list(read_chunks(tier.storage, whole(tier.tier([*BATCHES[:4], bytes(wrong)])), 10**6))


# The second pass


@pytest.mark.parametrize("fetch_bytes", FETCHES)
def test_newest_records_and_the_last_batch_stay(tier: Tier, fetch_bytes: int) -> None:
    piece = whole(tier.tier(BATCHES))
    rewritten = tier.rewrite(piece, 105, 107, fetch_bytes=fetch_bytes)
    assert offsets_of(rewritten) == [105, 106, 107]
    counts = rewritten.counts
    # The marker counts as a record.
    assert (counts.records_read, counts.records_kept) == (9, 3)
    assert counts.bytes_read == sum(map(len, BATCHES))
    assert counts.bytes_written == rewritten.data.log_path.stat().st_size
    assert rewritten.is_changed
    emptied = tier.rewrite(piece, 105, fetch_bytes=fetch_bytes)
    last = headers_of(emptied)[-1]
    assert (last.base_offset, last.last_offset, last.records_count) == (107, 108, 0)
    assert offsets_of(emptied) == [105, 106]


@pytest.mark.parametrize("fetch_bytes", FETCHES)
def test_piece_that_is_not_cleaned_is_copied_with_its_aborted_transactions(
    tier: Tier, fetch_bytes: int
) -> None:
    piece = replace(whole(tier.tier(BATCHES)), is_cleaned=False)
    rewritten = tier.rewrite(piece, fetch_bytes=fetch_bytes)
    assert rewritten.data.log_path.read_bytes() == b"".join(BATCHES)
    assert not rewritten.is_changed
    assert (rewritten.counts.records_read, rewritten.counts.records_kept) == (9, 9)
    path = rewritten.data.transaction_index_path
    assert path is not None
    assert read_transaction_index(path.read_bytes(), 100) == [ABORTED]
    assert not rewritten.metadata.txn_index_empty
    below = replace(piece, start_offset=100, end_offset=105)
    assert tier.rewrite(below, fetch_bytes=fetch_bytes).metadata.txn_index_empty


SNAPSHOT = [
    ProducerSnapshotEntry(7, 0, 1, 104, 1, 1, 0, -1),
    ProducerSnapshotEntry(8, 0, 0, 105, 0, 1, -1, 105),
    ProducerSnapshotEntry(9, 0, -1, -1, 0, 1, 0, -1),
]


@pytest.mark.parametrize(
    ("end", "producers", "epochs"),
    [
        (105, [7, 9], {0: 100}),
        (106, [7, 8, 9], {0: 100, 1: 105}),
        (109, [7, 8, 9], {0: 100, 1: 105}),
    ],
)
def test_piece_keeps_the_producers_and_epochs_below_its_end(
    tier: Tier, end: int, producers: list[int], epochs: dict[int, int]
) -> None:
    segment = tier.tier(BATCHES, snapshot=SNAPSHOT)
    rewritten = tier.rewrite(Piece(0, segment, 100, end), 100, 105)
    entries = read_producer_snapshot(rewritten.data.producer_snapshot_path.read_bytes())
    assert [entry.producer_id for entry in entries] == producers
    assert dict(read_leader_epoch_checkpoint(rewritten.data.leader_epoch_checkpoint)) == epochs
    new = rewritten.metadata
    assert (new.segment_id, new.start_offset, new.end_offset_inclusive) == (NEW, 100, end - 1)
    assert dict(new.segment_leader_epochs) == epochs
    assert new.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    assert new.segment_size_in_bytes == rewritten.data.log_path.stat().st_size


@pytest.mark.parametrize(("now_ms", "expected"), [(50, 50), (9, 10), (5, 10)])
def test_new_segment_is_younger_than_the_old_one(tier: Tier, now_ms: int, expected: int) -> None:
    """Readers of manifests take the newer one."""
    rewritten = tier.rewrite(whole(tier.tier(BATCHES)), 107, now_ms=now_ms)
    assert rewritten.metadata.event_timestamp_ms == expected


@pytest.mark.parametrize(("now_ms", "kept"), [(49, [100, 101]), (50, [101])])
def test_tombstone_goes_from_its_horizon_on(tier: Tier, now_ms: int, kept: list[int]) -> None:
    with_horizon = filtered_batch(data(100, b"a", value=None), {0}, delete_horizon_ms=50)
    piece = whole(tier.tier([with_horizon, data(101, b"b")]))
    assert offsets_of(tier.rewrite(piece, 100, 101, now_ms=now_ms)) == kept


def test_first_compaction_sets_the_horizon_of_a_tombstone(tier: Tier) -> None:
    piece = whole(tier.tier([data(100, b"a", value=None), data(101, b"b")]))
    rewritten = tier.rewrite(piece, 100, 101, now_ms=50, delete_retention_ms=1000)
    tombstone, other = headers_of(rewritten)
    assert (tombstone.has_delete_horizon, tombstone.base_timestamp) == (True, 1050)
    assert not other.has_delete_horizon
    assert rewritten.has_new_batches
    assert rewritten.is_changed


def test_largest_timestamp_of_a_segment_without_records_is_the_old_one(tier: Tier) -> None:
    records = [(-1, b"a", b"v", ())]
    batch = bytes(build_batch(records, base_offset=100))
    segment = tier.tier([batch], max_timestamp_ms=77)
    assert tier.rewrite(whole(segment), 100).metadata.max_timestamp_ms == 77


# What was staged


def staged(tier: Tier, *newest: int) -> RewrittenSegment:
    rewritten = tier.rewrite(whole(tier.tier(BATCHES)), *newest)
    tier.storage.stage_log_segment_data(rewritten.metadata, rewritten.data)
    return rewritten


def staged_as(tier: Tier, *batches: bytes) -> RewrittenSegment:
    """A segment with other batches, and their CRC."""
    rewritten = tier.rewrite(whole(tier.tier(BATCHES)), 105, 107)
    content = b"".join(batches)
    rewritten.data.log_path.write_bytes(content)
    metadata = replace(rewritten.metadata, segment_size_in_bytes=len(content))
    tier.storage.stage_log_segment_data(metadata, rewritten.data)
    return replace(rewritten, metadata=metadata, crc32c=crc32c(content))


@pytest.mark.parametrize("fetch_bytes", FETCHES)
def test_staged_segment_is_as_it_was_written(tier: Tier, fetch_bytes: int) -> None:
    verify_staged(tier.storage, staged(tier, 105, 107), fetch_bytes)


def test_staged_segment_is_held_against_what_was_meant(tier: Tier) -> None:
    whole_one = staged(tier, 105, 107)
    counts = replace(whole_one.counts, records_kept=whole_one.counts.records_kept + 1)
    shorter = replace(whole_one.metadata, end_offset_inclusive=106)
    for wrong, fact in (
        (
            replace(whole_one, crc32c=whole_one.crc32c ^ 1),
            "its bytes are not those that were written",
        ),
        (replace(whole_one, counts=counts), "it holds 3 records"),
        (replace(whole_one, metadata=shorter), "it ends at offset 109"),
    ):
        with pytest.raises(CorruptObjectError, match=fact):
            verify_staged(tier.storage, wrong, 10**6)
    for path in (whole_one.data.offset_index_path, whole_one.data.producer_snapshot_path):
        content = path.read_bytes()
        path.write_bytes(content + b"x")
        with pytest.raises(CorruptObjectError, match=r"its index .* is not that written"):
            verify_staged(tier.storage, whole_one, 10**6)
        path.write_bytes(content)


@pytest.mark.parametrize("fetch_bytes", FETCHES)
def test_staged_batches_are_in_order(tier: Tier, fetch_bytes: int) -> None:
    disordered = staged_as(tier, data(107, b"a"), data(105, b"d"), data(106, b"e"))
    with pytest.raises(CorruptObjectError, match="its batches are not in order"):
        verify_staged(tier.storage, disordered, fetch_bytes)


def test_staged_batch_with_a_wrong_crc_is_found_though_its_bytes_are_those_written(
    tier: Tier,
) -> None:
    wrong = bytearray(data(105, b"d"))
    wrong[-1] ^= 1
    with pytest.raises(CorruptObjectError, match="crc"):
        verify_staged(tier.storage, staged_as(tier, bytes(wrong)), 10**6)


def test_staged_segment_that_begins_below_its_start_is_found(tier: Tier) -> None:
    below = staged_as(tier, data(99, b"d"))
    with pytest.raises(CorruptObjectError, match="its batches are not in order"):
        verify_staged(tier.storage, below, 10**6)
