"""The machine stops at each write, sync and rename in turn; flushed records survive.

`CrashFileSystem` stops a fixed run of a log manager at its n-th operation. The test opens several
states that a disk might show then. Each must hold whole records, all of them appended ones, among
them every record before the end of the last flush that returned.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import LogDirFailedError
from isotherm.log.fs import FileSystem, OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches, read_records
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.crash_fs import CrashFileSystem, SimulatedCrash

T0 = 1_700_000_000_000
PARTITION = TopicPartition("topic", 0)
TOPIC_ID = uuid.UUID(int=7)
CONFIG = TopicConfig(
    internal_segment_bytes=600,
    index_interval_bytes=150,
    segment_index_bytes=240,
    retention_ms=-1,
    file_delete_delay_ms=0,
)


def manager_over(path: Path, fs: FileSystem) -> LogManager:
    return LogManager(
        [path],
        config=BrokerConfig(log_dirs=(path,), num_recovery_threads_per_data_dir=1),
        topic_config_for=lambda topic: CONFIG,
        clock=SimClock(T0),
        fs=fs,
        rng=random.Random(0),
    )


class Run:
    """A fixed history;

    `durable_end` and `log_start` are offsets that the log has confirmed to its caller.
    """

    def __init__(self) -> None:
        self.durable_end = 0
        self.log_start = 0
        self.is_created = False

    def play(self, manager: LogManager) -> None:
        manager.startup()
        log = manager.create_log(PARTITION, TOPIC_ID, CONFIG)
        self.is_created = True
        for step in range(12):
            for _ in range(step % 4):
                append(log)
            if step % 3 == 0:
                log.flush()
                self.durable_end = log.log_end_offset
            if step % 4 == 1:
                manager.checkpoint()
            if step == 6:
                log.roll()
            if step % 5 == 4:
                log.maybe_increment_log_start_offset(log.log_end_offset // 2)
                self.log_start = log.log_start_offset
                manager.delete_expired_segments()
                manager.delete_marked_files()
            if step == 8:
                manager.flush_dirty_logs()
        manager.shutdown()
        self.durable_end = log.log_end_offset


def append(log: PartitionLog) -> None:
    end = log.log_end_offset
    state = log.producers.producer(7)
    sequence = end if state is None else state.last_sequence + 1
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    records = [(T0 + end, b"%d" % end, b"v" * (end % 50), ())]
    log.append_as_leader(build_batch(records, **producer), end // 7, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)


def keys_of(log: PartitionLog) -> list[bytes]:
    keys: list[bytes] = []
    offset = log.log_start_offset
    while len(read := log.read(offset, 500).records) > 0:
        for position, header in iterate_batches(read):
            keys += [record.key or b"" for record in read_records(read, position, header)]
            assert header.partition_leader_epoch == header.base_offset // 7
            offset = header.next_offset
    return keys


def check_survivor(path: Path, run: Run) -> None:
    # Not OsFileSystem: thousands of real syncs take longer than all the rest.
    manager = manager_over(path, CrashFileSystem.adopting(path))
    manager.startup()
    log = manager.log(PARTITION)
    if not run.is_created:
        assert log is None or log.log_end_offset == 0
        manager.shutdown()
        return
    assert log is not None
    assert log.log_end_offset >= run.durable_end
    assert log.log_start_offset <= max(run.log_start, log.log_end_offset)
    offsets = [int(key) for key in keys_of(log)]
    assert offsets == sorted(offsets)
    assert set(offsets) >= set(range(log.log_start_offset, run.durable_end))
    if offsets:
        assert log.log_end_offset > offsets[-1]
        state = log.producers.producer(7)
        assert state is not None
        assert state.last_sequence == offsets[-1]
    append(log)
    manager.shutdown()
    manager = manager_over(path, CrashFileSystem.adopting(path))
    manager.startup()
    log = manager.log(PARTITION)
    assert log is not None
    assert [int(key) for key in keys_of(log)][:-1] == offsets
    manager.shutdown()


def operations_of_a_whole_run(path: Path) -> int:
    fs = CrashFileSystem()
    Run().play(manager_over(path, fs))
    return fs.operation_count


def test_nothing_flushed_is_lost_wherever_the_machine_stops(tmp_path: Path) -> None:
    count = operations_of_a_whole_run(tmp_path / "whole")
    assert count > 150
    for operation in range(1, count + 1):
        source = tmp_path / f"{operation}"
        fs = CrashFileSystem(crash_at=operation)
        run = Run()
        with pytest.raises(SimulatedCrash):
            run.play(manager_over(source, fs))
        for seed in range(2):
            survivor = tmp_path / f"{operation}-{seed}"
            fs.crash_clone(random.Random(1000 * operation + seed), source, survivor)
            check_survivor(survivor, run)


def test_crash_in_the_middle_of_recovery_costs_nothing_either(tmp_path: Path) -> None:
    """The second start is stopped at each of its operations; the third one must recover the log."""
    source = tmp_path / "source"
    fs = CrashFileSystem(crash_at=operations_of_a_whole_run(tmp_path / "whole") - 30)
    run = Run()
    with pytest.raises(SimulatedCrash):
        run.play(manager_over(source, fs))
    operation, crashed = 0, True
    while crashed:
        operation += 1
        first = tmp_path / f"first-{operation}"
        fs.crash_clone(random.Random(operation), source, first)
        recovering = CrashFileSystem.adopting(first, crash_at=operation)
        try:
            manager_over(first, recovering).startup()
            crashed = False
        except SimulatedCrash:
            second = tmp_path / f"second-{operation}"
            recovering.crash_clone(random.Random(operation), first, second)
            check_survivor(second, run)
    assert operation > 10


def test_same_seed_gives_the_same_survivor(tmp_path: Path) -> None:
    source = tmp_path / "source"
    fs = CrashFileSystem(crash_at=60)
    with pytest.raises(SimulatedCrash):
        Run().play(manager_over(source, fs))

    def survivor(name: str, seed: int) -> dict[str, bytes]:
        fs.crash_clone(random.Random(seed), source, tmp_path / name)
        files = (tmp_path / name).rglob("*")
        return {path.name: path.read_bytes() for path in files if path.is_file()}

    assert survivor("a", 1) == survivor("b", 1)
    assert any(survivor(f"c{seed}", seed) != survivor("d", 1) for seed in range(2, 9))


def test_failing_write_leaves_the_rest_readable_after_a_restart(tmp_path: Path) -> None:
    """A full disk, not a crash: records appended before are there, the half-written batch is
    not.
    """

    class FullDisk(OsFileSystem):
        is_full = False

        def open_writable(self, path: Path) -> Any:
            file = super().open_writable(path)
            write_at = file.write_at

            def write_half(position: int, data: Any) -> None:
                if self.is_full:
                    write_at(position, bytes(data)[: len(data) // 2])
                    raise OSError(28, "No space left on device")
                write_at(position, data)

            return _FileWith(file, write_half)

    fs = FullDisk()
    path = tmp_path / "dir"
    manager = manager_over(path, fs)
    manager.startup()
    log = manager.create_log(PARTITION, TOPIC_ID, CONFIG)
    for _ in range(5):
        append(log)
    fs.is_full = True
    with pytest.raises(LogDirFailedError):
        append(log)
    manager.shutdown()
    assert not (path / ".kafka_cleanshutdown").exists()
    manager = manager_over(path, OsFileSystem())
    manager.startup()
    reopened = manager.log(PARTITION)
    assert reopened is not None
    assert keys_of(reopened) == [b"%d" % offset for offset in range(5)]
    manager.shutdown()


class _FileWith:
    def __init__(self, file: Any, write_at: Any) -> None:
        self._file = file
        self.write_at = write_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
