"""The log manager over several directories: checkpoints, failed directories, damaged logs,
deletions."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptMetadataError, LogDirFailedError, NotLeaderOrFollowerError
from isotherm.log.checkpoints import encode_offset_checkpoint, read_offset_checkpoint
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.segment.offset_index import Buffer
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.faulty_fs import FaultyFileSystem

T0 = 1_700_000_000_000
A, B, C = (TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("a", 1))
TOPIC_ID = uuid.UUID(int=7)
LOG_STARTS = "log-start-offset-checkpoint"
CONFIG = TopicConfig(
    internal_segment_bytes=1000, segment_index_bytes=1200, retention_ms=-1, file_delete_delay_ms=50
)

Open = Callable[..., LogManager]


@pytest.fixture
def clock() -> SimClock:
    return SimClock(T0)


@pytest.fixture
def open_manager(tmp_path: Path, clock: SimClock) -> Iterator[Open]:
    """A function that starts a manager, by default over <tmp>/one and <tmp>/two. All are shut down
    at the end."""
    opened: list[LogManager] = []

    def open_one(
        *names: str, config: TopicConfig = CONFIG, fs: Any = None, tiered: bool = False, **more: Any
    ) -> LogManager:
        dirs = tuple(tmp_path / name for name in names or ("one", "two"))
        manager = LogManager(
            dirs,
            config=BrokerConfig(
                log_dirs=dirs,
                topic_defaults=config,
                remote=RemoteLogManagerConfig(remote_log_storage_system_enable=tiered),
            ),
            topic_config_for=lambda topic: config,
            clock=clock,
            fs=fs or OsFileSystem(),
            rng=random.Random(0),
            **more,
        )
        opened.append(manager)
        manager.startup()
        return manager

    yield open_one
    for manager in opened:
        manager.shutdown()


def append(log: PartitionLog, count: int = 1) -> None:
    for _ in range(count):
        log.append_as_leader(build_batch([(T0, b"k", b"v" * 100, ())]), 0, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)


def crash(manager: LogManager) -> None:
    """Leave the files as `kill -9` does. The lock goes with the process."""
    for locked in manager._locked:
        locked.lock.release()
    manager._locked._locked.clear()
    manager._locked._loaded.clear()
    manager._logs = {}


def test_directory_that_a_crash_left_without_its_id_gets_it(
    open_manager: Open, tmp_path: Path
) -> None:
    """The crash comes between the creation of the partition's directory and of
    partition.metadata."""
    (tmp_path / "one" / "a-0").mkdir(parents=True)
    manager = open_manager("one")
    topic_id = uuid.uuid4()
    log = manager.create_log(TopicPartition("a", 0), topic_id, CONFIG)
    append(log)
    assert log.topic_id == topic_id
    crash(manager)
    again = open_manager("one").log(TopicPartition("a", 0))
    assert again is not None
    assert (again.topic_id, again.log_end_offset) == (topic_id, 1)


def test_log_is_created_in_the_directory_with_the_fewest(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager()
    for partition in (A, B, C):
        manager.create_log(partition, TOPIC_ID, CONFIG)
    assert [log.directory for log in manager.logs()] == [
        tmp_path / "one" / "a-0",
        tmp_path / "two" / "b-0",
        tmp_path / "one" / "a-1",
    ]
    assert manager.create_log(A, TOPIC_ID, CONFIG) is manager.log(A)
    assert manager.log(TopicPartition("none", 0)) is None
    content = (tmp_path / "one" / "a-0" / "partition.metadata").read_bytes()
    assert content == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"


def test_logs_are_loaded_after_a_clean_stop_without_recovery(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager()
    append(manager.create_log(A, TOPIC_ID, CONFIG), 12)
    manager.shutdown()
    assert (tmp_path / "one" / ".kafka_cleanshutdown").exists()
    # Damage that only a recovery would find and cut off.
    first = tmp_path / "one" / "a-0" / f"{0:020d}.log"
    data = bytearray(first.read_bytes())
    data[70] ^= 1
    first.write_bytes(data)
    log = open_manager().log(A)
    assert log is not None
    assert (log.log_end_offset, log.high_watermark, log.topic_id) == (12, 12, TOPIC_ID)
    assert not (tmp_path / "one" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("flush", [LogManager.flush_dirty_logs, LogManager.flush_closed_segments])
def test_logs_are_recovered_from_the_recovery_point_after_a_crash(
    open_manager: Open, tmp_path: Path, flush: Callable[[LogManager], None]
) -> None:
    manager = open_manager("one")
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    append(log, 12)
    flush(manager)
    manager.checkpoint()
    crash(manager)
    directory = tmp_path / "one" / "a-0"
    for base, position in ((0, 70), (10, 70)):
        path = directory / f"{base:020d}.log"
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
    recovered = open_manager("one").log(A)
    assert recovered is not None
    # Recovery does not read below the recovery point 10. It cuts the damaged batch at 10 off.
    assert recovered.log_end_offset == 10
    assert recovered.log_start_offset == 0


def test_high_watermarks_are_checkpointed_alone_and_only_when_one_moved(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    manager.create_log(B, TOPIC_ID, CONFIG)
    for _ in range(5):
        log.append_as_leader(build_batch([(T0, b"k", b"v", ())]), 0, now_ms=T0)
    log.update_high_watermark(3)
    manager.checkpoint_high_watermarks()
    file = tmp_path / "one" / "replication-offset-checkpoint"
    assert file.read_text() == "0\n2\na 0 3\nb 0 0\n"
    starts = tmp_path / "one" / LOG_STARTS
    assert starts.exists()  # the first checkpoint writes all: a missing file counts as lost
    starts.write_text("0\n0\n")
    file.unlink()
    manager.checkpoint_high_watermarks()
    assert not file.exists()
    log.update_high_watermark(4)
    manager.checkpoint_high_watermarks()
    assert file.read_text() == "0\n2\na 0 4\nb 0 0\n"
    assert starts.read_text() == "0\n0\n"
    crash(manager)
    found = open_manager("one").log(A)
    assert found is not None
    assert (found.high_watermark, found.log_end_offset) == (4, 5)


def test_checkpoints_hold_what_loading_needs(
    open_manager: Open, tmp_path: Path, clock: SimClock
) -> None:
    manager = open_manager("one")
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    append(log, 12)
    log.flush()
    manager.create_log(B, TOPIC_ID, CONFIG)
    log.maybe_increment_log_start_offset(3)
    manager.checkpoint()

    def stored(name: str) -> dict[TopicPartition, int]:
        return read_offset_checkpoint((tmp_path / "one" / name).read_bytes())

    assert stored("recovery-point-offset-checkpoint") == {A: 12, B: 0}
    assert stored("log-start-offset-checkpoint") == {A: 3}
    assert stored("replication-offset-checkpoint") == {A: 12, B: 0}
    crash(manager)
    reloaded = open_manager("one").log(A)
    assert reloaded is not None
    assert (reloaded.log_start_offset, reloaded.high_watermark) == (3, 12)


class StartsWhenFilesGo(OsFileSystem):
    """Notes the checkpointed log starts each time a segment's `.log` is renamed for deletion."""

    def __init__(self) -> None:
        self.seen: list[dict[TopicPartition, int]] = []
        self.written = 0

    def write_atomically(self, path: Path, data: Buffer) -> None:
        self.written += path.name == LOG_STARTS
        super().write_atomically(path, data)

    def rename(self, source: Path, target: Path) -> None:
        if source.suffix == ".log":
            path = source.parent.parent / LOG_STARTS
            self.seen.append(read_offset_checkpoint(path.read_bytes()))
        super().rename(source, target)


