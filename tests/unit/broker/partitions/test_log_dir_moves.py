"""Replicas that move between the log directories of a broker while clients use them."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import LogDirFailedError, NotLeaderOrFollowerError
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_copy import LogCopy
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.record.batch import build_batch
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.conditions import wait_until
from tests.support.led_topic import BROKER_ID, NobodyWaits, delete_topic, lead_topic

TOPIC_ID = uuid.UUID(int=7)
PLACE = TopicPartition("t", 0)
CONFIG = TopicConfig(internal_segment_bytes=4000, retention_ms=-1)
T0 = 1_700_000_000_000
# Ends a test that hangs. No assertion depends on it.
WAIT_S = 300.0


class Topic:
    partitions = (None,)


class CountingClock(SystemClock):
    """Counts how often a thread waited for work."""

    waits = 0

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits += 1
        return super().wait(event, timeout_s)


class _View(ClusterView):
    def __init__(self, broker: Broker) -> None:
        super().__init__(BROKER_ID, broker.clock)
        self._broker = broker

    def is_recorded(self, place: TopicIdPartition, log_dir: LogDir) -> bool:
        return self._broker.is_recorded

    def find_topic(self, topic: str | uuid.UUID) -> Any:
        return self._broker.topics.get(topic)

    def note_directory(self, place: TopicIdPartition, log_dir: LogDir) -> None:
        self._broker.noted.append((place, log_dir))


class Broker:
    """A leader of t-0 with two log directories, and its control thread."""

    def __init__(self, root: Path, *, partitions: int = 1, threads: int | None = None) -> None:
        dirs = (root / "one", root / "two")
        self.clock = CountingClock()
        self.config = BrokerConfig(log_dirs=dirs, num_replica_alter_log_dirs_threads=threads)
        self.control = ThreadPoolExecutor(1)
        self.noted: list[tuple[TopicIdPartition, LogDir]] = []
        self.is_recorded = True
        self.topics: dict[str | uuid.UUID, Topic] = {}
        self.bytes_per_second = 2**62
        self.quota_reads = 0
        self.log_manager = LogManager(
            dirs,
            config=self.config,
            topic_config_for=lambda topic: CONFIG,
            clock=self.clock,
            fs=OsFileSystem(),
            rng=random.Random(),
        )
        self.log_manager.startup()
        self.replicas = ReplicaManager(self.log_manager, cast("Any", NobodyWaits()), _View(self))
        lead_topic(self.replicas, "t", TOPIC_ID, dict.fromkeys(range(partitions), 0), CONFIG)
        self.noted.clear()
        self.one, self.two = self.log_manager.log_dirs()
        quota = ReplicationQuota(
            self.clock,
            is_throttled=lambda _: True,
            bytes_per_second=self._read_quota,
            window_ms=1000,
            window_count=11,
        )
        self.before_control: Callable[[], None] = lambda: None
        self.left_to_control: list[Future[None]] = []
        self.moves = self.replicas.start_moves(
            self._submit,
            quota,
            self.clock,
            thread_count=self.config.alter_log_dirs_threads,
        )

    @property
    def partition(self) -> Any:
        return self.replicas.find_partition("t", None, 0)

    def _submit(self, act: Callable[[], None]) -> Future[None]:
        """Run an act of a copying thread on the control thread."""
        self.before_control()
        self.left_to_control.append(self.control.submit(act))
        return self.left_to_control[-1]

    def _read_quota(self) -> int:
        self.quota_reads += 1
        return self.bytes_per_second

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            batch = build_batch([(T0, b"k", b"v" * 100, ())])
            self.partition.append(batch, required_acks=-1, now_ms=T0)

    def on_control(self, act: Callable[[], None]) -> None:
        self.control.submit(act).result(WAIT_S)

    def move(self, log_dir: LogDir) -> None:
        self.on_control(lambda: self.replicas.move_replica(PLACE, log_dir))

    def await_dir(self, log_dir: LogDir) -> None:
        wait_until(lambda: self.partition.log.log_dir is log_dir)

    def close(self) -> None:
        self.moves.stop()
        assert not any(thread.is_alive() for thread in self.moves._threads)
        self.control.shutdown()
        self.log_manager.shutdown()
        assert [error for future in self.left_to_control if (error := future.exception())] == []


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.close()


def test_replica_moves_while_it_is_appended_to(broker: Broker) -> None:
    broker.append(100)
    is_over = threading.Event()

    def produce() -> None:
        # The pause lets a copy of many small segments catch up on a busy machine.
        while not is_over.wait(0.001):
            broker.append()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for target in (broker.two, broker.one, broker.two):
            broker.move(target)
            broker.await_dir(target)
    finally:
        is_over.set()
        producer.join()
    log = broker.partition.log
    assert broker.replicas.future_replicas() == []
    assert broker.log_manager.log(PLACE) is log
    assert log.high_watermark == log.log_end_offset
    offsets = [
        header.base_offset for segment in log.segments() for _, header in segment.read_headers(0)
    ]
    assert offsets == list(range(log.log_end_offset))


def test_replica_moves_when_the_controller_knows_the_directory(broker: Broker) -> None:
    broker.append(100)
    broker.is_recorded = False
    broker.move(broker.two)
    wait_until(lambda: bool(broker.noted))
    assert [log_dir for _, log_dir in broker.noted] == [broker.two]
    wait_until(lambda: broker.replicas.future_replicas()[0].end_offset == 100)
    (copy,) = broker.replicas.future_replicas()
    assert (copy.topic_partition, copy.log_dir) == (PLACE, broker.two)
    assert (copy.end_offset, copy.size_in_bytes) == (100, broker.partition.log.size_in_bytes)
    assert broker.partition.log.log_dir is broker.one
    broker.is_recorded = True
    broker.await_dir(broker.two)


def test_move_that_is_given_up_leaves_nothing_behind(broker: Broker, tmp_path: Path) -> None:
    broker.append(100)
    broker.is_recorded = False
    broker.move(broker.two)
    wait_until(lambda: bool(broker.noted))
    broker.move(broker.one)
    assert [log_dir for _, log_dir in broker.noted] == [broker.two, broker.one]
    assert broker.replicas.future_replicas() == []
    broker.log_manager.delete_marked_files()
    assert [path for path in (tmp_path / "two").iterdir() if path.is_dir()] == []
    broker.append()


def test_deleted_topic_is_not_moved(broker: Broker, tmp_path: Path) -> None:
    broker.append(100)
    broker.is_recorded = False
    broker.move(broker.two)
    wait_until(lambda: bool(broker.noted))
    broker.on_control(lambda: delete_topic(broker.replicas, "t"))
    assert broker.replicas.future_replicas() == []
    assert all(
        path.name.endswith("-delete")
        for folder in ("one", "two")
        for path in (tmp_path / folder).iterdir()
        if path.is_dir()
    )
    # No assignment of a deleted replica is sent to the controller.
    assert [log_dir for _, log_dir in broker.noted] == [broker.two]


def test_quota_holds_a_move_back(broker: Broker) -> None:
    broker.append(100)
    broker.bytes_per_second = -1  # no rate is low enough
    broker.move(broker.two)
    wait_until(lambda: broker.quota_reads >= 3)
    wait_until(lambda: broker.clock.waits >= 3)  # it does not spin
    assert broker.partition.log.log_dir is broker.one
    assert broker.replicas.future_replicas() == []
    broker.bytes_per_second = 2**62
    broker.await_dir(broker.two)


def test_start_goes_on_with_a_move(broker: Broker, tmp_path: Path) -> None:
    broker.append(100)
    broker.is_recorded = False
    broker.move(broker.two)
    wait_until(lambda: bool(broker.noted))
    broker.close()
    again = Broker(tmp_path)
    try:
        again.await_dir(again.two)
        assert again.partition.log.log_end_offset == 100
    finally:
        again.close()


def test_failed_target_leaves_the_replica_where_it_is(broker: Broker) -> None:
    broker.append(100)
    broker.is_recorded = False
    broker.move(broker.two)
    wait_until(lambda: bool(broker.noted))
    broker.two.fail(OSError(5, "Input/output error"), "test")
    broker.append(100)
    wait_until(lambda: broker.noted[-1][1] is broker.one)
    assert broker.replicas.future_replicas() == []
    broker.append()
    with pytest.raises(LogDirFailedError):
        broker.move(broker.two)


def test_new_replica_begins_in_the_directory_that_was_asked_for(broker: Broker) -> None:
    """Kafka's reassignment names directories before the replicas exist."""
    broker.topics = {"later": Topic()}
    with pytest.raises(NotLeaderOrFollowerError):
        broker.replicas.move_replica(TopicPartition("later", 0), broker.two)
    assert broker.replicas._wanted_log_dir(TopicPartition("later", 0)) is broker.two


