"""Loading a log after a clean stop and after a crash: what is recovered, rebuilt, cut off or
reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import OutOfOrderSequenceError
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.segment.transaction_index import TRANSACTION_INDEX_ENTRY_SIZE
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.filled_log import (
    BATCH_SIZE,
    CLEAN,
    CONFIG,
    T0,
    contents,
    fill,
    offsets_in,
    reopen,
)
from tests.support.local_log import open_local_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


def test_recovery_gives_the_indexes_that_were_written_on_line(directory: Path) -> None:
    log = fill(directory)
    log.close()
    written = {suffix: contents(directory, suffix) for suffix in (".index", ".timeindex")}
    for suffix in written:
        for path in directory.glob(f"*{suffix}"):
            path.unlink() if random.Random(path.name).random() < 0.5 else path.write_bytes(b"x" * 7)
    reopen(directory).close()
    assert {suffix: contents(directory, suffix) for suffix in written} == written


@pytest.mark.parametrize("cut", range(1, BATCH_SIZE, 13))
def test_torn_append_is_cut_off(directory: Path, cut: int) -> None:
    log = fill(directory)
    path = log.segments()[-1].log_path
    path.write_bytes(path.read_bytes()[:-cut])
    log = reopen(directory)
    assert offsets_in(log) == list(range(11))
    assert (
        log.append_as_leader(build_batch([(T0, None, None, ())]), 2, now_ms=T0).first_offset == 11
    )


@pytest.mark.parametrize("tail", [bytes(1), bytes(500), b"\xff" * 300, b"\x00\x00\x00"])
def test_rubbish_after_the_last_batch_is_cut_off(directory: Path, tail: bytes) -> None:
    log = fill(directory)
    path = log.segments()[-1].log_path
    with path.open("ab") as file:
        file.write(tail)
    assert offsets_in(reopen(directory)) == list(range(12))


def test_damage_in_an_earlier_segment_drops_the_later_ones(directory: Path) -> None:
    log = fill(directory)
    path = log.segments()[1].log_path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    log = reopen(directory)
    assert offsets_in(log) == list(range(9))
    assert log.log_end_offset == 9
    assert list(log.leader_epochs.entries) == [(0, 0), (1, 5)]
    assert sorted(path.name for path in directory.glob("*.log")) == [
        f"{base:020d}.log" for base in (0, 5)
    ]


def test_batch_with_an_offset_below_its_predecessor_is_cut_off(directory: Path) -> None:
    log = fill(directory, 3)
    path = log.segments()[0].log_path
    with path.open("ab") as file:
        file.write(build_batch([(T0, None, None, ())], base_offset=1))
    assert offsets_in(reopen(directory)) == [0, 1, 2]


def test_segment_without_an_offset_index_is_rebuilt_after_a_clean_stop(directory: Path) -> None:
    log = fill(directory)
    log.close()
    path = directory / f"{5:020d}.index"
    written = path.read_bytes()
    path.unlink()
    log = reopen(directory, CLEAN)
    assert path.read_bytes() == written
    assert log.log_end_offset == 12


def test_load_after_a_clean_stop_opens_each_file_of_the_active_segment_once(
    directory: Path,
) -> None:
    """The log again, to continue it.

    A broker loads thousands of such logs at a start.
    """
    fill(directory, 3).close()
    fs = FaultyFileSystem()
    log = open_local_log(directory, config=CONFIG, checkpoints=CLEAN, fs=fs)
    assert log.log_end_offset == 3
    opened = {path.suffix: count for path, count in fs.open_counts.items() if path.stem.isdigit()}
    snapshots = opened.pop(".snapshot", 0)
    assert opened == {".log": 2, ".index": 1, ".timeindex": 1}
    assert snapshots <= 1


def abort(log: PartitionLog, *producer_ids: int) -> None:
    """Append an aborted transaction of one record for each producer id."""
    for producer_id in producer_ids:
        batch = build_batch(
            [(T0, None, b"v", ())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        log.append_as_leader(batch, 0, now_ms=T0)
        marker = build_end_transaction_marker(
            ControlRecordType.ABORT,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=T0,
        )
        log.append_as_leader(marker, 0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


def aborted_offsets(log: PartitionLog) -> list[tuple[int, int]]:
    """The aborted transactions (first, last offset) that a read_committed consumer gets."""
    read = log.read(0, 1_000_000, isolation=FetchIsolation.TXN_COMMITTED)
    assert read.aborted_transactions is not None
    return [
        (transaction.first_offset, transaction.last_offset)
        for transaction in read.aborted_transactions
    ]


def lose(path: Path, data: bytes) -> None:
    path.unlink()


def cut_last_entry(path: Path, data: bytes) -> None:
    path.write_bytes(data[:-TRANSACTION_INDEX_ENTRY_SIZE])


def cut_within_an_entry(path: Path, data: bytes) -> None:
    path.write_bytes(data[:-3])


def flip_a_bit_of_a_producer_id(path: Path, data: bytes) -> None:
    path.write_bytes(data[:9] + bytes([data[9] ^ 0x10]) + data[10:])


@pytest.mark.parametrize("is_active", [False, True])
@pytest.mark.parametrize(
    "damage", [lose, cut_last_entry, cut_within_an_entry, flip_a_bit_of_a_producer_id]
)
def test_transaction_index_that_is_not_as_it_was_written_is_made_again_after_a_clean_stop(
    directory: Path,
    damage: Callable[[Path, bytes], None],
    is_active: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = open_local_log(directory, config=CONFIG)
    abort(log, 7, 8)
    if not is_active:
        log.roll()
    log.close()
    path = directory / f"{0:020d}.txnindex"
    written = path.read_bytes()
    damage(path, written)
    log = reopen(directory, replace(CLEAN, high_watermark=4))
    assert path.read_bytes() == written
    assert aborted_offsets(log) == [(0, 1), (2, 3)]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert str(directory / f"{0:020d}.log") in warnings[0]


@pytest.mark.parametrize("damage", [lose, cut_last_entry])
def test_transaction_index_lost_in_a_crash_below_the_recovery_point_is_made_again(
    directory: Path, damage: Callable[[Path, bytes], None]
) -> None:
    log = open_local_log(directory, config=CONFIG)
    abort(log, 7, 8)
    log.roll()
    abort(log, 9)
    log.flush()
    log.roll()
    path = directory / f"{0:020d}.txnindex"
    written = path.read_bytes()
    damage(path, written)
    log = reopen(directory, LogCheckpoints(recovery_point=5, high_watermark=6))
    assert path.read_bytes() == written
    assert aborted_offsets(log) == [(0, 1), (2, 3)]


def test_transaction_indexes_that_truncation_and_new_records_changed_are_sound(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_local_log(directory, config=CONFIG)
    abort(log, 7, 8)
    log.roll()
    abort(log, 9)
    log.truncate_to(2)
    abort(log, 10, 11)
    log.roll()
    log.close()
    log = reopen(directory, replace(CLEAN, high_watermark=6))
    assert aborted_offsets(log) == [(0, 1), (2, 3), (4, 5)]
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("content", [None, b"", b"0\n1\n0 68", b"rubbish"])
def test_lost_transaction_index_checkpoint_is_made_again_and_the_indexes_are_believed(
    directory: Path, content: bytes | None
) -> None:
    log = open_local_log(directory, config=CONFIG)
    abort(log, 7, 8)
    log.roll()
    log.close()
    path = directory / "transaction-index-checkpoint"
    written = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    log = reopen(directory, replace(CLEAN, high_watermark=4))
    assert aborted_offsets(log) == [(0, 1), (2, 3)]
    log.close()
    assert path.read_bytes() == written


def test_log_without_aborts_has_no_transaction_index_checkpoint(directory: Path) -> None:
    log = fill(directory)
    log.close()
    assert not (directory / "transaction-index-checkpoint").exists()


def test_preallocated_indexes_left_by_a_crash_do_not_mislead(directory: Path) -> None:
    """Indexes below the recovery point are not rebuilt. Their padding of zeros must not count as
    entries."""
    log = fill(directory)
    log.close()
    for suffix in (".index", ".timeindex"):
        path = directory / f"{0:020d}{suffix}"
        path.write_bytes(path.read_bytes() + bytes(24 * 20))
    log = reopen(directory, LogCheckpoints(recovery_point=10))
    for offset in range(12):
        batches = iterate_batches(log.read(offset, 10**6).records)
        assert next(batches)[1].base_offset == offset
    assert log.offset_for_timestamp(T0 + 3) == (T0 + 3, 3, 0)


def test_snapshots_of_no_segment_go_but_the_one_at_the_end(directory: Path) -> None:
    log = fill(directory)
    log.close()
    snapshot = (directory / f"{12:020d}.snapshot").read_bytes()
    (directory / f"{7:020d}.snapshot").write_bytes(snapshot)
    (directory / f"{99:020d}.snapshot").write_bytes(snapshot)
    reopen(directory, CLEAN)
    assert sorted(contents(directory, ".snapshot")) == [
        f"{offset:020d}.snapshot" for offset in (5, 10, 12)
    ]


def test_damaged_snapshot_is_dropped_and_an_older_one_used(directory: Path) -> None:
    log = open_local_log(directory, config=CONFIG)
    for sequence in range(12):
        batch = build_batch(
            [(T0, b"k", b"v" * 100, ())], producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        log.append_as_leader(batch, 0, now_ms=T0)
    log.close()
    (directory / f"{12:020d}.snapshot").write_bytes(b"\x00\x01 no snapshot")
    log = reopen(directory, CLEAN)
    state = log.producers.producer(7)
    assert state is not None
    assert state.last_sequence == 11


def test_first_start_of_a_log_without_snapshots_writes_empty_ones(directory: Path) -> None:
    log = fill(directory)
    log.close()
    for path in directory.glob("*.snapshot"):
        path.unlink()
    reopen(directory, CLEAN)
    empty = bytes.fromhex("000148674bc700000000")
    assert contents(directory, ".snapshot") == {
        f"{offset:020d}.snapshot": empty for offset in (5, 10, 12)
    }


def test_log_that_ends_below_its_start_begins_anew_there(directory: Path) -> None:
    log = fill(directory)
    log.close()
    log = reopen(directory, LogCheckpoints(log_start_offset=50))
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert list(log.leader_epochs.entries) == []
    assert [path.name for path in directory.glob("*.log")] == [f"{50:020d}.log"]


def test_epochs_are_cut_to_the_log(directory: Path) -> None:
    log = fill(directory)
    log.close()
    (directory / "leader-epoch-checkpoint").write_text("0\n4\n0 0\n1 5\n2 10\n9 40\n")
    log = reopen(directory, LogCheckpoints(log_start_offset=6, clean_shutdown=True))
    assert list(log.leader_epochs.entries) == [(1, 6), (2, 10)]
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n2\n1 6\n2 10\n"


def test_epochs_lost_in_a_crash_are_found_in_the_batches(directory: Path) -> None:
    fill(directory)
    assert not (directory / "leader-epoch-checkpoint").exists()
    assert list(reopen(directory).leader_epochs.entries) == [(0, 0), (1, 5), (2, 10)]


@pytest.mark.parametrize("content", ["0\n3\n0 0\n", "0\n3\n0 0\n1 5\n2 1", "0\n2\n1 5\n0 0\n", ""])
def test_damaged_epoch_checkpoint_is_made_again_from_the_batches(
    directory: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(directory).close()
    path = directory / "leader-epoch-checkpoint"
    sound = path.read_text()
    path.write_text(content)
    assert list(reopen(directory, CLEAN).leader_epochs.entries) == [(0, 0), (1, 5), (2, 10)]
    assert path.read_text() == sound
    (record,) = caplog.records
    assert (record.levelname, str(path) in record.getMessage()) == ("WARNING", True)
    caplog.clear()
    reopen(directory, CLEAN).close()
    assert caplog.records == []


def test_finished_swap_takes_the_place_of_what_it_covers(directory: Path) -> None:
    """The swap holds offsets 1 and 9, compacted from [0, 10), in a file with base offset 0."""
    fill(directory).close()
    swapped = b"".join(
        build_batch([(T0 + offset, b"k", b"w", ())], base_offset=offset) for offset in (1, 9)
    )
    (directory / f"{0:020d}.log.swap").write_bytes(swapped)
    for kind in ("index", "timeindex"):
        (directory / f"{0:020d}.{kind}.swap").write_bytes(b"")
    (directory / f"{5:020d}.log.deleted").write_bytes(b"")
    log = reopen(directory, CLEAN)
    assert offsets_in(log) == [1, 9, 10, 11]
    assert log.segments()[0].log_path.read_bytes() == swapped
    batches = iterate_batches(log.read(2, 1000).records)
    assert [header.base_offset for _, header in batches] == [9]
    assert list(directory.glob("*.swap")) == list(directory.glob("*.deleted")) == []


def test_unfinished_swap_is_rolled_back(directory: Path) -> None:
    fill(directory).close()
    (directory / f"{0:020d}.log.swap").write_bytes(b"")
    (directory / f"{0:020d}.index.cleaned").write_bytes(b"")
    assert offsets_in(reopen(directory, CLEAN)) == list(range(12))
    assert list(directory.glob("*.swap")) == list(directory.glob("*.cleaned")) == []


def test_any_single_damaged_byte_leaves_a_prefix(directory: Path) -> None:
    """LogLoaderTest's corruption fuzz: recovery keeps a prefix of what was appended, in order."""
    fill(directory).close()
    sound = contents(directory, ".log")
    rng = random.Random(5)
    for _ in range(40):
        name = rng.choice(sorted(sound))
        data = bytearray(sound[name])
        # Base offset and leader epoch are outside the CRC, so a plausible wrong value goes
        # unnoticed.
        uncovered = {*range(8), *range(12, 16)}
        covered = [at for at in range(len(data)) if at % BATCH_SIZE not in uncovered]
        data[rng.choice(covered)] ^= rng.randrange(1, 256)
        for other, content in sound.items():
            (directory / other).write_bytes(content)
        (directory / name).write_bytes(data)
        log = reopen(directory)
        found = offsets_in(log)
        assert found == list(range(len(found)))
        assert log.log_end_offset == len(found) >= int(name[:20])


