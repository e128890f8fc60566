"""The checkpoints of a log directory: what is written for which log, and what a start finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.errors import LogDirFailedError
from isotherm.log.checkpoints import encode_offset_checkpoint, read_offset_checkpoint
from isotherm.log.locked_dir import LockedDir, lock_directory
from isotherm.log.log_dir import LogDir
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.types import TopicPartition
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.local_log import open_local_log

T0 = 1_700_000_000_000
LOG, TIERED, OFFLINE, UNKNOWN = (TopicPartition(name, 0) for name in ("log", "tiered", "off", "x"))
POINTS = "recovery-point-offset-checkpoint"
STARTS = "log-start-offset-checkpoint"
MARKS = "replication-offset-checkpoint"
NAMES = (POINTS, STARTS, MARKS)
SMALL = {"internal_segment_bytes": 300, "segment_index_bytes": 1200, "retention_ms": -1}


class Setup:
    """A directory, and the logs of `LOG` and `TIERED` in it, with six records each."""

    def __init__(self, path: Path) -> None:
        self.fs = FaultyFileSystem()
        self.dir = LogDir(path)
        self.logs = [self._log(LOG), self._log(TIERED, remote_storage_enable=True)]
        self.locked = self.lock()

    def _log(self, partition: TopicPartition, **config: Any) -> PartitionLog:
        log = open_local_log(
            self.dir.path / str(partition),
            config=TopicConfig(**SMALL, **config),
            topic_partition=partition,
        )
        for _ in range(6):
            log.append_as_leader(build_batch([(T0, b"k", b"v" * 50, ())]), 0, now_ms=T0)
        log.update_high_watermark(5)
        return log

    def lock(self) -> LockedDir:
        return lock_directory(self.fs, self.dir)

    def lock_again(self) -> LockedDir:
        self.locked.lock.release()
        self.locked = self.lock()
        return self.locked

    def store(self, **offsets: dict[TopicPartition, int]) -> None:
        for name, kind in ((POINTS, "points"), (STARTS, "starts"), (MARKS, "marks")):
            (self.dir.path / name).write_bytes(encode_offset_checkpoint(offsets[kind]))

    def stored(self, name: str) -> dict[TopicPartition, int]:
        return read_offset_checkpoint((self.dir.path / name).read_bytes())


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.locked.lock.release()
    for log in made.logs:
        log.close()


def test_new_directory_has_no_checkpoints_and_misses_none(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    locked = setup.locked
    assert (locked.recovery_points, locked.log_start_offsets, locked.high_watermarks) == (
        {},
        {},
        {},
    )
    assert locked.named == set()
    assert not locked.was_clean
    assert locked.checkpoints(LOG) == LogCheckpoints(0, 0, 0, False, knows_log_start=True)
    assert caplog.records == []


def test_checkpoints_of_a_log_are_those_in_the_files(setup: Setup) -> None:
    setup.store(points={LOG: 5, OFFLINE: 7}, starts={LOG: 2}, marks={LOG: 4, UNKNOWN: 1})
    (setup.dir.path / ".kafka_cleanshutdown").write_text('{"version": 0, "brokerEpoch": 0}')
    locked = setup.lock_again()
    assert locked.checkpoints(LOG) == LogCheckpoints(5, 2, 4, True, knows_log_start=True)
    assert locked.checkpoints(OFFLINE) == LogCheckpoints(7, 0, 0, True, knows_log_start=True)
    assert locked.named == {LOG, OFFLINE, UNKNOWN}
    assert locked.was_clean, "0 is a broker epoch, too"
    assert not setup.lock_again().was_clean, "the marker is taken"


def test_end_of_what_is_cleaned_is_in_the_cleaners_checkpoint(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    path = setup.dir.path / "cleaner-offset-checkpoint"
    path.write_bytes(encode_offset_checkpoint({LOG: 6}))
    locked = setup.lock_again()
    assert locked.checkpoints(LOG).cleaned_to == 6
    assert locked.checkpoints(OFFLINE).cleaned_to == 0
    path.write_text("rubbish")
    assert setup.lock_again().checkpoints(LOG).cleaned_to == 0
    assert caplog.records == []


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("name", NAMES)
def test_lost_checkpoint_is_named_and_the_others_count(
    setup: Setup, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    setup.store(points={LOG: 5}, starts={LOG: 2}, marks={LOG: 4})
    path = setup.dir.path / name
    path.unlink() if damage == "missing" else path.write_text("rubbish")
    locked = setup.lock_again()
    found = locked.checkpoints(LOG)
    assert found == LogCheckpoints(
        0 if name == POINTS else 5,
        0 if name == STARTS else 2,
        0 if name == MARKS else 4,
        False,
        knows_log_start=name != STARTS,
    )
    assert locked.named == {LOG}
    (warning,) = caplog.records
    assert f"file={path}" in warning.getMessage()
    assert ("it is missing" in warning.getMessage()) is (damage == "missing")


def test_save_writes_present_offsets_and_keeps_those_of_offline_logs(setup: Setup) -> None:
    setup.store(
        points={OFFLINE: 7, UNKNOWN: 8, LOG: 1},
        starts={OFFLINE: 6, UNKNOWN: 8},
        marks={OFFLINE: 9, UNKNOWN: 8},
    )
    locked = setup.lock_again()
    log, tiered = setup.logs
    log.flush()
    locked.save(setup.fs, setup.logs, [OFFLINE])
    assert setup.stored(POINTS) == {LOG: 6, TIERED: tiered.recovery_point, OFFLINE: 7}
    assert setup.stored(STARTS) == {TIERED: 0, OFFLINE: 6}, (
        "the base of a segment is enough for LOG"
    )
    assert setup.stored(MARKS) == {LOG: 5, TIERED: 5, OFFLINE: 9}
    assert locked.named == {LOG, TIERED, OFFLINE}
    locked.save(setup.fs, [log], [])
    assert setup.stored(POINTS) == {LOG: 6}
    assert setup.stored(MARKS) == {LOG: 5}
    assert locked.named == {LOG}


def test_log_start_is_written_where_the_segments_do_not_say_it(setup: Setup) -> None:
    log, tiered = setup.logs
    base = log.segments()[1].base_offset
    log.update_config(TopicConfig(**SMALL, file_delete_delay_ms=0))
    for start, stored in ((1, {LOG: 1}), (base, {}), (base + 1, {LOG: base + 1})):
        log.maybe_increment_log_start_offset(start)
        log.delete_old_segments(T0)
        setup.locked.save_log_starts(setup.fs, [log], [])
        assert setup.stored(STARTS) == stored
    tiered.maybe_increment_log_start_offset(3)
    assert tiered.durable_log_start_offset == 0
    setup.locked.save_log_starts(setup.fs, setup.logs, [])
    assert setup.stored(STARTS) == {LOG: base + 1, TIERED: 3}
    assert tiered.durable_log_start_offset == 3
    assert setup.locked.named == {LOG, TIERED}


def test_log_start_that_could_not_be_written_is_not_confirmed(setup: Setup) -> None:
    _, tiered = setup.logs
    tiered.maybe_increment_log_start_offset(3)
    setup.fs.fail(setup.dir.path)
    with pytest.raises(OSError, match="the disk has failed"):
        setup.locked.save_log_starts(setup.fs, [tiered], [])
    setup.fs.heal()
    assert tiered.durable_log_start_offset == 0
    assert setup.locked.named == set()


def test_high_watermarks_are_written_when_one_has_moved(setup: Setup) -> None:
    log, tiered = setup.logs
    path = setup.dir.path / MARKS

    def save(*logs: PartitionLog) -> bool:
        """Whether the file was written."""
        path.unlink(missing_ok=True)
        setup.locked.save_high_watermarks(setup.fs, logs, [])
        return path.exists()

    assert save(log)
    assert setup.stored(MARKS) == {LOG: 5}
    assert not save(log)
    log.update_high_watermark(6)
    assert save(log)
    assert setup.stored(MARKS) == {LOG: 6}
    assert save(log, tiered)
    assert not save(log, tiered)
    assert save(tiered)
    assert setup.locked.named == {LOG, TIERED}
    # A save of everything writes all three files, whatever was written last.
    path.unlink()
    setup.locked.save(setup.fs, [tiered], [])
    assert setup.stored(MARKS) == {TIERED: 5}


def test_directory_in_use_is_named(setup: Setup) -> None:
    with pytest.raises(LogDirFailedError, match=f"in use by another process.*dir={setup.dir.path}"):
        setup.lock()
