"""Erasure of a tiered log against a model, over random histories and selections: what was selected
is gone or changed, and every other byte of a record is still there."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import uuid
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    Record,
    iterate_batches,
    read_records,
)
from isotherm.record.batch_header import DELETE_HORIZON_FLAG
from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules, erase_piece
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.segment_rewrite import RewrittenSegment
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentId
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.offset_index import read_offset_index
from isotherm.segment.transaction_index import read_transaction_index
from isotherm.spark.jobs.rewrite_plan import marked_pieces, with_last_records
from isotherm.spark.plan.planning import lineage_pieces
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.types import Offset, TopicIdPartition
from tests.support.cleaning_histories import CleaningHistory
from tests.support.tiered_history import tier_closed_segments

OWNER = TopicIdPartition(uuid.UUID(int=7), "t", 0)
CHECKED = settings(
    max_examples=40,
    suppress_health_check=list(HealthCheck),
    # No shrinking: smaller random numbers do not give a smaller history.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@given(rng=st.randoms(use_true_random=False), action=st.sampled_from(list(EraseAction)))
@CHECKED
def test_erased_log_is_that_of_a_model(rng: random.Random, action: EraseAction) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = CleaningHistory(Path(folder) / "t-0", rng, codecs=tuple(CompressionType))
        for _ in range(rng.randint(5, 60)):
            history.step()
        if rng.random() < 0.5:  # some batches have been emptied, and have horizons
            history.end_transactions()
            history.log.log.roll()
            history.first_dirty_offset = 0
            history.clean()
            for _ in range(10):
                history.step()
        history.log.log.roll()
        storage = ObjectStoreRemoteStorageManager(
            ObjectStoreSettings(url=(Path(folder) / "bucket").as_uri())
        )
        ids = itertools.count(1)
        segments = tier_closed_segments(storage, OWNER, history.log.log, ids)
        if segments:
            found = {OWNER.topic_partition: lineage_pieces(segments)}
            marked = marked_pieces(CommittedHistory(storage, found), found)
            for piece in with_last_records(storage, marked[OWNER.topic_partition]):
                check(storage, piece, action, rng, Path(folder) / str(piece.number))
        history.close()


def check(
    storage: ObjectStoreRemoteStorageManager,
    piece: Piece,
    action: EraseAction,
    rng: random.Random,
    directory: Path,
) -> None:
    before = batches(bytes(storage.fetch_log_segment(piece.segment, 0)))
    data_offsets = [
        record.offset
        for header, _, records in before
        for record in records
        if not header.is_control
    ]
    share = rng.choice([0.1, 0.5, 1])
    selected = {offset for offset in data_offsets if rng.random() < share}
    # A selection names records; the offset of a marker is never one of them, and must not hurt.
    rules = ErasureRules(
        now_ms=10**12,
        action=EraseAction.DROP if action is EraseAction.REDACT else action,
        fetch_bytes=rng.choice([150, 1000, 1_000_000]),
        index_interval_bytes=1,
    )
    directory.mkdir()
    rewritten = erase_piece(
        storage,
        piece,
        np.array(sorted(selected), dtype=np.int64) - piece.start_offset,
        rules,
        RemoteLogSegmentId(OWNER, uuid.uuid4()),
        directory,
    )
    after = batches(rewritten.data.log_path.read_bytes())
    expected = [
        model
        for index, batch in enumerate(before)
        if (
            model := expected_batch(
                batch, selected, rules.action, piece, is_last=index == len(before) - 1
            )
        )
    ]
    assert [shown(batch) for batch in after] == [shown(batch) for batch in expected]
    untouched = {
        data for _, data, records in before if not {record.offset for record in records} & selected
    }
    assert untouched <= {data for _, data, _ in after}
    check_indexes(storage, piece, rewritten)


Batch = tuple[BatchHeader, bytes, list[Record]]


def batches(data: bytes) -> list[Batch]:
    return [
        (header, data[at : at + header.size_in_bytes], read_records(data, at, header))
        for at, header in iterate_batches(data)
    ]


def expected_batch(
    batch: Batch, selected: set[Offset], action: EraseAction, piece: Piece, *, is_last: bool
) -> Batch | None:
    """The batch by the rules of docs/pipeline/erase.md."""
    header, _, records = batch
    if not {record.offset for record in records} & selected:
        return batch
    if action is EraseAction.TOMBSTONE:
        changed = [
            record._replace(value=None, headers=()) if record.offset in selected else record
            for record in records
        ]
        if changed != records:
            header = header._replace(attributes=header.attributes & ~DELETE_HORIZON_FLAG)
        return header, b"", changed
    kept = [record for record in records if record.offset not in selected]
    last = (piece.last_records or {}).get(header.producer_id)
    is_producers_last = last is not None and last.data_offset == header.last_offset
    if not kept and not is_last and not is_producers_last:
        return None
    return header, b"", kept


def shown(batch: Batch) -> tuple[object, ...]:
    """What a batch says, however it is compressed."""
    header, _, records = batch
    identity = (
        header.base_offset, header.last_offset, header.partition_leader_epoch, header.producer_id,
        header.producer_epoch, header.base_sequence, header.is_control, header.is_transactional,
    )  # fmt: skip
    horizon = header.base_timestamp if header.has_delete_horizon and records else None
    codec = header.compression_type if records else None
    return (*identity, horizon, codec, tuple(records))


def check_indexes(
    storage: ObjectStoreRemoteStorageManager, piece: Piece, rewritten: RewrittenSegment
) -> None:
    """Positions fit the new log, and the transaction index is the old one."""
    data = rewritten.data.log_path.read_bytes()
    assert rewritten.metadata.segment_size_in_bytes == len(data) > 0
    assert rewritten.metadata.end_offset_inclusive == piece.segment.end_offset_inclusive
    positions = {header.last_offset: position for position, header in iterate_batches(data)}
    entries = read_offset_index(rewritten.data.offset_index_path.read_bytes(), piece.start_offset)
    assert all(positions[entry.offset] == entry.position for entry in entries)
    old = b""
    if not piece.segment.txn_index_empty:
        old = storage.fetch_index(piece.segment, IndexType.TRANSACTION)
    path = rewritten.data.transaction_index_path
    new = b"" if path is None else path.read_bytes()
    start = piece.start_offset
    assert read_transaction_index(new, start) == read_transaction_index(old, start)


@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_redaction_changes_the_value_alone(rng: random.Random) -> None:
    from isotherm.record.batch import build_batch
    from tests.support.record_segments import RecordSegmentMaker

    with tempfile.TemporaryDirectory() as folder:
        storage = ObjectStoreRemoteStorageManager(
            ObjectStoreSettings(url=(Path(folder) / "bucket").as_uri())
        )
        values = [
            None if rng.random() < 0.1 else json.dumps({"n": n, "name": f"secret-{n}"}).encode()
            for n in range(30)
        ]
        made = [
            build_batch(
                [(1000 + n, b"k%d" % n, values[n], (("h", b"x"),)) for n in range(at, at + 10)],
                base_offset=at,
                compression=rng.choice(list(CompressionType)),
            )
            for at in range(0, 30, 10)
        ]
        segment = RecordSegmentMaker(Path(folder) / "made", storage).tier(OWNER, made)
        piece = Piece(0, segment, 0, 30)
        selected = sorted(rng.sample(range(30), 7))
        (Path(folder) / "new").mkdir()
        rewritten = erase_piece(
            storage,
            piece,
            np.array(selected, dtype=np.int64),
            ErasureRules(now_ms=1, action=EraseAction.REDACT, fields=(("name",),)),
            RemoteLogSegmentId(OWNER, uuid.uuid4()),
            Path(folder) / "new",
        )
        before = batches(b"".join(bytes(each) for each in made))
        after = batches(rewritten.data.log_path.read_bytes())
        for old, new in zip(before, after, strict=True):
            assert old[0]._replace(crc=0, length=0) == new[0]._replace(crc=0, length=0)
            for was, now in zip(old[2], new[2], strict=True):
                if was.offset in selected and was.value is not None:
                    was = was._replace(value=json.dumps({"n": was.offset, "name": None}).encode())
                assert was == now