# What a recovery reads


def read_by_recovery(directory: Path, recovery_point: int) -> dict[str, int]:
    """The bytes read from each `.log` file when the log is loaded after an unclean stop."""
    fs = FaultyFileSystem()
    open_local_log(
        directory, config=CONFIG, checkpoints=LogCheckpoints(recovery_point=recovery_point), fs=fs
    )
    return {path.name: fs.read_sizes[path] for path in sorted(directory.glob("*.log"))}


@pytest.mark.parametrize(
    ("recovery_point", "recovered_from"), [(30, 30), (25, 25), (27, 25), (0, 0), (35, 35)]
)
def test_recovery_reads_the_segments_from_the_recovery_point_on(
    directory: Path, recovery_point: int, recovered_from: int
) -> None:
    log = fill(directory, count=36)
    bases = [segment.base_offset for segment in log.segments()]
    assert bases == list(range(0, 36, 5))
    log.flush()
    sizes = {segment.log_path.name: segment.size_in_bytes for segment in log.segments()}
    read = read_by_recovery(directory, recovery_point)
    for base, name in zip(bases, sizes, strict=True):
        if base < recovered_from:
            assert read[name] <= CONFIG.index_interval_bytes + BATCH_SIZE
        else:
            assert read[name] >= sizes[name]