@pytest.mark.parametrize(
    ("retention", "start"),
    [({}, 12), ({"remote_log_copy_disable": True, "retention_bytes": 0}, 17)],
    ids=["DeleteRecords", "retention without copies"],
)
def test_log_start_is_durable_before_what_lies_below_it_goes(
    retention: dict[str, Any], start: int, open_manager: Open, tmp_path: Path
) -> None:
    """Otherwise a crash takes the log start back to offsets that neither tier holds."""
    fs, config = StartsWhenFilesGo(), replace(CONFIG, remote_storage_enable=True, **retention)
    manager = open_manager("one", fs=fs, config=config, tiered=True)
    logs = [manager.create_log(each, TOPIC_ID, config) for each in (A, B)]
    for log in logs:
        append(log, 17)
        log.maybe_increment_log_start_offset(12)
        assert log.durable_log_start_offset == 0
    assert len(manager.delete_expired_segments()) == 2
    half = len(fs.seen) // 2
    assert half > 1
    assert {seen[A] for seen in fs.seen[:half]} == {seen[B] for seen in fs.seen[half:]} == {start}
    crash(manager)
    again = open_manager("one", config=config, tiered=True)
    assert [log.log_start_offset for log in again.logs()] == [start, start]


def test_one_checkpoint_serves_all_logs_whose_start_has_moved(open_manager: Open) -> None:
    fs, config = StartsWhenFilesGo(), replace(CONFIG, remote_storage_enable=True)
    manager = open_manager("one", fs=fs, config=config, tiered=True)
    logs = [manager.create_log(each, TOPIC_ID, config) for each in (A, B)]
    for log in logs:
        append(log, 12)
        log.maybe_increment_log_start_offset(3)
    for log in logs:
        log.make_log_start_durable()
        assert log.durable_log_start_offset == 3
    assert fs.written == 1
    logs[0].maybe_increment_log_start_offset(4)
    manager.delete_log(A)
    with pytest.raises(NotLeaderOrFollowerError):
        logs[0].make_log_start_durable()


