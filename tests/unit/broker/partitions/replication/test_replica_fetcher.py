"""A fetcher with real logs. The test's own thread makes one request after the other."""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.replica_metrics import FetcherMetrics
from isotherm.broker.partitions.replica_roles import NoFetchers, ReplicaFetchers
from isotherm.broker.partitions.replication import replica_fetcher
from isotherm.broker.partitions.replication.follower_fetch import FetchState
from isotherm.broker.partitions.replication.replica_fetcher import FetcherContext, ReplicaFetcher
from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
from isotherm.config.broker import BrokerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import NotLeaderOrFollowerError
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.fetch import FetchPartition, FetchPartitionResponse
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.faulty_fs import FaultyFileSystem
from tests.support.model_leader import ModelLeader

T0 = 1_700_000_000_000
TOPIC_ID = uuid.UUID(int=7)
A, B = (TopicIdPartition(TOPIC_ID, "topic", partition) for partition in (0, 1))
CONFIG = TopicConfig(retention_ms=-1, file_delete_delay_ms=0)
BACKOFF_MS = 1000


@dataclass
class Followed:
    """A followed partition as a fetcher needs it."""

    topic_id_partition: TopicIdPartition
    log: PartitionLog
    leader_epoch: int = 0
    noted: list[int] = field(default_factory=list)

    def note_replicated(self, size: int) -> None:
        self.noted.append(size)


class Setup:
    """Two partitions, each with a leader's log and a follower's log."""

    def __init__(self, root: Path) -> None:
        self.clock = SimClock(T0)
        self.managers = [self._manager(root / name) for name in ("leader", "follower")]
        leader, follower = self.managers
        self.leader = ModelLeader(
            {place: self._log(leader, place) for place in (A, B)}, {A: 0, B: 0}
        )
        for log in self.leader.logs.values():
            log.leader_epochs.assign(0, 0)
        self.followed = {place: Followed(place, self._log(follower, place)) for place in (A, B)}
        self.fetcher = self.new_fetcher()

    def _manager(self, path: Path) -> LogManager:
        manager = LogManager(
            (path,),
            config=BrokerConfig(log_dirs=(path,), topic_defaults=CONFIG),
            topic_config_for=lambda topic: CONFIG,
            clock=self.clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        manager.startup()
        return manager

    def _log(self, manager: LogManager, place: TopicIdPartition) -> PartitionLog:
        return manager.create_log(place.topic_partition, TOPIC_ID, CONFIG)

    def new_fetcher(self, **more: Any) -> ReplicaFetcher:
        config = ReplicationConfig(**more.pop("config", {}))
        context = FetcherContext(self.managers[1], config, 2, self.clock, **more)
        return ReplicaFetcher("fetcher", self.leader, context)

    def follow(self, *places: TopicIdPartition) -> None:
        self.fetcher.add([self.followed[place] for place in places])

    def fetch(self, times: int = 1) -> bool:
        """Make so many requests. Returns the result of the last one."""
        for _ in range(times - 1):
            self.fetcher._fetch_once()
        return self.fetcher._fetch_once()

    def append(self, place: TopicIdPartition = A, count: int = 1, *, size: int = 10) -> None:
        append(self.leader.logs[place], self.leader.epochs[place], count, size=size)

    def asked(self) -> list[FetchPartition]:
        return [
            partition for topic in self.leader.requests[-1].topics for partition in topic.partitions
        ]

    def check_equal(self, place: TopicIdPartition = A) -> None:
        leader, follower = self.leader.logs[place], self.followed[place].log
        assert stored(follower) == stored(leader)
        assert follower.log_end_offset == leader.log_end_offset
        assert follower.high_watermark == leader.high_watermark
        assert follower.log_start_offset == leader.log_start_offset


def append(log: PartitionLog, epoch: int, count: int = 1, *, size: int = 10) -> None:
    for _ in range(count):
        log.append_as_leader(build_batch([(T0, b"k", b"v" * size, ())]), epoch, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)


def stored(log: PartitionLog) -> bytes:
    return b"".join(segment.log_path.read_bytes() for segment in log.segments())


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    for manager in made.managers:
        manager.shutdown()


def test_first_request_of_an_empty_log_has_no_epoch(setup: Setup) -> None:
    setup.append(count=3)
    setup.follow(A)
    setup.fetch()
    [request] = setup.leader.requests
    assert request[:7] == (2, 500, 1, 10 * 1024 * 1024, 0, 0, 0)
    assert setup.asked() == [FetchPartition(0, 0, 1024 * 1024, 0, -1, 0)]
    setup.check_equal()
    assert setup.followed[A].noted == [len(stored(setup.leader.logs[A]))]
    setup.fetch()
    assert setup.asked() == [FetchPartition(0, 3, 1024 * 1024, 0, 0, 0)]
    assert setup.fetcher.lags() == {A.topic_partition: 0}


def test_answer_without_news_wakes_no_waiter(setup: Setup) -> None:
    setup.append()
    setup.follow(A)
    setup.fetch(3)
    assert len(setup.followed[A].noted) == 1
    setup.leader.logs[A].maybe_increment_log_start_offset(1)
    setup.fetch()
    assert setup.followed[A].noted[1:] == [0]
    setup.check_equal()


def test_high_watermark_of_a_follower_is_never_above_its_end(setup: Setup) -> None:
    setup.append(count=5)
    setup.fetcher = setup.new_fetcher(config={"replica_fetch_max_bytes": 1})
    setup.follow(A)
    setup.fetch(2)
    log = setup.followed[A].log
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    assert setup.fetcher.lags() == {A.topic_partition: 3}


def test_partition_that_got_records_is_asked_last(setup: Setup) -> None:
    setup.append(A, 3)
    setup.follow(A, B)
    setup.fetch(2)
    assert [each.partition for each in setup.asked()] == [1, 0]


def test_requests_of_idle_partitions_are_made_once(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = FetchState.request

    def counted(state: FetchState, partition: int, **more: int) -> FetchPartition:
        made.append(partition)
        return make(state, partition, **more)

    setup.append(A, 3)
    setup.follow(A, B)
    setup.fetch(4)
    # The answers of a model leader, which names each partition, keep the states as they are.
    monkeypatch.setattr(setup.fetcher, "_process", lambda key, answer: None)
    monkeypatch.setattr(FetchState, "request", counted)
    setup.fetch(5)
    assert len(made) <= 2, "the states that the last answers have left"
    made.clear()
    log = setup.followed[A].log
    log.maybe_increment_log_start_offset(2)
    setup.fetch(3)
    assert made == [A.partition]
    assert [each.log_start_offset for each in setup.asked() if each.fetch_offset == 3] == [2]


def test_nothing_is_asked_without_partitions(setup: Setup) -> None:
    assert setup.fetch() is False
    setup.follow(A)
    assert setup.fetch() is True
    setup.fetcher.remove([A.topic_partition])
    assert setup.fetch() is False


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    ],
)
def test_error_backs_one_partition_off_and_the_other_goes_on(
    setup: Setup, error: ErrorCode
) -> None:
    setup.append(A, 2)
    setup.append(B, 2)
    setup.leader.faults[0] = error
    setup.follow(A, B)
    setup.fetch(2)
    assert [each.partition for each in setup.asked()] == [1]
    setup.check_equal(B)
    setup.clock.advance(BACKOFF_MS)
    setup.fetch()
    setup.check_equal(A)
    assert setup.fetcher.failed_partitions == frozenset()


