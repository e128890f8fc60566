"""Pieces that are written again without their selected records: the cases that random histories of
tests/property/spark/test_erasure.py seldom meet."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from isotherm.errors import CorruptObjectError, PolicyViolationError
from isotherm.record.batch import build_batch, iterate_batches, read_batch_header, read_records
from isotherm.record.batch_header import HEADER_SIZE
from isotherm.record.compression import CompressionType
from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules, erase_piece
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.segment_rewrite import RewrittenSegment
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.cleaning import chunk
from isotherm.segment.producer_snapshot import LastRecord
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

OWNER = TopicIdPartition(uuid.UUID(int=7), "t", 0)
DROP = ErasureRules(now_ms=5, action=EraseAction.DROP)


class Erasing:
    """A segment of two batches of two records each, the first one of producer 9."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.storage = ObjectStoreRemoteStorageManager(
            ObjectStoreSettings(url=(directory / "bucket").as_uri())
        )
        self.maker = RecordSegmentMaker(directory / "made", self.storage)
        batches = [
            build_batch(
                [(1, b"a", b"1", ()), (2, b"b", b"2", ())],
                producer_id=9, producer_epoch=0, base_sequence=0,
            ),
            build_batch([(3, b"a", b"3", ()), (4, b"b", b"4", ())], base_offset=2),
        ]  # fmt: skip
        self.piece = self.tier([bytes(batch) for batch in batches])

    def tier(self, batches: list[bytes]) -> Piece:
        segment = self.maker.tier(OWNER, [bytearray(batch) for batch in batches])
        return Piece(0, segment, segment.start_offset, segment.end_offset_inclusive + 1)

    def erase(self, piece: Piece, *selected: int, rules: ErasureRules = DROP) -> RewrittenSegment:
        folder = self.directory / uuid.uuid4().hex
        folder.mkdir()
        return erase_piece(
            self.storage,
            piece,
            np.array(selected, dtype=np.int64),
            rules,
            RemoteLogSegmentId(OWNER, uuid.uuid4()),
            folder,
        )


def batches_of(rewritten: RewrittenSegment) -> list[bytes]:
    data = rewritten.data.log_path.read_bytes()
    return [data[at : at + header.size_in_bytes] for at, header in iterate_batches(data)]


@pytest.fixture
def erasing(tmp_path: Path) -> Erasing:
    return Erasing(tmp_path)


def test_batch_that_was_emptied_before_stays_byte_for_byte(erasing: Erasing) -> None:
    active = replace(erasing.piece, last_records={9: LastRecord(1, 0)})
    emptied = batches_of(erasing.erase(active, 0, 1))
    assert len(emptied) == 2
    piece = erasing.tier(emptied)
    # Producer 9 is not active any more. Nothing of its batch is selected.
    assert batches_of(erasing.erase(piece, 2))[0] == emptied[0]


def test_batch_that_loses_all_goes_unless_it_is_the_last(erasing: Erasing) -> None:
    rewritten = erasing.erase(erasing.piece, 0, 1, 2, 3)
    ((_, header),) = iterate_batches(rewritten.data.log_path.read_bytes())
    assert (header.base_offset, header.last_offset, header.records_count) == (2, 3, 0)
    assert rewritten.metadata.max_timestamp_ms == erasing.piece.segment.max_timestamp_ms
    assert rewritten.counts.records_kept == 0


def test_segment_without_a_match_is_not_changed(erasing: Erasing) -> None:
    assert not erasing.erase(erasing.piece).is_changed
    assert erasing.erase(erasing.piece, 3).is_changed


@pytest.mark.parametrize("action", list(EraseAction))
def test_damaged_batch_is_not_written_again_under_a_new_crc(
    erasing: Erasing, action: EraseAction
) -> None:
    (log,) = (erasing.directory / "bucket").rglob("*.log")
    log.write_bytes(log.read_bytes()[:-2] + b"?" + log.read_bytes()[-1:])
    rules = ErasureRules(now_ms=5, action=action, fields=(("a",),))
    with pytest.raises(CorruptObjectError, match="crc"):
        erasing.erase(erasing.piece, 0, rules=rules)


def test_value_that_is_not_json_is_not_redacted(erasing: Erasing) -> None:
    piece = erasing.tier([bytes(build_batch([(1, b"k", b"{", ())]))])
    rules = ErasureRules(now_ms=5, action=EraseAction.REDACT, fields=(("a",),))
    with pytest.raises(PolicyViolationError, match="is not JSON partition=t-0 offset=0"):
        erasing.erase(piece, 0, rules=rules)


def test_only_batches_that_lose_records_are_decompressed(erasing: Erasing) -> None:
    loser = lz4_batch(0, b"a", b"b")
    other = bytearray(lz4_batch(2, b"c"))
    # No LZ4 frame any more, under a right CRC: whoever decompresses it fails.
    other[HEADER_SIZE:] = b"?" * (len(other) - HEADER_SIZE)
    struct.pack_into(">I", other, 17, google_crc32c.value(bytes(other[21:])))
    first, second = batches_of(erasing.erase(erasing.tier([loser, bytes(other)]), 0))
    assert keys_of(first) == [b"b"]
    assert second == other


def test_batches_that_lose_records_are_decompressed_a_few_at_a_time(
    erasing: Erasing, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [lz4_batch(2 * number, b"a", b"%d" % number) for number in range(9)]
    monkeypatch.setattr(chunk, "DECODED_SIZE_MAX", 300)  # two batches
    erased = erasing.erase(erasing.tier(batches), 0, 4, 5, 6, 8, 10, 14)
    keys = [(0, [b"0"]), (2, [b"a", b"1"]), (6, [b"3"]), (8, [b"4"]), (10, [b"5"])]
    keys += [(12, [b"a", b"6"]), (14, [b"7"]), (16, [b"a", b"8"])]
    left = batches_of(erased)
    assert [(read_batch_header(batch).base_offset, keys_of(batch)) for batch in left] == keys
    assert [left[1], left[5], left[7]] == [batches[1], batches[6], batches[8]]
    assert erased.counts.records_kept == 11


def lz4_batch(base_offset: int, *keys: bytes) -> bytes:
    records = [(1, key, b"1" * 50, ()) for key in keys]
    codec = CompressionType.LZ4
    return bytes(build_batch(records, base_offset=base_offset, compression=codec))


def keys_of(batch: bytes) -> list[bytes | None]:
    return [record.key for record in read_records(batch, 0, read_batch_header(batch))]