def test_log_that_becomes_tiered_has_a_start_that_a_crash_keeps(
    open_manager: Open, tmp_path: Path
) -> None:
    """Before that, the base offset of its first segment was its log start, so none was
    checkpointed."""
    manager = open_manager("one", tiered=True)
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    append(log, 17)
    manager.update_log_config(log, replace(CONFIG, retention_bytes=0))
    manager.delete_expired_segments()
    assert log.log_start_offset == 17
    manager.checkpoint()
    config = replace(CONFIG, remote_storage_enable=True)
    manager.update_log_config(log, config)
    crash(manager)
    again = open_manager("one", config=config, tiered=True).log(A)
    assert again is not None
    assert again.log_start_offset == 17


def test_checkpoints_of_several_threads_do_not_meet(open_manager: Open, tmp_path: Path) -> None:
    """A checkpoint is written to a temporary file and renamed. With two writers the second would
    find no temporary file, and take its directory offline."""
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 12)

    def write() -> None:
        for _ in range(20):
            manager.checkpoint()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(write) for _ in range(4)]:
            future.result()
    assert manager.offline_log_dirs() == ()
    path = tmp_path / "one" / "replication-offset-checkpoint"
    assert read_offset_checkpoint(path.read_bytes()) == {A: 12}


def test_damaged_checkpoint_costs_recovery_and_nothing_else(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 12)
    manager.shutdown()
    (tmp_path / "one" / "recovery-point-offset-checkpoint").write_text("rubbish")
    log = open_manager("one").log(A)
    assert log is not None
    assert log.log_end_offset == 12