def test_older_epoch_than_the_leaders_waits_for_a_new_one(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    setup.append(A, 2)
    setup.leader.epochs[A] = 1
    setup.follow(A)
    setup.fetch()
    assert setup.fetcher.failed_partitions == {A.topic_partition}
    # INFO, as in Kafka: each change of a leader brings it.
    [record] = [each for each in caplog.records if str(A) in each.getMessage()]
    assert record.levelname == "INFO"
    assert record.getMessage().endswith(f"partition={A} leader_epoch=0: error=FENCED_LEADER_EPOCH")
    assert setup.fetcher.followed == []
    assert setup.fetch() is False
    setup.followed[A].leader_epoch = 1
    setup.follow(A)
    setup.fetch()
    setup.check_equal()
    assert setup.fetcher.failed_partitions == frozenset()


def test_disk_of_a_follower_that_is_full_ends_its_own_partitions_alone(
    setup: Setup, tmp_path: Path
) -> None:
    """Partitions in the other directory are still fetched. The failed one needs a new leader
    epoch."""
    full = tmp_path / "full"
    fs = FaultyFileSystem()
    manager = LogManager(
        (full, tmp_path / "other"),
        config=BrokerConfig(log_dirs=(full, tmp_path / "other"), topic_defaults=CONFIG),
        topic_config_for=lambda topic: CONFIG,
        clock=setup.clock,
        fs=fs,
        rng=random.Random(0),
    )
    manager.startup()
    setup.managers.append(manager)
    for place, log_dir in zip((A, B), manager.log_dirs(), strict=True):
        log = manager.create_log(place.topic_partition, TOPIC_ID, CONFIG, log_dir=log_dir)
        setup.followed[place] = Followed(place, log)
    setup.follow(A, B)
    setup.append(A)
    setup.append(B)
    setup.fetch(2)
    fs.fail(full)
    setup.append(A)
    setup.append(B)
    setup.fetch(2)
    assert setup.fetcher.followed == [setup.followed[B]]
    assert setup.fetcher.failed_partitions == {A.topic_partition}
    assert [offline_log_log_dir.path for offline_log_log_dir in manager.offline_log_dirs()] == [
        full
    ]
    assert setup.followed[A].log.high_watermark == 1
    setup.check_equal(B)


def test_fenced_answer_to_an_epoch_that_is_no_longer_followed_is_ignored(setup: Setup) -> None:
    setup.leader.epochs[A] = 1
    setup.follow(A)

    def hear_of_the_new_epoch() -> None:
        setup.followed[A].leader_epoch = 1
        setup.follow(A)

    setup.leader.before_answer = hear_of_the_new_epoch
    setup.append()
    setup.fetch(2)
    setup.check_equal()


def test_answer_to_a_removed_partition_is_not_appended(setup: Setup) -> None:
    setup.append()
    setup.follow(A)
    setup.leader.before_answer = lambda: setup.fetcher.remove([A.topic_partition])
    setup.fetch()
    assert setup.followed[A].log.log_end_offset == 0


def test_leader_that_is_away_backs_all_off(setup: Setup) -> None:
    setup.append(A)
    setup.follow(A, B)
    setup.fetch()
    setup.leader.is_away = True
    assert setup.fetch() is True
    assert setup.fetch() is False
    setup.clock.advance(BACKOFF_MS)
    setup.leader.is_away = False
    setup.append(A)
    assert setup.fetch() is True
    setup.check_equal()


def test_new_partition_ends_the_wait_of_the_fetch_under_way(setup: Setup) -> None:
    setup.append(A)
    setup.append(B)
    setup.follow(A)
    setup.leader.waits = lambda: setup.follow(B)
    assert setup.fetch() is True
    assert setup.followed[A].log.log_end_offset == 0
    setup.leader.waits = None
    # Nobody backs off, and the clock stands still.
    assert setup.fetch() is True
    assert {each.partition for each in setup.asked()} == {0, 1}
    setup.fetch()
    setup.check_equal(A)
    setup.check_equal(B)


def test_partition_that_is_followed_already_ends_no_wait(setup: Setup) -> None:
    setup.append(A)
    setup.follow(A)
    setup.leader.waits = lambda: setup.follow(A)
    assert setup.fetch() is True
    assert setup.followed[A].log.log_end_offset == 1


def test_new_partitions_end_one_wait_in_the_time_of_the_longest(setup: Setup) -> None:
    """Otherwise topics that are created one after the other would end each request."""
    setup.append(A)
    setup.follow(A)
    setup.leader.waits = lambda: setup.follow(B)
    setup.fetch()

    def follow_b_again() -> None:
        setup.fetcher.remove([B.topic_partition])
        setup.follow(B)

    setup.leader.waits = follow_b_again
    setup.clock.advance(ReplicationConfig().replica_fetch_wait_max_ms - 1)
    setup.fetch()
    assert setup.followed[A].log.log_end_offset == 1
    setup.append(A)
    setup.clock.advance(1)
    setup.fetch()
    assert setup.followed[A].log.log_end_offset == 1
    setup.leader.waits = None
    setup.fetch()
    assert setup.followed[A].log.log_end_offset == 2


def test_new_partition_among_very_many_waits_for_the_fetch_under_way(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_fetcher, "FOLLOWED_MAX_TO_END_WAIT", 1)
    setup.append(A)
    setup.follow(A)
    setup.leader.waits = lambda: setup.follow(B)
    setup.fetch()
    assert setup.followed[A].log.log_end_offset == 1


def test_leader_that_goes_away_after_an_ended_wait_is_backed_off(setup: Setup) -> None:
    setup.follow(A)
    setup.leader.waits = lambda: setup.follow(B)
    assert setup.fetch() is True
    setup.leader.is_away = True
    assert setup.fetch() is True
    assert setup.fetch() is False


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_leader_epoch,
    ],
)
def test_leader_that_has_not_heard_of_its_role_is_asked_again_soon(
    setup: Setup, error: ErrorCode
) -> None:
    setup.append(A)
    setup.append(B)
    setup.follow(A)
    setup.fetch()
    setup.follow(B)
    # The wait of the request without it ends when it is ready again, each time later.
    for backoff_ms in (50, 100, 200, 400, 500, 500):
        setup.leader.faults[1] = error
        setup.fetch()
        assert {each.partition for each in setup.asked()} == {0, 1}
        setup.fetch()
        assert {each.partition for each in setup.asked()} == {0}
        assert setup.leader.requests[-1].max_wait_ms == backoff_ms
        setup.clock.advance(min(backoff_ms, 400) if backoff_ms < 500 else BACKOFF_MS)
    setup.fetch()
    setup.check_equal(B)


