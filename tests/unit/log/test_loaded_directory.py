"""What a load leaves in a partition's directory, what it refuses, and what it reports."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import CorruptLogError
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.offline_logs import LineageLostError
from isotherm.record.batch import build_batch
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.filled_log import (
    BATCH_SIZE,
    CLEAN,
    CONFIG,
    T0,
    contents,
    errors_in,
    fill,
    lose_end_of_first_segment,
    offsets_in,
    reopen,
)
from tests.support.filtered_batch import filtered_batch
from tests.support.local_log import open_local_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned"])
def test_leftovers_go_though_nothing_was_swapped(directory: Path, suffix: str) -> None:
    fill(directory).close()
    left = directory / f"{5:020d}.log{suffix}"
    left.write_bytes(b"x")
    assert offsets_in(reopen(directory, CLEAN)) == list(range(12))
    assert not left.exists()


def test_swap_is_finished_though_nothing_else_is_left(directory: Path) -> None:
    fill(directory).close()
    swapped = build_batch([(T0, b"k", b"w", ())], base_offset=4)
    (directory / f"{0:020d}.log.swap").write_bytes(swapped)
    assert offsets_in(reopen(directory, CLEAN)) == [4, *range(5, 12)]
    assert list(directory.glob("*.swap")) == []


class NotedRemovals(FaultyFileSystem):
    """Notes which `.log` files are removed, and which directories are synced after that."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def remove(self, path: Path) -> None:
        if path.suffix == ".log":
            self.calls.append(path.name)
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        if self.calls:
            self.calls.append("sync")
        super().sync_directory(path)


def test_segments_after_damage_go_newest_first_and_for_good(directory: Path) -> None:
    """A crash in between leaves no gap, and a later one brings none of them back."""
    log = fill(directory)
    path = log.segments()[0].log_path
    path.write_bytes(path.read_bytes()[:-1])
    fs = NotedRemovals()
    open_local_log(directory, config=CONFIG, fs=fs)
    assert fs.calls[:3] == [f"{10:020d}.log", f"{5:020d}.log", "sync"]


def test_segment_without_a_log_file_is_reported_and_nothing_is_changed(directory: Path) -> None:
    fill(directory).close()
    (directory / f"{5:020d}.log").unlink()
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(CorruptLogError, match=rf"lost.*file={directory}/{5:020d}\.log"):
        reopen(directory, CLEAN)
    assert sorted(path.name for path in directory.iterdir()) == before


@pytest.mark.parametrize(
    ("kept", "is_refused"), [(2 * BATCH_SIZE - 1, False), (BATCH_SIZE - 1, True)]
)
def test_flushed_records_are_never_cut_off(directory: Path, kept: int, is_refused: bool) -> None:
    log = fill(directory)
    path = log.segments()[-1].log_path
    torn = path.read_bytes()[:kept]
    path.write_bytes(torn)
    checkpoints = LogCheckpoints(recovery_point=11)
    if not is_refused:
        assert reopen(directory, checkpoints).log_end_offset == 11
        return
    with pytest.raises(CorruptLogError, match="first_lost_offset=10 recovery_point=11"):
        reopen(directory, checkpoints)
    assert path.read_bytes() == torn


def test_log_that_lost_its_last_flushed_segment_is_refused(directory: Path) -> None:
    fill(directory)
    for path in directory.glob(f"{10:020d}.*"):
        path.unlink()
    with pytest.raises(CorruptLogError, match="first_lost_offset=10 recovery_point=12"):
        reopen(directory, LogCheckpoints(recovery_point=12))
    assert reopen(directory, LogCheckpoints(recovery_point=10)).log_end_offset == 10


@pytest.mark.parametrize("recovery_point", [0, 7])
def test_recovery_point_stays_until_a_flush(directory: Path, recovery_point: int) -> None:
    fill(directory).flush()
    log = reopen(directory, LogCheckpoints(recovery_point=recovery_point))
    assert log.recovery_point == recovery_point
    log.close()
    assert reopen(directory, CLEAN).recovery_point == 12


