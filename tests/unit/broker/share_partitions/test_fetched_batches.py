"""Batches in one or several pieces of memory: which are acquired, and which are aborted."""

from __future__ import annotations

import pytest

from isotherm.broker.share_partitions.acquisition import Acquired, LogBatch
from isotherm.broker.share_partitions.fetched_batches import (
    aborted_batches,
    acquired_pieces,
    fetched_batches,
    log_batches,
)
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker

SIZES = (3, 1, 5, 2)


def log(sizes: tuple[int, ...] = SIZES, base_offset: int = 10) -> tuple[bytes, list[int]]:
    """Batches of these sizes, and where each begins in bytes."""
    out, positions = bytearray(), []
    for size in sizes:
        positions.append(len(out))
        out += build_batch([(1, None, b"v" * 20, ())] * size, base_offset=base_offset)
        base_offset += size
    return bytes(out), positions


@pytest.mark.parametrize("piece_size", [1, 30, 61, 100, 10_000])
def test_batches_are_found_in_pieces_of_any_size(piece_size: int) -> None:
    content, positions = log()
    pieces = [
        memoryview(content)[start : start + piece_size]
        for start in range(0, len(content), piece_size)
    ]
    batches = fetched_batches(pieces)
    assert [batch.position for batch in batches] == positions
    assert log_batches(batches) == [(10, 12), (13, 13), (14, 18), (19, 20)]
    acquired = [Acquired(13, 13, 1), Acquired(15, 16, 2)]
    assert (
        b"".join(acquired_pieces(pieces, batches, acquired)) == content[positions[1] : positions[3]]
    )


def test_all_batches_are_passed_on_as_they_are() -> None:
    content, _ = log()
    pieces = (content,)
    batches = fetched_batches(pieces)
    assert acquired_pieces(pieces, batches, [Acquired(12, 20, 1)]) is pieces


def test_incomplete_last_batch_is_left_out() -> None:
    content, positions = log()
    assert len(fetched_batches([content[: positions[3] + 70]])) == 3
    assert fetched_batches([content[:60]]) == []
    assert fetched_batches([]) == []


def transactional(base_offset: int, producer_id: int) -> bytearray:
    return build_batch(
        [(1, None, b"v", ())] * 2,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(base_offset: int, producer_id: int, kind: ControlRecordType) -> bytearray:
    return build_end_transaction_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1,
        base_offset=base_offset,
    )


def test_batches_of_aborted_transactions_end_at_their_marker() -> None:
    content = b"".join(
        (
            transactional(0, 7),  # aborted
            transactional(2, 8),  # committed
            transactional(4, 7),  # aborted
            marker(6, 7, ControlRecordType.ABORT),
            transactional(7, 7),  # committed by the next transaction
            marker(9, 7, ControlRecordType.COMMIT),
            marker(10, 8, ControlRecordType.COMMIT),
        )
    )
    batches = fetched_batches([content])
    aborted = aborted_batches([content], batches, [(7, 0)])
    assert aborted == [LogBatch(0, 1), LogBatch(4, 5)]
