"""A transaction index that the store has lost, or that is wrong, is rebuilt from its segment."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from isotherm.errors import CorruptObjectError, RemoteResourceNotFoundError
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.scrub.rebuilt_transactions import TransactionIndexRebuild
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    encode_transaction_index,
    read_transaction_index,
)
from isotherm.types import uuid_to_text
from tests.support.faulty_store import Operation
from tests.support.tiered_partition import TieredPartition

ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT


def batch(producer: int, sequence: int) -> bytearray:
    return build_batch(
        [(1, None, b"v" * 30, ())],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=producer > 1,
    )


def end(tiered: TieredPartition, producer: int, how: ControlRecordType) -> None:
    marker = build_end_transaction_marker(
        how, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    tiered.append_batch(marker, origin=AppendOrigin.COORDINATOR)


@pytest.fixture
def tiered(tmp_path: Path) -> TieredPartition:
    """A partition whose transactions end in their own segment, in later ones, and in the local
    log."""
    tiered = TieredPartition(tmp_path, segment_bytes=500, retention_ms=-1)
    for number in range(24):
        tiered.append_batch(batch(7, number))
        if number % 5 == 2:
            tiered.append_batch(batch(8, number // 5))
            end(tiered, 8, ABORT if number % 2 else COMMIT)
        if number % 9 == 8:
            end(tiered, 7, ABORT)
        tiered.append_batch(batch(1, number))
    end(tiered, 7, COMMIT)
    tiered.append_batch(batch(8, 5))
    end(tiered, 8, ABORT)
    for number in range(24, 30):
        tiered.append_batch(batch(1, number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    assert len(tiered.segments()) > 4
    return tiered


def answers(tiered: TieredPartition) -> list[list[AbortedTransaction] | None]:
    """The aborted transactions of reads at each offset, whose markers lie behind them, and of one
    large read."""
    tiered.index_cache.remove(segment.segment_id for segment in tiered.segments())
    level = FetchIsolation.TXN_COMMITTED
    end_offset = tiered.segments()[-1].end_offset_inclusive + 1
    reads = [tiered.read(offset, 1, isolation=level) for offset in range(end_offset)]
    reads.append(tiered.read(0, 1 << 20, isolation=level))
    return [read.aborted_transactions for read in reads]


def lost(_: bytes) -> bytes:
    raise RemoteResourceNotFoundError("no such object")


def of_another_producer(index: bytes) -> bytes:
    entries = read_transaction_index(index, 0)
    return encode_transaction_index(entry._replace(producer_id=99) for entry in entries)


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lost, slice(None)),
        (lambda index: index[:-1], slice(None)),
        # Only a read that includes the markers can contradict an index of the right form.
        (of_another_producer, slice(-1, None)),
        (lambda _: b"", slice(-1, None)),
    ],
    ids=["lost", "cut", "of another producer", "empty"],
)
def test_answers_are_those_of_the_sound_index(
    tiered: TieredPartition,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[bytes], bytes],
    answer: slice,
) -> None:
    expected = answers(tiered)
    assert sum(bool(each) for each in expected) > 10
    fetch = tiered.store.fetch_index

    def fetch_index(metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        found = fetch(metadata, kind)
        return change(found) if kind is IndexType.TRANSACTION else found

    monkeypatch.setattr(tiered.store, "fetch_index", fetch_index)
    if answer == slice(None):
        assert answers(tiered) == expected
        rebuilt = len(tiered.store.trace)
        tiered.read(0, 1, isolation=FetchIsolation.TXN_COMMITTED)
        assert len(tiered.store.trace) <= rebuilt + 1, "it is made once"
    else:
        tiered.index_cache.remove(segment.segment_id for segment in tiered.segments())
        read = tiered.read(0, 1 << 20, isolation=FetchIsolation.TXN_COMMITTED)
        assert read.aborted_transactions == expected[-1]


def test_segment_in_which_no_producer_ended_a_transaction_is_not_read(
    tiered: TieredPartition, tmp_path: Path
) -> None:
    plain = TieredPartition(tmp_path / "plain", segment_bytes=500, retention_ms=-1)
    for number in range(30):
        plain.append_batch(batch(1, number))
    plain.copy_task.run()
    before = len(plain.store.trace)
    rebuild = TransactionIndexRebuild(plain.store, plain.metadata)
    assert [rebuild(segment) for segment in plain.segments()] == [b""] * len(plain.segments())
    asked = {call.operation for call in plain.store.trace[before:]}
    assert asked == {Operation.FETCH_INDEX}


def test_rebuilt_index_is_the_one_that_the_broker_wrote(tiered: TieredPartition) -> None:
    rebuild = TransactionIndexRebuild(tiered.store, tiered.metadata)
    for segment in tiered.segments():
        written = b""
        if not segment.txn_index_empty:
            written = tiered.store.fetch_index(segment, IndexType.TRANSACTION)
        assert rebuild(segment) == written


def test_segment_that_is_damaged_too_is_an_error(tiered: TieredPartition) -> None:
    segment = tiered.segments()[-1]
    (path,) = tiered.bucket.rglob(f"*{uuid_to_text(segment.segment_id.id)}.log")
    tiered.damage_declared = "the object is written over"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    rebuild = TransactionIndexRebuild(tiered.store, tiered.metadata)
    with pytest.raises(
        CorruptObjectError, match=f"is damaged segment={segment.segment_id} reason="
    ):
        rebuild(segment)


@pytest.mark.parametrize("snapshot", ["lost", "damaged", "of a segment that is being deleted"])
def test_transactions_begin_in_the_segment_if_nothing_tells_of_earlier_batches(
    tiered: TieredPartition, monkeypatch: pytest.MonkeyPatch, snapshot: str
) -> None:
    """The first offset is then too high: the index still names every marker of the segment."""
    rebuild = TransactionIndexRebuild(tiered.store, tiered.metadata)
    right = {
        each.segment_id: read_transaction_index(rebuild(each), each.start_offset)
        for each in tiered.segments()
    }
    before, segment = next(
        (before, each)
        for before, each in pairwise(tiered.segments())
        if any(entry.first_offset < each.start_offset for entry in right[each.segment_id])
    )
    fetch = tiered.store.fetch_index

    def fetch_index(metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        if metadata.segment_id == before.segment_id and kind is IndexType.PRODUCER_SNAPSHOT:
            assert snapshot != "of a segment that is being deleted"
            return b"no snapshot" if snapshot == "damaged" else lost(b"")
        return fetch(metadata, kind)

    monkeypatch.setattr(tiered.store, "fetch_index", fetch_index)
    if snapshot == "of a segment that is being deleted":
        tiered.tier.publish(
            tiered.tier.update_of(before, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, None)
        )
    found = read_transaction_index(rebuild(segment), segment.start_offset)
    entries = right[segment.segment_id]
    assert [(each.producer_id, each.last_offset) for each in found] == [
        (each.producer_id, each.last_offset) for each in entries
    ]
    for each, entry in zip(found, entries, strict=True):
        if entry.first_offset < segment.start_offset:
            assert segment.start_offset <= each.first_offset <= each.last_offset
        else:
            assert each.first_offset == entry.first_offset