def fail(log_dir: LogDir) -> None:
    log_dir.fail(OSError(5, "Input/output error"), "test")


def test_target_that_fails_as_the_copy_is_completed_leaves_the_log_where_it_is(
    broker: Broker,
) -> None:
    broker.append(100)
    broker.before_control = lambda: fail(broker.two)
    broker.move(broker.two)
    wait_until(lambda: bool(broker.noted))
    broker.on_control(lambda: None)
    assert broker.partition.log.log_dir is broker.one
    assert [log_dir for _, log_dir in broker.noted] == [broker.one]
    assert broker.replicas.future_replicas() == []
    broker.append()
    assert broker.partition.log.log_end_offset == 101


def test_log_whose_directory_fails_as_the_copy_is_completed_is_offline(broker: Broker) -> None:
    """The broker must not lead from a closed log, which would refuse records with another error."""
    broker.append(100)
    broker.before_control = lambda: fail(broker.one)
    broker.move(broker.two)

    def is_offline() -> bool:
        try:
            return broker.partition is None
        except LogDirFailedError:
            return True

    wait_until(is_offline)
    assert broker.replicas.future_replicas() == []
    assert broker.noted == []


def test_move_that_is_given_up_before_the_controller_knows_of_it_is_not_noted(
    broker: Broker,
) -> None:
    broker.bytes_per_second = -1  # no rate is low enough
    broker.move(broker.two)
    broker.move(broker.one)
    assert broker.noted == []


