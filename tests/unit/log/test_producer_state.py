"""Producer state: sequences, duplicates, fencing and open transactions, by Kafka's rules."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    TransactionCoordinatorFencedError,
)
from isotherm.log.producer_state import ProducerStateManager
from isotherm.record.batch import BatchHeader, build_batch, read_batch_header
from isotherm.record.control import (
    ControlRecordType,
    build_end_transaction_marker,
    read_control_record,
)
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry
from isotherm.types import TopicPartition

NOW = 1_700_000_000_000
DAY = 86_400_000


def manager() -> ProducerStateManager:
    return ProducerStateManager(TopicPartition("topic", 0), DAY)


def batch(
    offset: int, sequence: int, *, count: int = 1, epoch: int = 0, producer: int = 7, **more: Any
) -> BatchHeader:
    timestamp = more.pop("timestamp", NOW)
    return read_batch_header(
        build_batch(
            [(timestamp, b"k", b"v", ())] * count,
            base_offset=offset,
            base_sequence=sequence,
            producer_id=producer,
            producer_epoch=epoch,
            **more,
        )
    )


def end_transaction(
    state: ProducerStateManager,
    offset: int,
    kind: ControlRecordType,
    *,
    producer: int = 7,
    epoch: int = 0,
    coordinator_epoch: int = 3,
) -> Any:
    """Apply a marker. Returns the aborted transaction, or None."""
    data = build_end_transaction_marker(
        kind,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=NOW + 9,
        base_offset=offset,
    )
    header = read_batch_header(data)
    marker = read_control_record(data, 0, header)
    assert marker is not None
    state.check_marker(header, marker)
    return state.apply(header, data, 0)


def write(state: ProducerStateManager, header: BatchHeader) -> None:
    state.check(header)
    state.apply_batch(header)


def test_first_batch_of_an_unknown_producer_may_have_any_sequence() -> None:
    state = manager()
    write(state, batch(0, 41))
    write(state, batch(1, 42))


@pytest.mark.parametrize("sequence", [0, 9, 11, 2**31 - 1])
def test_batch_out_of_sequence_is_refused(sequence: int) -> None:
    state = manager()
    write(state, batch(0, 5, count=5))
    with pytest.raises(OutOfOrderSequenceError, match="expected=10"):
        state.check(batch(5, sequence, count=2))


def test_sequence_wraps_to_zero_after_its_maximum() -> None:
    state = manager()
    write(state, batch(0, 2**31 - 1))
    write(state, batch(1, 0))
    # A batch whose sequence wraps in its middle: ..., 2147483647, 0, 1.
    state = manager()
    wrapping = batch(0, 2**31 - 1, count=3)
    write(state, wrapping)
    assert state.find_duplicate(wrapping) is not None
    write(state, batch(3, 2))


def test_duplicate_is_found_among_the_last_five_batches() -> None:
    state = manager()
    sent = [batch(offset, offset) for offset in range(6)]
    for header in sent:
        write(state, header)
    found = [state.find_duplicate(header) for header in sent]
    assert found[0] is None
    assert [duplicate.first_offset for duplicate in found[1:] if duplicate] == [1, 2, 3, 4, 5]


def test_batch_older_than_the_remembered_ones_is_out_of_order() -> None:
    state = manager()
    for offset in range(6):
        write(state, batch(offset, offset))
    with pytest.raises(OutOfOrderSequenceError):
        state.check(batch(6, 0))


def test_duplicate_needs_the_same_range_and_epoch() -> None:
    state = manager()
    write(state, batch(0, 0, count=3))
    assert state.find_duplicate(batch(9, 0, count=3)) == (2, 2, 2, NOW)
    assert state.find_duplicate(batch(9, 0, count=2)) is None
    assert state.find_duplicate(batch(9, 1, count=2)) is None
    assert state.find_duplicate(batch(9, 0, count=3, epoch=1)) is None
    assert state.find_duplicate(batch(9, 0, count=3, producer=8)) is None


def test_new_epoch_starts_at_sequence_zero_and_fences_the_old() -> None:
    state = manager()
    write(state, batch(0, 5))
    with pytest.raises(OutOfOrderSequenceError, match="expected=0"):
        state.check(batch(1, 6, epoch=1))
    write(state, batch(1, 0, epoch=1))
    with pytest.raises(InvalidProducerEpochError, match="epoch=0 current=1"):
        state.check(batch(2, 6))


def test_plain_batch_within_a_transaction_is_refused() -> None:
    state = manager()
    write(state, batch(0, 0, is_transactional=True))
    with pytest.raises(InvalidTxnStateError, match="not transactional"):
        state.check(batch(1, 1))


def test_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    state = manager()
    assert state.first_unstable_offset is None
    write(state, batch(10, 0, producer=1, is_transactional=True))
    write(state, batch(11, 0, producer=2, is_transactional=True))
    write(state, batch(12, 1, producer=1, is_transactional=True))
    assert state.first_unstable_offset == 10
    assert end_transaction(state, 13, ControlRecordType.COMMIT, producer=1) is None
    # The transaction ended, but its marker is not below the high watermark.
    assert state.first_unstable_offset == 10
    state.on_high_watermark(13)
    assert state.first_unstable_offset == 10
    state.on_high_watermark(14)
    assert state.first_unstable_offset == 11


def test_aborted_transaction_is_returned_with_its_last_stable_offset() -> None:
    state = manager()
    write(state, batch(4, 0, is_transactional=True))
    assert end_transaction(state, 5, ControlRecordType.ABORT) == (7, 4, 5, 6)
    write(state, batch(6, 1, is_transactional=True))
    write(state, batch(7, 0, producer=8, is_transactional=True))
    assert end_transaction(state, 8, ControlRecordType.ABORT) == (7, 6, 8, 7)


def test_marker_without_an_open_transaction_aborts_nothing() -> None:
    state = manager()
    assert end_transaction(state, 0, ControlRecordType.ABORT) is None
    assert state.first_unstable_offset is None
    # Only the marker's epoch is known of this producer, so its first batch must have sequence 0.
    with pytest.raises(OutOfOrderSequenceError):
        state.check(batch(1, 5))
    write(state, batch(1, 0))


def test_marker_of_an_older_coordinator_or_producer_is_refused() -> None:
    state = manager()
    write(state, batch(0, 0, epoch=2, is_transactional=True))
    end_transaction(state, 1, ControlRecordType.COMMIT, epoch=2, coordinator_epoch=4)
    with pytest.raises(TransactionCoordinatorFencedError, match="coordinator_epoch=3 current=4"):
        end_transaction(state, 2, ControlRecordType.COMMIT, epoch=2, coordinator_epoch=3)
    with pytest.raises(InvalidProducerEpochError, match="epoch=1 current=2"):
        end_transaction(state, 2, ControlRecordType.COMMIT, epoch=1, coordinator_epoch=4)


def test_snapshot_entries_are_those_kafka_writes() -> None:
    state = manager()
    write(state, batch(100, 5, count=3, epoch=1, timestamp=NOW + 7))
    write(state, batch(110, 0, producer=8, is_transactional=True))
    end_transaction(state, 111, ControlRecordType.COMMIT, producer=8)
    write(state, batch(112, 1, producer=8, is_transactional=True))
    assert state.snapshot_entries() == [
        ProducerSnapshotEntry(7, 1, 7, 102, 2, NOW + 7, -1, -1),
        ProducerSnapshotEntry(8, 0, 1, 112, 0, NOW, 3, 112),
    ]


def test_state_loaded_from_a_snapshot_goes_on_where_it_was() -> None:
    entries = [
        ProducerSnapshotEntry(7, 1, 7, 102, 2, NOW, -1, -1),
        ProducerSnapshotEntry(8, 0, -1, -1, 0, NOW, 3, 110),
    ]
    state = manager()
    state.load(entries, 111, NOW)
    assert state.map_end_offset == 111
    assert state.first_unstable_offset == 110
    assert state.snapshot_entries() == entries
    assert state.find_duplicate(batch(0, 5, count=3, epoch=1)) is not None
    write(state, batch(111, 8, epoch=1))
    assert end_transaction(state, 112, ControlRecordType.ABORT, producer=8) == (8, 110, 112, 113)


def test_expired_producers_are_forgotten_unless_in_a_transaction() -> None:
    state = manager()
    write(state, batch(0, 0, producer=1))
    write(state, batch(1, 0, producer=2, is_transactional=True))
    state.remove_expired(NOW + DAY - 1)
    assert state.producer(1) is not None
    state.remove_expired(NOW + DAY)
    assert state.producer(1) is None
    assert state.producer(2) is not None
    entries = [ProducerSnapshotEntry(1, 0, 0, 0, 0, NOW, -1, -1)]
    state.load(entries, 1, NOW + DAY)
    assert state.is_empty


def test_marker_of_a_higher_epoch_fences_the_epoch_of_the_transaction() -> None:
    """KIP-890: the coordinator raises the producer epoch with each transaction."""
    state = manager()
    write(state, batch(0, 0, is_transactional=True))
    assert end_transaction(state, 1, ControlRecordType.ABORT, epoch=1) == (7, 0, 1, 2)
    with pytest.raises(InvalidProducerEpochError, match="epoch=0 current=1"):
        state.check(batch(2, 1, is_transactional=True))
    with pytest.raises(OutOfOrderSequenceError, match="expected=0"):
        state.check(batch(2, 1, epoch=1))
    assert state.find_duplicate(batch(2, 0, epoch=1)) is None
    write(state, batch(2, 0, epoch=1))


def test_markers_time_keeps_its_producer() -> None:
    state = manager()
    write(state, batch(0, 0, is_transactional=True))
    end_transaction(state, 1, ControlRecordType.COMMIT)
    state.remove_expired(NOW + 9 + DAY - 1)
    assert state.producer(7) is not None
    state.remove_expired(NOW + 9 + DAY)
    assert state.producer(7) is None


def test_transaction_that_was_deleted_with_the_start_of_the_log_holds_nothing_up() -> None:
    state = manager()
    write(state, batch(4, 0, is_transactional=True))
    end_transaction(state, 5, ControlRecordType.COMMIT)
    state.on_log_start_offset(5)
    assert state.first_unstable_offset == 4
    state.on_log_start_offset(6)
    assert state.first_unstable_offset is None


def test_state_is_empty_only_without_producers_and_ended_transactions() -> None:
    state = manager()
    assert state.is_empty
    write(state, batch(0, 0, is_transactional=True))
    assert not state.is_empty
    end_transaction(state, 1, ControlRecordType.COMMIT)
    state.remove_expired(NOW + 2 * DAY)
    assert state.producer(7) is None
    assert not state.is_empty
    state.on_high_watermark(2)
    assert state.is_empty


def test_last_record_of_a_producer_is_unknown_after_a_marker_of_a_higher_epoch() -> None:
    state = manager()
    write(state, batch(0, 0, count=3, epoch=1))
    write(state, batch(3, 0, producer=8, is_transactional=True))
    end_transaction(state, 4, ControlRecordType.COMMIT, producer=8, epoch=2)
    assert state.last_records() == {7: (2, 1), 8: (None, 2)}


def test_snapshot_replaces_all_state() -> None:
    state = manager()
    write(state, batch(0, 0, is_transactional=True))
    end_transaction(state, 1, ControlRecordType.COMMIT)
    write(state, batch(2, 0, producer=9, is_transactional=True))
    state.load([ProducerSnapshotEntry(8, 0, 3, 3, 0, NOW, -1, -1)], 4, NOW)
    assert state.first_unstable_offset is None
    assert state.snapshot_entries() == [ProducerSnapshotEntry(8, 0, 3, 3, 0, NOW, -1, -1)]
    state.load([], 0, NOW)
    assert state.is_empty


def test_open_transactions_of_a_snapshot_are_in_the_order_of_the_log() -> None:
    """A snapshot file has the producers in any order."""
    state = manager()
    entries = [
        ProducerSnapshotEntry(producer, 0, 0, first, 0, NOW, -1, first)
        for producer, first in ((1, 20), (2, 0), (3, 10))
    ]
    state.load(entries, 30, NOW)
    assert state.first_unstable_offset == 0
    assert end_transaction(state, 30, ControlRecordType.ABORT, producer=2) == (2, 0, 30, 10)
    state.on_high_watermark(31)
    assert state.first_unstable_offset == 10


def test_first_record_of_a_log_is_known_from_a_snapshot() -> None:
    state = manager()
    state.load([ProducerSnapshotEntry(7, 0, 0, 0, 0, NOW, -1, 0)], 1, NOW)
    assert state.first_unstable_offset == 0
    duplicate = state.find_duplicate(batch(1, 0))
    assert duplicate is not None
    assert duplicate.first_offset == 0
    with pytest.raises(OutOfOrderSequenceError, match="expected=1"):
        state.check(batch(1, 5))


def test_producer_of_a_snapshot_without_an_epoch_may_begin_with_any_sequence() -> None:
    """Kafka's ProducerAppendInfo.checkSequence: NO_PRODUCER_EPOCH accepts any sequence."""
    state = manager()
    state.load([ProducerSnapshotEntry(7, -1, -1, -1, 0, NOW, 3, -1)], 1, NOW)
    write(state, batch(1, 41))


def test_control_batch_that_is_no_marker_changes_nothing() -> None:
    state = manager()
    write(state, batch(0, 0, is_transactional=True))
    before = state.snapshot_entries()
    data = build_batch(
        # The key has version 0 and the type of a leader change (2).
        [(NOW, b"\0\0\0\2", b"\0\0", ())],
        base_offset=1,
        producer_id=7,
        producer_epoch=0,
        is_control=True,
    )
    assert state.apply(read_batch_header(data), data, 0) is None
    assert state.snapshot_entries() == before
    assert state.first_unstable_offset == 0


def test_producer_ids_of_clients_are_bounded() -> None:
    state = ProducerStateManager(TopicPartition("topic", 0), DAY, 2)
    for producer in (1, 2):
        header = batch(producer, 0, producer=producer)
        state.check(header)
        state.apply_batch(header)
    third = batch(3, 0, producer=3)
    with pytest.raises(PolicyViolationError, match=r"key=producer\.ids\.per\.partition\.max"):
        state.check(third)
    state.check(batch(3, 1, producer=2))
    # A replica copies what its leader has.
    state.apply_batch(third)
    assert state.id_count == 3
    state.remove_expired(NOW + DAY + 1)
    state.check(third)