def test_fetcher_without_a_ready_partition_begins_again_when_one_is(setup: Setup) -> None:
    setup.leader.faults[0] = ErrorCode.unknown_topic_id
    setup.follow(A)
    assert setup.fetcher._step() == 0
    assert setup.fetcher._step() == 0.05
    setup.clock.advance(20)
    assert setup.fetcher._step() == 0.03


def test_damaged_records_are_asked_for_again(setup: Setup) -> None:
    def damage(answer: FetchPartitionResponse) -> FetchPartitionResponse:
        records = bytearray(answer.records[0])
        records[-1] ^= 1
        return answer._replace(records=(memoryview(records),))

    setup.append(A, 2)
    setup.leader.alter = damage
    setup.follow(A)
    setup.fetch()
    assert setup.followed[A].log.log_end_offset == 0
    setup.leader.alter = lambda answer: answer
    setup.clock.advance(BACKOFF_MS)
    setup.fetch()
    setup.check_equal()


def test_log_that_is_closed_behind_an_append_is_fetched_from_its_new_end(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move to another directory closes the log, so the append succeeds and the calls after it
    fail.
    """
    log = setup.followed[A].log
    increment = log.maybe_increment_log_start_offset

    def refuse_once(offset: int) -> None:
        monkeypatch.setattr(log, "maybe_increment_log_start_offset", increment)
        raise NotLeaderOrFollowerError("log is closed")

    monkeypatch.setattr(log, "maybe_increment_log_start_offset", refuse_once)
    setup.append(count=3)
    setup.follow(A)
    setup.fetch()
    assert log.log_end_offset == 3
    assert setup.followed[A].noted == []
    setup.clock.advance(BACKOFF_MS)
    setup.append()
    setup.fetch(2)
    assert setup.fetcher.failed_partitions == frozenset()
    [asked] = setup.asked()
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (3, 0)
    setup.check_equal()
    # Readers that wait are woken for the records of the first answer too.
    assert len(setup.followed[A].noted) == 2


def test_records_at_another_offset_end_the_following(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka: UnexpectedAppendOffsetException marks the partition as failed."""
    setup.append(A, 3)
    setup.follow(A)
    setup.fetch()
    older = setup.leader.logs[A].read(0, 10**6).records
    setup.leader.alter = lambda answer: answer._replace(records=(older,))
    setup.append(A)
    setup.fetch()
    assert setup.fetcher.failed_partitions == {A.topic_partition}
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert str(A) in record.getMessage()


def test_log_without_epochs_is_truncated_to_its_high_watermark(setup: Setup) -> None:
    log = setup.followed[A].log
    append(log, 0, 4)
    log.update_high_watermark(2)
    log.leader_epochs.clear()
    setup.append(A, 3, size=20)
    setup.follow(A)
    setup.fetch()
    assert setup.asked() == [FetchPartition(0, 2, 1024 * 1024, 0, -1, 0)]
    assert log.log_end_offset == 3


def test_log_that_diverges_is_truncated_to_the_leaders_history(setup: Setup) -> None:
    """The follower led epoch 1 alone, and has records of it that no other replica has."""
    setup.append(A, 4)
    setup.follow(A)
    setup.fetch()
    log = setup.followed[A].log
    setup.fetcher.remove([A.topic_partition])
    log.leader_epochs.assign(1, 4)
    append(log, 1, 3, size=30)
    setup.leader.epochs[A] = setup.followed[A].leader_epoch = 2
    setup.leader.logs[A].leader_epochs.assign(2, 4)
    setup.append(A, 2)
    setup.follow(A)
    setup.fetch(2)
    setup.check_equal()
    assert log.leader_epochs.entries == ((0, 0), (2, 4))


def test_leader_whose_log_is_shorter_and_has_no_such_epoch(setup: Setup) -> None:
    """After an unclean election the epoch is above all of the leader's, so the fetch is out of
    range."""
    setup.append(A, 2)
    log = setup.followed[A].log
    append(log, 5, 6)
    setup.follow(A)
    setup.fetch()
    assert (log.log_end_offset, log.leader_epochs.entries) == (2, ((5, 0),))


def test_follower_far_behind_begins_at_the_leaders_start(setup: Setup) -> None:
    setup.append(A, 4)
    setup.follow(A)
    setup.fetch()
    setup.append(A, 5)
    leader = setup.leader.logs[A]
    leader.roll()
    leader.maybe_increment_log_start_offset(9)
    leader.delete_old_segments(T0)
    setup.append(A, 2)
    setup.fetch(2)
    setup.check_equal()
    assert setup.followed[A].log.log_start_offset == 9


def test_log_start_within_a_batch_begins_the_log_at_its_base(setup: Setup) -> None:
    leader = setup.leader.logs[A]
    leader.append_as_leader(build_batch([(T0, b"k", b"v", ())] * 4), 0, now_ms=T0)
    leader.update_high_watermark(4)
    leader.maybe_increment_log_start_offset(3)
    setup.append(A, 1)
    setup.follow(A)
    setup.fetch(3)
    setup.check_equal()


def test_plan_is_dropped_when_the_partition_has_another_epoch_meanwhile(setup: Setup) -> None:
    setup.append(A, 2)
    log = setup.followed[A].log
    append(log, 5, 6)
    setup.follow(A)

    def hear_of_the_new_epoch() -> None:
        if len(setup.leader.requests) == 1:
            setup.leader.before_answer = move_on

    def move_on() -> None:
        setup.followed[A].leader_epoch = 1
        setup.follow(A)

    setup.leader.before_answer = hear_of_the_new_epoch
    setup.fetch()
    assert log.log_end_offset == 6


def test_throttled_replica_is_left_out_until_it_is_in_sync(setup: Setup) -> None:
    quota = ReplicationQuota(
        setup.clock,
        is_throttled=lambda partition: partition == A.topic_partition,
        bytes_per_second=lambda: 100,
        window_ms=1000,
        window_count=11,
    )
    setup.fetcher = setup.new_fetcher(quota=quota, config={"replica_fetch_max_bytes": 600})
    setup.append(A, 40, size=100)
    setup.append(B, 40, size=100)
    setup.follow(A, B)
    while not quota.is_exceeded:
        setup.fetch()
    setup.fetch()
    assert [each.partition for each in setup.asked()] == [1]
    held = setup.followed[A].log.log_end_offset
    assert 0 < held < 40
    setup.clock.advance(60_000)
    for _ in range(200):
        setup.fetch()
        setup.clock.advance(1000)
    setup.check_equal(A)
    # An in-sync replica is fetched whatever the quota says.
    quota.record(A.topic_partition, 10**6)
    setup.append(A)
    setup.fetch(2)
    setup.check_equal(A)


def test_thread_follows_until_it_is_stopped(setup: Setup) -> None:
    has_all = threading.Event()
    followed = setup.followed[A]
    followed.note_replicated = lambda size: (  # type: ignore[method-assign]
        has_all.set() if followed.log.log_end_offset == 50 else None
    )
    setup.append(A, 50)
    setup.follow(A)
    setup.fetcher.start()
    try:
        assert has_all.wait(300)
    finally:
        setup.fetcher.stop()
    assert setup.fetcher.join(300)
    setup.check_equal()


def test_metrics_tell_the_largest_lag_and_the_partitions_given_up() -> None:
    fetchers = cast(
        "ReplicaFetchers",
        SimpleNamespace(
            lags=lambda: {A.topic_partition: 3, B.topic_partition: 7},
            failed_partitions=lambda: {TopicPartition("t", 9)},
        ),
    )
    families = {family.name: family for family in FetcherMetrics(fetchers).collect()}
    found = {
        name.removeprefix("kafka_server_replicafetchermanager_"): (sample.value, sample.labels)
        for name, family in families.items()
        for sample in family.samples
    }
    of_all = {"clientid": "Replica"}
    assert found == {"maxlag": (7, of_all), "failedpartitionscount": (1, of_all)}
    lag, _ = FetcherMetrics(NoFetchers()).collect()
    assert [sample.value for sample in lag.samples] == [0]