def test_move_that_is_given_up_while_its_thread_copies_another_log_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the thread begins to copy the first log, it has already chosen both."""
    broker = Broker(tmp_path, partitions=2, threads=1)
    places = [TopicPartition("t", index) for index in range(2)]
    logs = [broker.replicas.find_partition("t", None, index).log for index in range(2)]
    targets = [broker.one if log.log_dir is broker.two else broker.two for log in logs]
    copies, goes_on, copy_some = threading.Event(), threading.Event(), LogCopy.copy_some

    def copy_when_released(copy: LogCopy, size_max: int) -> int:
        if copy.log is logs[0]:
            copies.set()
            assert goes_on.wait(WAIT_S)
        return copy_some(copy, size_max)

    def move_both() -> None:
        for place, target in zip(places, targets, strict=True):
            broker.replicas.move_replica(place, target)

    monkeypatch.setattr(LogCopy, "copy_some", copy_when_released)
    broker.is_recorded = False
    broker.bytes_per_second = -1
    try:
        broker.on_control(move_both)
        wait_until(lambda: broker.quota_reads >= 4)
        broker.bytes_per_second = 2**62
        assert copies.wait(WAIT_S)
        broker.on_control(lambda: broker.replicas.move_replica(places[1], logs[1].log_dir))
        goes_on.set()
        # The thread has visited both logs again.
        reads = broker.quota_reads
        wait_until(lambda: broker.quota_reads >= reads + 4)
        begun = [path.name for log in broker.log_manager.log_dirs() for path in log.path.iterdir()]
        assert [each for each in begun if each.startswith("t-1.") and "future" in each] == []
    finally:
        goes_on.set()
        broker.close()


class Meeting:
    """Counts the threads that copy at the same time. Each waits until there are `expected`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, expected: int) -> None:
        self.peak = 0
        self._inside = 0
        self._expected = expected
        self._changed = threading.Condition()
        copy_some = LogCopy.copy_some

        def copy_together(copy: LogCopy, size_max: int) -> int:
            with self._changed:
                self._inside += 1
                self.peak = max(self.peak, self._inside)
                self._changed.notify_all()
                met = self._changed.wait_for(lambda: self.peak >= self._expected, WAIT_S)
            try:
                assert met, f"{self.peak} threads copy"
                return copy_some(copy, size_max)
            finally:
                with self._changed:
                    self._inside -= 1

        monkeypatch.setattr(LogCopy, "copy_some", copy_together)