def test_load_after_a_clean_stop_reads_no_more_than_the_ends(directory: Path) -> None:
    fill(directory, count=36).close()
    fs = FaultyFileSystem()
    open_local_log(directory, config=CONFIG, checkpoints=CLEAN, fs=fs)
    read = {path.name: fs.read_sizes[path] for path in directory.glob("*.log")}
    # From the last index entry on, to find the end. The active segment is read twice.
    once = CONFIG.index_interval_bytes + BATCH_SIZE
    assert read.pop(max(read)) <= 2 * once
    assert all(size <= once for size in read.values())


def idempotent(sequence: int, producer_id: int = 7) -> bytearray:
    return build_batch(
        [(T0, b"k", b"v" * 100, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


@pytest.mark.parametrize("torn", [0, 3])
@pytest.mark.parametrize("recovery_point", [0, 3])
def test_batches_that_are_repeated_after_a_kill_are_the_known_ones(
    directory: Path, recovery_point: int, torn: int
) -> None:
    """A snapshot has the last batch of a producer only, and a segment holds fewer than five here. A
    client with five requests in flight repeats them all."""
    log = open_local_log(directory, config=CONFIG)
    for sequence in range(8):
        for producer_id in (7, 8):
            log.append_as_leader(idempotent(sequence, producer_id), 0, now_ms=T0)
    assert len(log.segments()) > 3
    path = log.segments()[-1].log_path
    path.write_bytes(path.read_bytes()[: path.stat().st_size - torn])
    for _ in range(2):
        # Not closed: killed. A second time as well, before anything is flushed.
        log = reopen(directory, LogCheckpoints(recovery_point))
        lasts = {7: 7, 8: 6 if torn else 7}
        for producer_id, last in lasts.items():
            for sequence in range(last - 4, last + 1):
                info = log.append_as_leader(idempotent(sequence, producer_id), 0, now_ms=T0)
                offset = 2 * sequence + producer_id - 7
                assert (info.duplicate, info.first_offset, info.last_offset) == (
                    True,
                    offset,
                    offset,
                )
            for sequence in (last - 5, last + 2):
                with pytest.raises(OutOfOrderSequenceError):
                    log.append_as_leader(idempotent(sequence, producer_id), 0, now_ms=T0)
    assert log.append_as_leader(idempotent(lasts[8] + 1, 8), 0, now_ms=T0).duplicate is False


def test_ended_transaction_above_the_high_watermark_stays_unstable_after_a_kill(
    directory: Path,
) -> None:
    """As before the kill: its marker may not be on every replica."""
    log = open_local_log(directory, config=CONFIG)
    batch = build_batch(
        [(T0, b"k", b"v", ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    log.append_as_leader(batch, 0, now_ms=T0)
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=T0,
    )
    log.append_as_leader(marker, 0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
    log = reopen(directory, LogCheckpoints(high_watermark=1))
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2