def test_empty_segments_stay(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka. A cleaner may leave them, or a crash their names alone: then the records from
    there on are missing, in one gap if such segments follow one another."""
    write_segments(directory, (0, 0), (5, 2), (7, 0), (8, 0), (9, 1), (10, 0))
    log = reopen(directory)
    assert [segment.base_offset for segment in log.segments()] == [0, 5, 7, 8, 9, 10]
    assert log.log_end_offset == 10
    assert [
        record.getMessage().partition("partition=topic-0 ")[2] for record in caplog.records
    ] == [
        "first_missing_offset=0 next_offset=5",
        "first_missing_offset=7 next_offset=9",
    ]


@pytest.mark.parametrize(
    ("cleaned_to", "missing"),
    [(4, ["0 next_offset=5", "7 next_offset=9"]), (5, ["7 next_offset=9"]), (9, [])],
)
@pytest.mark.parametrize("recovery_point", [0, 10])
def test_gaps_in_what_the_cleaner_has_cleaned_are_no_loss(
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    cleaned_to: int,
    missing: list[str],
    recovery_point: int,
) -> None:
    """Also when the topic is no longer compacted, and no segment left shows that it was."""
    write_segments(directory, (0, 0), (5, 2), (7, 0), (8, 0), (9, 1), (10, 0))
    reopen(directory, LogCheckpoints(recovery_point=recovery_point, cleaned_to=cleaned_to))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [error.partition("first_missing_offset=")[2] for error in errors] == missing


def write_segments(directory: Path, *segments: tuple[int, int]) -> None:
    """Write `.log` files of (base offset, number of batches of one record)."""
    directory.mkdir()
    for base_offset, count in segments:
        batches = [
            build_batch([(T0, b"k", b"v", ())], base_offset=base_offset + index)
            for index in range(count)
        ]
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(batches))


def test_log_whose_start_is_its_end_keeps_its_last_epoch(directory: Path) -> None:
    fill(directory).close()
    log = reopen(directory, replace(CLEAN, log_start_offset=12, high_watermark=12))
    assert (log.log_start_offset, log.log_end_offset) == (12, 12)
    assert list(log.leader_epochs.entries) == [(2, 12)]
    assert [segment.base_offset for segment in log.segments()] == [0, 5, 10]


@pytest.mark.parametrize("epochs", ["0\n2\n1 6\n2 10\n", "0\n3\n0 0\n1 5\n2 10\n"])
def test_lost_log_start_is_that_of_the_first_epoch(
    directory: Path, epochs: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(directory).close()
    (directory / "leader-epoch-checkpoint").write_text(epochs)
    start = int(epochs.split()[3])
    log = reopen(directory, replace(CLEAN, knows_log_start=False))
    assert log.log_start_offset == start
    expected = f"log start offset is lost .* partition=topic-0 log_start_offset={start}"
    assert [bool(re.match(expected, record.getMessage())) for record in caplog.records] == (
        [True] if start else []
    )


def test_lost_log_start_of_a_log_without_epochs_is_its_first_segment(directory: Path) -> None:
    log = reopen(directory, replace(CLEAN, knows_log_start=False))
    assert log.log_start_offset == 0
    log.close()
    (directory / f"{0:020d}.log").rename(directory / f"{9:020d}.log")
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    log = reopen(directory, LogCheckpoints(knows_log_start=False))
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)


def test_index_that_is_made_again_leaves_the_later_snapshots(directory: Path) -> None:
    fill(directory).close()
    (directory / f"{0:020d}.index").unlink()
    reopen(directory, CLEAN)
    assert sorted(contents(directory, ".snapshot")) == [
        f"{offset:020d}.snapshot" for offset in (5, 10, 12)
    ]


def test_empty_transaction_index_is_made_again(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(directory).close()
    (directory / f"{5:020d}.txnindex").write_bytes(b"")
    log = reopen(directory, CLEAN)
    assert log.log_end_offset == 12
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{5:020d}.log reason='transaction index is empty'" in warning


def messages_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_recovery_names_what_it_dropped(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = fill(directory)
    path = log.segments()[1].log_path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    reopen(directory, LogCheckpoints(recovery_point=3))
    recovered, dropped = messages_in(caplog)[-2:]
    assert recovered.endswith("partition=topic-0 recovery_point=3 log_end_offset=9")
    # The damaged batch, and the two of the later segment.
    assert dropped.endswith(
        f"first_dropped_offset=9 dropped_bytes={3 * BATCH_SIZE} dropped_segments=1"
    )


@pytest.mark.parametrize(("high_watermark", "is_lost"), [(12, False), (13, True)])
def test_recovery_names_what_is_lost_without_a_trace(
    directory: Path, caplog: pytest.LogCaptureFixture, high_watermark: int, is_lost: bool
) -> None:
    fill(directory)
    reopen(directory, LogCheckpoints(high_watermark=high_watermark))
    expected = (
        "records that were not flushed are lost after an unclean stop partition=topic-0"
        " first_lost_offset=12 high_watermark=13"
    )
    assert messages_in(caplog) == [expected] * is_lost


def test_load_after_a_clean_stop_says_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(directory).close()
    caplog.set_level(logging.INFO)
    reopen(directory, replace(CLEAN, high_watermark=13))
    assert messages_in(caplog) == []


def test_recovery_of_an_empty_log_says_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reopen(directory).close()
    caplog.set_level(logging.INFO)
    reopen(directory)
    assert messages_in(caplog) == []


def without_a_batch(directory: Path) -> None:
    path = directory / f"{5:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[:BATCH_SIZE] + data[2 * BATCH_SIZE :])


def without_a_record(directory: Path) -> None:
    records = [(T0, b"k", b"v" * 50, ()), (T0, b"k", b"v", ())]
    path = directory / f"{5:020d}.log"
    compacted = filtered_batch(build_batch(records, base_offset=5), {0})
    path.write_bytes(compacted + path.read_bytes()[2 * BATCH_SIZE :])


def with_everything(directory: Path) -> None:
    """Nothing is compacted."""


@pytest.mark.parametrize("compact", [without_a_batch, without_a_record, with_everything])
def test_gap_is_reported_at_each_unclean_start_of_a_log_that_was_never_compacted(
    directory: Path, compact: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The second start recovers nothing: there the headers show whether the log was compacted."""
    fill(directory)
    compact(directory)
    lose_end_of_first_segment(directory)
    for recovery_point in (0, 12):
        caplog.clear()
        log = reopen(directory, LogCheckpoints(recovery_point=recovery_point))
        assert len(errors_in(caplog)) == (compact is with_everything)
        log.close()


# Tiered logs


TIERED = replace(CONFIG, remote_storage_enable=True)


@pytest.mark.parametrize(("log_start_offset", "is_refused"), [(4, True), (5, False), (None, True)])
def test_tiered_log_without_the_epochs_of_its_remote_segments_is_refused(
    directory: Path, log_start_offset: int | None, is_refused: bool
) -> None:
    fill(directory).close()
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    (directory / "leader-epoch-checkpoint").unlink()
    checkpoints = replace(
        CLEAN, log_start_offset=log_start_offset or 0, knows_log_start=log_start_offset is not None
    )
    if not is_refused:
        log = open_local_log(directory, config=TIERED, checkpoints=checkpoints)
        assert list(log.leader_epochs.entries) == [(1, 5), (2, 10)]
        return
    with pytest.raises(LineageLostError, match="local_start_offset=5") as refused:
        open_local_log(directory, config=TIERED, checkpoints=checkpoints)
    lost = refused.value
    assert (lost.local_start, lost.local_end) == (5, 12)
    assert list(lost.local_epochs) == [(1, 5), (2, 10)]
    assert lost.path == directory / "leader-epoch-checkpoint"


def test_tiered_log_with_all_its_segments_needs_no_stored_epochs(directory: Path) -> None:
    fill(directory).close()
    (directory / "leader-epoch-checkpoint").unlink()
    log = open_local_log(
        directory, config=TIERED, checkpoints=replace(CLEAN, knows_log_start=False)
    )
    assert list(log.leader_epochs.entries) == [(0, 0), (1, 5), (2, 10)]


def test_batch_of_an_earlier_epoch_takes_no_epoch_back(directory: Path) -> None:
    directory.mkdir()
    batches = [
        build_batch([(T0, b"k", b"v", ())], base_offset=offset, partition_leader_epoch=epoch)
        for offset, epoch in enumerate((0, 2, 1, 2, 3))
    ]
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    assert list(reopen(directory).leader_epochs.entries) == [(0, 0), (2, 1), (3, 4)]


def test_batches_without_an_epoch_give_none(directory: Path) -> None:
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(build_batch([(T0, b"k", b"v", ())]))
    assert reopen(directory).leader_epochs.entries == ()
