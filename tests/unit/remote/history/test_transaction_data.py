"""The batches inside an aborted transaction, checked by the rules by which a leader appends."""

from __future__ import annotations

import pytest

from isotherm.record.batch import CompressionType, build_batch
from isotherm.record.batch_table import read_batch_table
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.history.transaction_data import AbortedData
from isotherm.remote.reading.marker_proof import contradicted_transaction
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry
from isotherm.segment.transaction_index import AbortedTransaction

FIRST, MARKER = 10, 40
ABORTED = [AbortedTransaction(5, FIRST, MARKER, FIRST), AbortedTransaction(6, 2, 90, 2)]


def data(
    offset: int,
    sequence: int,
    *,
    count: int = 2,
    producer: int = 5,
    epoch: int = 0,
    transactional: bool = True,
) -> bytes:
    """A data batch of producer 5, or of another."""
    return bytes(
        build_batch(
            [(0, None, b"v", ())] * count,
            base_offset=offset,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
    )


def faults(aborted: AbortedData, *runs: list[bytes]) -> list[str | None]:
    found = []
    for run in runs:
        content = b"".join(run)
        found.append(aborted.fault(content, read_batch_table(content)[0]))
    return found


def proof(*, may_have_gaps: bool = False) -> AbortedData:
    return AbortedData(ABORTED, may_have_gaps=may_have_gaps)


def marker(offset: int, *, producer: int = 5) -> bytes:
    return bytes(
        build_end_transaction_marker(
            ControlRecordType.ABORT,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=offset,
        )
    )


SOUND = [
    data(10, 7), data(12, 0, producer=6), data(14, 9), data(20, 11), marker(MARKER),
    data(41, 2, epoch=1),
]  # fmt: skip


@pytest.mark.parametrize("cut", range(len(SOUND) + 1))
def test_batches_in_sequence_are_sound_however_they_are_cut_into_runs(cut: int) -> None:
    assert not any(faults(proof(), SOUND[:cut], SOUND[cut:]))


def test_sequences_begin_again_behind_the_last_one_and_with_a_new_epoch() -> None:
    wraps = [data(10, 2**31 - 2), data(12, 0), data(14, 0, epoch=1), data(16, 2, epoch=1)]
    assert faults(proof(), wraps) == [None]


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize(
    ("bad", "fact"),
    [
        (data(14, 9, transactional=False), "is not transactional"),
        (data(14, 10), "skips sequences"),
        (data(14, 9, producer=7), "skips sequences"),
        (data(14, 9, epoch=1), "skips sequences"),
    ],
)
def test_batch_that_is_not_of_the_transaction_is_found(bad: bytes, fact: str, cut: int) -> None:
    run = [*SOUND[:2], bad, *SOUND[3:]]
    assert fact in str(faults(proof(), run[:cut], run[cut:]))


def test_cleaner_may_have_taken_batches_and_no_transactional_bits() -> None:
    assert faults(proof(may_have_gaps=True), [SOUND[0], SOUND[3]]) == [None]
    bad = [SOUND[0], data(14, 9, transactional=False)]
    assert "is not transactional" in str(faults(proof(may_have_gaps=True), bad))


def test_data_beside_aborted_transactions_are_not_looked_at() -> None:
    run = [data(4, 3, transactional=False), *SOUND, data(50, 77, epoch=1, transactional=False)]
    assert faults(proof(), run) == [None]


def test_first_batches_of_a_read_continue_those_behind_it() -> None:
    aborted = proof()
    assert faults(aborted, SOUND[2:]) == [None]
    assert aborted.begun_before == FIRST
    behind = aborted.behind()
    assert faults(behind, SOUND[:2]) == [None]
    assert aborted.fault_behind(behind) is None
    assert aborted.begun_before is None


def test_first_batch_of_a_read_that_does_not_continue_is_found() -> None:
    aborted = proof()
    assert faults(aborted, SOUND[3:]) == [None]
    behind = aborted.behind()
    assert faults(behind, SOUND[:2]) == [None]
    assert "skips sequences" in str(aborted.fault_behind(behind))


@pytest.mark.parametrize(("last_sequence", "is_sound"), [(8, True), (7, False)])
def test_first_batch_of_a_segment_continues_the_snapshot(
    last_sequence: int, is_sound: bool
) -> None:
    aborted = proof()
    assert faults(aborted, SOUND[2:]) == [None]
    entry = ProducerSnapshotEntry(5, 0, last_sequence, 11, 1, 0, -1, FIRST)
    assert (aborted.fault_after([entry]) is None) is is_sound


def test_fetch_finds_data_that_lost_the_transactional_bit() -> None:
    sound = [memoryview(b"".join(SOUND[:2])), memoryview(b"".join(SOUND[2:]))]
    assert contradicted_transaction(sound, ABORTED) is None
    bad = memoryview(data(20, 11, transactional=False))
    found = contradicted_transaction([sound[0], bad], ABORTED)
    assert found is not None
    assert found.offset == 20


# No entry has producer 7's transaction, so it commits.
OTHERS = [data(11, 3, producer=7), data(15, 5, producer=7), marker(17, producer=7)]


@pytest.mark.parametrize("cut", range(3))
@pytest.mark.parametrize(
    ("bad", "is_sound"),
    [
        (data(15, 5, producer=7), True),
        (data(15, 0, producer=7, epoch=1), True),
        (data(15, 6, producer=7), False),
        (data(15, 5, producer=7, epoch=1), False),
    ],
)
def test_sequences_of_transactions_that_commit_are_compared_too(
    bad: bytes, is_sound: bool, cut: int
) -> None:
    run = [OTHERS[0], SOUND[0], bad, OTHERS[2], data(18, 0, producer=7)]
    found = faults(proof(), run[:cut], run[cut:])
    assert any(found) is not is_sound
    assert not any(faults(proof(may_have_gaps=True), run))


@pytest.mark.parametrize(
    ("last_sequence", "first_offset", "is_sound"),
    [(2, 8, True), (1, 8, False), (1, -1, True)],
)
def test_transactions_that_are_open_before_a_read_go_on_in_it(
    last_sequence: int, first_offset: int, is_sound: bool
) -> None:
    """Without an open transaction the producer's state may have expired, so the sequence proves
    nothing."""
    read = proof()
    assert not any(faults(read, OTHERS))
    entry = ProducerSnapshotEntry(7, 0, last_sequence, 9, 1, 0, -1, first_offset)
    assert (read.fault_of_open([entry]) is None) is is_sound


def test_batch_behind_a_marker_begins_a_transaction() -> None:
    read = proof()
    assert not any(faults(read, [OTHERS[2], data(18, 9, producer=7)]))
    assert not read.has_transactions_beside


def test_first_wrong_batch_is_named() -> None:
    for run, named in (
        ([SOUND[0], data(14, 9, transactional=False), data(20, 11, transactional=False)], 14),
        # The transaction begins in the last batch of the run.
        ([data(4, 3, transactional=False), data(FIRST, 7, transactional=False)], FIRST),
        ([SOUND[0], data(14, 10), data(20, 77)], 14),
    ):
        (found,) = faults(proof(), run)
        assert str(found).endswith(f"producer_id=5 base_offset={named}")


def test_transactions_of_one_producer_are_apart() -> None:
    """After a marker the producer may begin with any sequence: its state may have expired."""
    aborted = [AbortedTransaction(5, 10, 40, 10), AbortedTransaction(5, 50, 80, 50)]
    run = [data(10, 7), data(12, 9), marker(40), data(50, 100), data(52, 102), marker(80)]
    for cut in range(len(run) + 1):
        checked = AbortedData(aborted, may_have_gaps=False)
        assert not any(faults(checked, run[:cut], run[cut:]))
    run[4] = data(52, 103)
    for cut in range(len(run) + 1):
        checked = AbortedData(aborted, may_have_gaps=False)
        assert "skips sequences" in str(faults(checked, run[:cut], run[cut:]))


def test_batches_behind_are_asked_from_the_lowest_transaction_on() -> None:
    aborted = proof()
    assert aborted.begun_before is None
    assert faults(aborted, [data(12, 0, producer=6), data(14, 9), data(16, 11)]) == [None]
    assert aborted.begun_before == 2
    behind = aborted.behind()
    assert faults(behind, [data(2, 2**31 - 1, count=1, producer=6), data(10, 7)]) == [None]
    assert aborted.fault_behind(behind) is None
    assert aborted.begun_before is None


def test_contradiction_to_what_lies_behind_names_both_sequences() -> None:
    aborted = proof()
    assert faults(aborted, [data(14, 9)]) == [None]
    entry = ProducerSnapshotEntry(5, 0, 7, 11, 1, 0, -1, FIRST)
    assert str(aborted.fault_after([entry])).endswith(
        "producer_id=5 first_offset=10 expected=8 sequence=9"
    )
    assert aborted.fault_after([entry]) is None, "it is compared once"
    other = proof()
    assert faults(other, [data(14, 9)]) == [None]
    assert other.fault_after([entry._replace(current_transaction_first_offset=4)]) is None
    assert other.begun_before == FIRST


def test_open_transactions_name_both_sequences_too() -> None:
    read = proof()
    assert not any(faults(read, [data(11, 3, producer=7), data(13, 5, producer=7)]))
    assert read.has_transactions_beside
    entry = ProducerSnapshotEntry(7, 0, 1, 9, 1, 0, -1, 8)
    assert str(read.fault_of_open([entry])).endswith("producer_id=7 expected=2 sequence=3")
    assert read.fault_of_open([entry._replace(producer_id=8)]) is None
    other_epoch = entry._replace(producer_epoch=1)
    assert read.fault_of_open([other_epoch]) is not None, "a new epoch begins at 0"


def test_read_without_aborted_transactions_compares_nothing() -> None:
    checked = AbortedData([], may_have_gaps=False)
    run = [data(10, 7), data(12, 99), data(14, 0, transactional=False)]
    assert faults(checked, run, []) == [None, None]
    assert not checked.has_transactions_beside
    assert checked.begun_before is None


def test_sequences_of_data_outside_of_transactions_are_not_compared() -> None:
    """Compressed or not: a producer without transactions may lose its state."""
    run = [
        bytes(
            build_batch(
                [(0, None, b"v", ())],
                base_offset=offset,
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
                compression=compression,
            )
        )
        for compression in CompressionType
        for offset, sequence in ((10 + 4 * compression, 3), (12 + 4 * compression, 99))
    ]
    read = proof()
    assert faults(read, run) == [None]
    assert not read.has_transactions_beside