@pytest.mark.parametrize(
    ("threads", "expected"), [(1, 1), (3, 3), (None, 2)], ids=["one", "three", "as-many-as-dirs"]
)
def test_as_many_logs_are_copied_at_a_time_as_there_are_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None, expected: int
) -> None:
    meeting = Meeting(monkeypatch, expected)
    broker = Broker(tmp_path, partitions=4, threads=threads)
    try:
        moved = [broker.replicas.find_partition("t", None, index) for index in range(4)]
        targets = [broker.one if each.log.log_dir is broker.two else broker.two for each in moved]
        for each in moved:
            for _ in range(50):
                batch = build_batch([(T0, b"k", b"v" * 100, ())])
                each.append(batch, required_acks=-1, now_ms=T0)

        def move_all() -> None:
            for each, target in zip(moved, targets, strict=True):
                broker.replicas.move_replica(each.topic_partition, target)

        broker.on_control(move_all)
        for each, target in zip(moved, targets, strict=True):
            wait_until(lambda each=each, target=target: each.log.log_dir is target)
            assert each.log.log_end_offset == 50
    finally:
        broker.close()
    assert meeting.peak == len(broker.moves._threads) == expected


def test_finished_copy_is_left_to_the_control_thread_once(broker: Broker) -> None:
    broker.append(100)
    is_free = threading.Event()
    broker.control.submit(is_free.wait, WAIT_S)
    broker.moves.move(broker.partition, broker.two)
    wait_until(lambda: bool(broker.left_to_control))
    rounds = broker.clock.waits
    wait_until(lambda: broker.clock.waits >= rounds + 3)
    assert len(broker.left_to_control) == 1
    is_free.set()
    broker.await_dir(broker.two)


def test_move_that_is_given_up_as_its_copy_is_finished_stays_given_up(broker: Broker) -> None:
    broker.append(100)

    def give_up() -> None:
        broker.before_control = lambda: None
        broker.control.submit(broker.replicas.move_replica, PLACE, broker.one)

    broker.before_control = give_up
    broker.move(broker.two)
    wait_until(lambda: bool(broker.left_to_control))
    broker.on_control(lambda: None)
    assert broker.partition.log.log_dir is broker.one
    assert broker.log_manager.log(PLACE) is broker.partition.log
    broker.append()


def test_move_that_fails_does_not_cancel_the_one_that_was_begun_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append(100)
    broker.is_recorded = False
    copy_some = LogCopy.copy_some

    def fail_once(copy: LogCopy, size_max: int) -> int:
        monkeypatch.setattr(LogCopy, "copy_some", copy_some)
        raise ZeroDivisionError

    def begin_again() -> None:
        broker.before_control = lambda: None
        broker.control.submit(broker.replicas.move_replica, PLACE, broker.one)
        broker.control.submit(broker.replicas.move_replica, PLACE, broker.two)

    monkeypatch.setattr(LogCopy, "copy_some", fail_once)
    broker.before_control = begin_again
    broker.move(broker.two)
    wait_until(lambda: bool(broker.left_to_control))
    broker.on_control(lambda: None)
    assert PLACE in broker.moves._moves
    broker.is_recorded = True
    broker.await_dir(broker.two)


def test_copy_that_is_finished_as_the_broker_stops_is_left_to_the_next_start(
    broker: Broker, tmp_path: Path
) -> None:
    broker.append(100)
    is_free = threading.Event()
    broker.control.submit(is_free.wait, WAIT_S)
    broker.moves.move(broker.partition, broker.two)
    wait_until(lambda: bool(broker.left_to_control))
    broker.moves.stop()
    is_free.set()
    broker.on_control(lambda: None)
    assert broker.partition.log.log_dir is broker.one
    broker.close()
    again = Broker(tmp_path)
    try:
        again.await_dir(again.two)
        assert again.partition.log.log_end_offset == 100
    finally:
        again.close()