def test_second_process_gets_the_holder_of_the_lock(open_manager: Open, tmp_path: Path) -> None:
    open_manager("one")
    script = (
        "import sys, random, pathlib\n"
        "from isotherm.log.log_manager import LogManager\n"
        "from isotherm.log.fs import OsFileSystem\n"
        "from isotherm.clock import SystemClock\n"
        "from isotherm.config.broker import BrokerConfig\n"
        "dirs = (pathlib.Path(sys.argv[1]),)\n"
        "LogManager(dirs, config=BrokerConfig(log_dirs=dirs), topic_config_for=None,\n"
        "    clock=SystemClock(), fs=OsFileSystem(), rng=random.Random(0)).startup()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "one")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "LogDirFailedError: log directory is in use by another process" in result.stderr
    assert f"dir={tmp_path / 'one'}" in result.stderr


def test_second_manager_of_the_same_process_is_refused_and_harms_nothing(
    open_manager: Open, tmp_path: Path
) -> None:
    first = open_manager("one")
    append(first.create_log(A, TOPIC_ID, CONFIG), 3)
    open_manager("two").shutdown()
    for _ in range(2):
        with pytest.raises(LogDirFailedError, match="in use"):
            open_manager("two", "one")
    # The refused manager had locked directory two. It released the lock and changed nothing.
    assert (tmp_path / "two" / ".kafka_cleanshutdown").exists()
    append(open_manager("two").create_log(B, TOPIC_ID, CONFIG))
    append(first.create_log(A, TOPIC_ID, CONFIG))


class FailingFileSystem(OsFileSystem):
    """Fails with EIO on every path that contains `broken`, while `is_failing`."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self.is_failing = True

    def _check(self, path: Path) -> None:
        if self.is_failing and self._broken in str(path):
            raise OSError(5, "Input/output error", str(path))

    def make_directory(self, path: Path) -> None:
        self._check(path)
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        super().sync_directory(path)


def test_directory_that_cannot_be_opened_stays_offline_and_the_other_lives(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager(fs=FailingFileSystem("/one"))
    assert [log_dir.path for log_dir in manager.live_log_dirs()] == [tmp_path / "two"]
    assert [log_dir.path for log_dir in manager.offline_log_dirs()] == [tmp_path / "one"]
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    assert log.directory == tmp_path / "two" / "a-0"


def test_startup_without_any_usable_directory_is_refused(open_manager: Open) -> None:
    with pytest.raises(LogDirFailedError, match="no log directory is usable"):
        open_manager("one", fs=FailingFileSystem("/one"))


def test_directory_that_fails_later_takes_only_its_logs_along(
    open_manager: Open, tmp_path: Path
) -> None:
    fs = FailingFileSystem("/one")
    fs.is_failing = False
    manager = open_manager(fs=fs)
    one = manager.create_log(A, TOPIC_ID, CONFIG)
    two = manager.create_log(B, TOPIC_ID, CONFIG)
    append(one)
    append(two)
    fs.is_failing = True
    manager.checkpoint()
    assert [log_dir.path for log_dir in manager.offline_log_dirs()] == [tmp_path / "one"]
    with pytest.raises(LogDirFailedError):
        append(one)
    append(two)
    manager.delete_expired_segments()
    manager.shutdown()
    assert not (tmp_path / "one" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "two" / ".kafka_cleanshutdown").exists()


class Catalog:
    """Topic ids by partition, the ids of removed topics, and the partitions on other brokers."""

    def __init__(
        self,
        topics: dict[TopicPartition, uuid.UUID],
        removed: frozenset[uuid.UUID] = frozenset(),
        elsewhere: frozenset[TopicPartition] = frozenset(),
    ) -> None:
        self._topics = topics
        self._removed = removed
        self._elsewhere = elsewhere

    def topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        return self._topics.get(topic_partition)

    def was_removed(self, topic_id: uuid.UUID) -> bool:
        return topic_id in self._removed

    def is_elsewhere(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._elsewhere


def test_log_of_a_partition_that_has_moved_to_other_brokers_is_set_aside(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    append(manager.create_log(B, TOPIC_ID, CONFIG), 2)
    manager.shutdown()
    catalog = Catalog({A: TOPIC_ID, B: TOPIC_ID}, elsewhere=frozenset({A}))
    for _ in range(2):
        second = open_manager("one", catalog=catalog)
        assert (second.log(A), second.is_damaged(A)) == (None, False)
        assert second.log(B) is not None
        second.shutdown()
        (stray,) = (tmp_path / "one").glob("a-0*")
        assert stray.name.endswith("-stray")
        assert (stray / f"{0:020d}.log").stat().st_size > 0
    # The partition returns as an empty replica, which fetches everything.
    back = open_manager("one", catalog=Catalog({A: TOPIC_ID, B: TOPIC_ID}))
    assert back.create_log(A, TOPIC_ID, CONFIG).log_end_offset == 0


def test_damaged_log_that_is_set_aside_is_not_missed_by_the_next_start(
    open_manager: Open, tmp_path: Path
) -> None:
    """It holds also if the process ends before a new log is created."""
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    manager.shutdown()
    (tmp_path / "one" / "a-0" / f"{0:020d}.log").write_bytes(b"")
    second = open_manager("one", catalog=Catalog({A: TOPIC_ID}))
    assert second.is_damaged(A)
    assert second.set_aside(A) is second.log_dirs()[0]
    second.shutdown()
    (stray,) = (tmp_path / "one").glob("a-0*")
    assert stray.name.endswith("-stray")
    third = open_manager("one", catalog=Catalog({A: TOPIC_ID}))
    assert not third.is_damaged(A)
    assert third.create_log(A, TOPIC_ID, CONFIG).log_end_offset == 0


def test_partition_that_is_offline_keeps_its_checkpoints_for_the_next_start(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    manager.shutdown()
    before = (tmp_path / "one" / "recovery-point-offset-checkpoint").read_bytes()
    path = tmp_path / "one" / "a-0" / f"{0:020d}.log"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    second = open_manager("one")
    assert (second.log(A), second.is_damaged(A)) == (None, True)
    with pytest.raises(LogDirFailedError, match="the partition is offline partition=a-0"):
        second.create_log(A, TOPIC_ID, CONFIG)
    append(second.create_log(B, TOPIC_ID, CONFIG), 2)
    second.shutdown()
    # No clean-shutdown mark, so that the next start recovers and finds the damage again.
    assert not (tmp_path / "one" / ".kafka_cleanshutdown").exists()
    after = (tmp_path / "one" / "recovery-point-offset-checkpoint").read_bytes()
    assert read_offset_checkpoint(after) == {**read_offset_checkpoint(before), B: 2}
    path.write_bytes(sound)
    log = open_manager("one").log(A)
    assert log is not None
    assert log.log_end_offset == 3


def test_topic_is_deleted_though_a_partition_of_it_is_offline(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    manager.shutdown()
    (tmp_path / "one" / "a-0" / f"{0:020d}.log").write_bytes(b"")
    second = open_manager("one")
    second.delete_log(A)
    assert not second.is_damaged(A)
    assert list((tmp_path / "one").glob("a-0.*-delete"))
    assert second.create_log(A, TOPIC_ID, CONFIG).log_end_offset == 0


def test_checkpoints_of_an_earlier_topic_are_not_those_of_a_later_one(
    open_manager: Open,
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 12)
    manager.flush_dirty_logs()
    manager.checkpoint()
    manager.delete_log(A)
    append(manager.create_log(A, uuid.UUID(int=8), CONFIG), 3)
    crash(manager)
    log = open_manager("one").log(A)
    assert log is not None
    assert (log.log_end_offset, log.recovery_point) == (3, 0)


def test_log_that_ends_before_its_recovery_point_is_offline(
    open_manager: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cut is between two batches, so the file itself is sound."""
    manager = open_manager("one")
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    append(log, 4)
    log.flush()
    manager.checkpoint()
    crash(manager)
    path = tmp_path / "one" / "a-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert open_manager("one").is_damaged(A)
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "flushed records are missing" in error
    assert "first_lost_offset=2 recovery_point=4" in error


def test_flushed_records_that_are_damaged_can_be_given_up(
    open_manager: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The test follows the steps of docs/operations.md."""
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 12)
    bases = [segment.base_offset for segment in manager.logs()[0].segments()]
    assert bases == [0, 5, 10]
    manager.shutdown()
    directory = tmp_path / "one" / "a-0"
    path = directory / f"{5:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    second = open_manager("one")
    assert second.is_damaged(A)
    second.shutdown()
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    found = re.search(r"file=(\S+) position=(\d+) first_lost_offset=(\d+)", error)
    assert found is not None
    assert found[1] == str(path)
    with path.open("r+b") as file:
        file.truncate(int(found[2]))
    for later in directory.glob(f"{10:020d}.*"):
        later.unlink()
    checkpoint = tmp_path / "one" / "recovery-point-offset-checkpoint"
    checkpoint.write_bytes(encode_offset_checkpoint({A: int(found[3])}))
    log = open_manager("one").log(A)
    assert log is not None
    assert log.log_end_offset == int(found[3]) == 7


def test_metadata_log_of_the_tier_that_is_lost_names_the_way_back(
    open_manager: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    partition = TopicPartition("__remote_log_metadata", 3)
    manager = open_manager("one")
    append(manager.create_log(partition, TOPIC_ID, CONFIG), 4)
    manager.shutdown()
    path = tmp_path / "one" / "__remote_log_metadata-3" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])
    assert open_manager("one").is_damaged(partition)
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "isotherm pipeline rebuild" in error
    assert "first_lost_offset=1" in error


def test_partition_whose_directory_is_gone_is_offline(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    manager.create_log(B, TOPIC_ID, CONFIG)
    manager.shutdown()
    for partition in ("a-0", "b-0"):
        shutil.rmtree(tmp_path / "one" / partition)
    second = open_manager("one", catalog=Catalog({A: TOPIC_ID, B: TOPIC_ID}))
    assert second.is_damaged(A)
    assert not second.is_damaged(B)  # it had no records


@pytest.mark.parametrize(
    "content", [None, b"", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAB", bytes(43)]
)
def test_lost_topic_id_is_taken_from_the_clusters_metadata(
    open_manager: Open, tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    manager.shutdown()
    path = tmp_path / "one" / "a-0" / "partition.metadata"
    sound = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    log = open_manager("one", catalog=Catalog({A: TOPIC_ID})).log(A)
    assert log is not None
    assert (log.topic_id, log.log_end_offset) == (TOPIC_ID, 3)
    assert path.read_bytes() == sound
    (record,) = caplog.records
    assert (record.levelname, str(path) in record.getMessage()) == ("WARNING", True)


def test_topic_id_of_no_topic_takes_the_partition_offline(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, uuid.UUID(int=8), CONFIG), 3)
    manager.shutdown()
    second = open_manager("one", catalog=Catalog({A: TOPIC_ID}))
    assert second.is_damaged(A)
    assert (tmp_path / "one" / "a-0").exists()


def test_log_of_a_topic_that_never_was_is_not_started_on(
    open_manager: Open, tmp_path: Path
) -> None:
    """The cluster's metadata must have lost records. A start would delete the logs of topics that
    it no longer knows."""
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG), 3)
    manager.shutdown()
    with pytest.raises(CorruptMetadataError, match="a-0"):
        open_manager("one", catalog=Catalog({}))
    assert (tmp_path / "one" / "a-0").exists()
    assert (tmp_path / "one" / ".kafka_cleanshutdown").exists()


def test_deleted_log_goes_from_disk_after_the_delay(
    open_manager: Open, tmp_path: Path, clock: SimClock
) -> None:
    manager = open_manager("one")
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    append(log)
    clock.advance(3)
    manager.delete_log(A)
    manager.delete_log(A)
    assert manager.log(A) is None
    with pytest.raises(NotLeaderOrFollowerError):
        append(log)
    (retired,) = [path for path in (tmp_path / "one").iterdir() if path.is_dir()]
    assert retired.name.startswith("a-0.")
    assert retired.name.endswith("-delete")
    fresh = manager.create_log(A, uuid.UUID(int=8), CONFIG)
    assert fresh.log_end_offset == 0
    clock.advance(49)
    manager.delete_marked_files()
    assert retired.exists()
    clock.advance(1)
    manager.delete_marked_files()
    assert not retired.exists()
    assert fresh.directory.exists()


def test_deletion_takes_a_failing_directory_offline_and_goes_on(
    open_manager: Open, tmp_path: Path
) -> None:
    """An error would end the work on the cluster's metadata."""
    fs = FaultyFileSystem()
    manager = open_manager(fs=fs)
    first, second = manager.log_dirs()
    for place in (A, B):
        manager.create_log(place, TOPIC_ID, CONFIG, log_dir=first)
    # The first deletion reads the cleaner's checkpoint, the second one does not.
    manager.delete_log(B)
    fs.fail(first.path)
    manager.delete_log(A)
    assert manager.log(A) is None
    assert manager.offline_log_dirs() == (first,)
    assert manager.create_log(A, uuid.UUID(int=8), CONFIG).log_dir is second
    assert (first.path / "a-0").exists()
    fs.heal()


def test_deletion_cut_off_by_a_stop_is_finished_after_the_start(
    open_manager: Open, tmp_path: Path, clock: SimClock
) -> None:
    manager = open_manager("one")
    manager.create_log(A, TOPIC_ID, CONFIG)
    manager.delete_log(A)
    manager.shutdown()
    manager = open_manager("one")
    assert manager.logs() == ()
    clock.advance(50)
    manager.delete_marked_files()
    assert [path for path in (tmp_path / "one").iterdir() if path.is_dir()] == []


def test_retention_tick_tells_what_it_deleted(open_manager: Open, clock: SimClock) -> None:
    manager = open_manager("one")
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    manager.create_log(B, TOPIC_ID, CONFIG)
    append(log, 12)
    assert manager.delete_expired_segments() == {}
    log.update_config(TopicConfig(retention_bytes=0, retention_ms=-1))
    deleted = manager.delete_expired_segments()
    assert [segment.base_offset for segment in deleted[A]] == [0, 5, 10]
    assert set(deleted) == {A}


def test_metadata_log_is_opened_before_the_others_and_closed_with_them(tmp_path: Path) -> None:
    dirs = (tmp_path / "one",)

    def manager() -> LogManager:
        return LogManager(
            dirs,
            config=BrokerConfig(log_dirs=dirs),
            topic_config_for=lambda topic: CONFIG,
            clock=SimClock(T0),
            fs=OsFileSystem(),
            rng=random.Random(0),
        )

    for count in range(3):
        current = manager()
        log = current.open_metadata_log(CONFIG, TOPIC_ID)
        assert (log.log_end_offset, log.topic_id) == (count, TOPIC_ID)
        append(log)
        current.startup()
        assert current.logs() == (log,)
        current.shutdown()


def test_recovery_with_several_threads_loads_every_log(open_manager: Open) -> None:
    manager = open_manager("one")
    partitions = [TopicPartition("many", index) for index in range(20)]
    for partition in partitions:
        append(manager.create_log(partition, TOPIC_ID, CONFIG), partition.partition)
    crash(manager)
    manager = open_manager("one")
    ends = {log.topic_partition: log.log_end_offset for log in manager.logs()}
    assert ends == {partition: partition.partition for partition in partitions}
    log = manager.log(partitions[-1])
    assert log is not None
    headers = [header for _, header in iterate_batches(log.read(15, 10**6).records)]
    assert [header.base_offset for header in headers] == [15, 16, 17, 18]


def test_log_of_a_topic_that_was_deleted_is_deleted(
    open_manager: Open, tmp_path: Path, clock: SimClock
) -> None:
    first = open_manager("one")
    for partition, topic_id in ((A, TOPIC_ID), (B, uuid.UUID(int=8))):
        first.create_log(partition, topic_id, CONFIG)
    first.shutdown()
    catalog = Catalog({A: TOPIC_ID}, frozenset({uuid.UUID(int=8)}))
    second = open_manager("one", catalog=catalog)
    assert [log.topic_partition for log in second.logs()] == [A]
    assert not (tmp_path / "one" / "b-0").exists()
    assert list((tmp_path / "one").glob("b-0.*-delete"))
    clock.advance(60_000)
    second.delete_marked_files()
    assert not list((tmp_path / "one").glob("b-0*"))


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
def test_log_of_the_topic_there_is_now_is_found_beside_that_of_an_earlier_one(
    open_manager: Open, tmp_path: Path, names: tuple[str, str]
) -> None:
    """The earlier directory was offline when the topic was deleted and created again."""
    for name, topic_id in (("one", uuid.UUID(int=1)), ("two", TOPIC_ID)):
        manager = open_manager(name)
        log = manager.create_log(A, topic_id, CONFIG)
        append(log)
        manager.shutdown()
    catalog = Catalog({A: TOPIC_ID}, frozenset({uuid.UUID(int=1)}))
    manager = open_manager(*names, catalog=catalog)
    found = manager.log(A)
    assert found is not None
    assert found.directory == tmp_path / "two" / "a-0"
    assert found.log_end_offset == 1
    assert list((tmp_path / "one").glob("a-0.*-delete"))


def test_directory_marked_for_deletion_goes_though_its_partition_is_there_again(
    open_manager: Open, tmp_path: Path, clock: SimClock
) -> None:
    first = open_manager("one", "two")
    first.create_log(A, TOPIC_ID, CONFIG)
    first.delete_log(A)
    first.create_log(A, TOPIC_ID, CONFIG)
    first.shutdown()
    second = open_manager("one", "two")
    clock.advance(60_000)
    second.delete_marked_files()
    left = [path.name for path in tmp_path.glob("*/a-0*")]
    assert left == ["a-0"]


def test_clean_stop_of_every_directory_tells_the_broker_epoch(open_manager: Open) -> None:
    first = open_manager()
    assert first.previous_broker_epoch() == -1
    first.broker_epoch = 55
    first.shutdown()
    assert open_manager("one", "two", "new").previous_broker_epoch() == -1


def test_broker_epoch_is_known_until_a_crash(open_manager: Open) -> None:
    first = open_manager()
    first.broker_epoch = 55
    first.shutdown()
    second = open_manager()
    assert second.previous_broker_epoch() == 55
    second.broker_epoch = 66
    crash(second)
    assert open_manager().previous_broker_epoch() == -1


def test_directories_that_stopped_at_different_times_tell_no_broker_epoch(
    open_manager: Open,
) -> None:
    for epoch, names in ((55, ("one", "two")), (66, ("one",))):
        manager = open_manager(*names)
        manager.broker_epoch = epoch
        manager.shutdown()
    assert open_manager().previous_broker_epoch() == -1


def test_metadata_log_is_opened_in_its_directory(tmp_path: Path, clock: SimClock) -> None:
    dirs = (tmp_path / "one", tmp_path / "two")
    manager = LogManager(
        dirs,
        config=BrokerConfig(
            process_roles=("broker",),
            node_id=5,
            controller_quorum_bootstrap_servers=("localhost:9093",),
            controller_listener_names=("CONTROLLER",),
            log_dirs=dirs,
            quorum=QuorumConfig(metadata_log_dir=str(dirs[1])),
        ),
        topic_config_for=lambda topic: CONFIG,
        clock=clock,
        fs=OsFileSystem(),
        rng=random.Random(0),
    )
    try:
        log = manager.open_metadata_log(CONFIG, TOPIC_ID)
        assert log.directory == dirs[1] / "__cluster_metadata-0"
        assert manager.metadata_log_dir.path == dirs[1]
    finally:
        manager.shutdown()


def test_stop_syncs_each_file_of_a_log_once(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager("one")
    append(manager.create_log(A, TOPIC_ID, CONFIG))
    manager.shutdown()
    fs = FaultyFileSystem()
    manager = open_manager("one", fs=fs)
    log = manager.log(A)
    assert log is not None
    append(log)
    manager.shutdown()
    counts = {
        at.name: n
        for at, n in fs.sync_counts.items()
        if log.directory in (at, *at.parents) and at.exists()
    }
    # The snapshot at 1 is that of the stop before.
    assert counts == {
        "a-0": 1,
        f"{0:020d}.log": 1,
        f"{0:020d}.index": 1,
        f"{0:020d}.timeindex": 1,
        f"{2:020d}.snapshot": 1,
    }


def test_stop_after_the_first_record_of_an_epoch_syncs_each_file_of_a_log_once(
    open_manager: Open,
) -> None:
    fs = FaultyFileSystem()
    manager = open_manager("one", fs=fs)
    log = manager.create_log(A, TOPIC_ID, CONFIG)
    before = fs.sync_counts.copy()
    append(log)
    manager.shutdown()
    counts = {
        at.name: count
        for at, count in (fs.sync_counts - before).items()
        if log.directory in (at, *at.parents)
    }
    # There is no such file, so nothing is synced.
    assert counts.pop(f"{0:020d}.txnindex") == 1
    assert counts == {
        "a-0": 1,
        f"{0:020d}.log": 1,
        f"{0:020d}.index": 1,
        f"{0:020d}.timeindex": 1,
        f"{1:020d}.snapshot": 1,
        "leader-epoch-checkpoint.tmp": 1,
    }


def test_stop_closes_all_logs_though_one_fails(
    open_manager: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager("one")
    logs = [manager.create_log(TopicPartition("a", n), TOPIC_ID, CONFIG) for n in range(20)]
    close = PartitionLog.close
    closed = []

    def close_or_fail(log: PartitionLog) -> None:
        if log is logs[3]:
            raise LogDirFailedError("the disk of this log")
        close(log)
        closed.append(log)

    monkeypatch.setattr(PartitionLog, "close", close_or_fail)
    manager.shutdown()
    assert set(closed) == {*logs} - {logs[3]}
    assert "log is not closed" in caplog.text
