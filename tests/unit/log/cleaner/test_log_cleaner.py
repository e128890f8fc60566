"""The cleaner threads with scripted rounds, and Kafka's metrics of the log cleaner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isotherm.broker.partitions.cleaner_threads import publish_cleaner_metrics
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptRecordError, LogCleaningAbortedError, LogDirFailedError
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.cleaned_log import CleanedLog, CleanerStats
from isotherm.log.cleaner.log_cleaner import LogCleaner
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.registry import Metrics
from isotherm.testing.sim_clock import SimClock

LOG_CLEANER = "kafka_log_logcleaner_"
MANAGER = "kafka_log_logcleanermanager_"

Round = Callable[[PartitionLog, LogToClean, Any, Any], CleanedLog]


def clean_all(log: PartitionLog, to_clean: LogToClean, throttle: Any, abort: Any) -> CleanedLog:
    stats = CleanerStats(1.0, bytes_read=1000, bytes_written=250, buffer_utilization=0.5, end_s=8.0)
    return CleanedLog(to_clean.first_uncleanable_offset, stats)


class ScriptedCleaner:
    """Runs `do` in place of each round, and keeps the topics and first dirty offsets."""

    def __init__(self, do: Round) -> None:
        self.do = do
        self.cleaned: list[str] = []
        self.first_dirty_offsets: list[int] = []

    def clean(
        self,
        log: PartitionLog,
        to_clean: LogToClean,
        *,
        throttle: Callable[[int], None],
        check_abort: Callable[[], None],
    ) -> CleanedLog:
        self.cleaned.append(log.topic_partition.topic)
        self.first_dirty_offsets.append(to_clean.first_dirty_offset)
        return self.do(log, to_clean, throttle, check_abort)


Make = Callable[..., tuple[LogCleaner, ScriptedCleaner]]


@pytest.fixture
def make(logs: Any, clock: SimClock) -> Make:
    def make_one(do: Round = clean_all, **config: Any) -> tuple[LogCleaner, ScriptedCleaner]:
        scripted = ScriptedCleaner(do)
        settings = CleanerConfig(**config)
        manager = logs.manager.cleaner_manager
        return LogCleaner(manager, settings, clock=clock, make_cleaner=lambda _: scripted), scripted

    return make_one


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def failing_with(error: Exception) -> Round:
    def fail(*_: Any) -> CleanedLog:
        raise error

    return fail


def test_run_cleans_every_log_that_is_due_and_then_returns(logs: Any, make: Make) -> None:
    made = [logs.filled(topic, records=10) for topic in "abc"]
    cleaner, scripted = make()
    cleaner.workers[0].run()
    assert sorted(scripted.cleaned) == ["a", "b", "c"]
    manager = logs.manager.cleaner_manager
    assert {manager.cleaner_checkpoint(log) for log in made} == {8}


def test_run_with_nothing_due_makes_no_cleaner(logs: Any, clock: SimClock) -> None:
    cleaner = LogCleaner(
        logs.manager.cleaner_manager,
        CleanerConfig(),
        clock=clock,
        make_cleaner=lambda _: pytest.fail("its buffers are large"),
    )
    cleaner.workers[0].run()


def test_run_deletes_by_retention_what_compact_delete_lets_go(
    logs: Any, clock: SimClock, make: Make, dirty_log: Any
) -> None:
    config = TopicConfig(
        cleanup_policy=("compact", "delete"), internal_segment_bytes=400, retention_ms=1000
    )
    old = logs.filled("a", records=10, config=config)
    clock.advance(2000)
    make()[0].workers[0].run()
    assert old.log_start_offset == 10


def test_run_deletes_below_the_log_start_of_a_log_that_is_only_compacted(
    logs: Any, make: Make
) -> None:
    log = logs.filled("a", records=10)
    log.maybe_increment_log_start_offset(5)
    make()[0].workers[0].run()
    assert log.segments()[0].base_offset == 4


def test_round_without_a_dirty_record_never_takes_the_checkpoint_back(
    logs: Any, make: Make
) -> None:
    """Cleaner.clean returns end offset 0 then, as Kafka's does."""
    log = logs.filled("a", records=10)
    manager = logs.manager.cleaner_manager
    with manager._lock:
        manager._save_checkpoint(log, 4)
    cleaner, scripted = make(_once(lambda *_: CleanedLog(0, CleanerStats(0.0))))
    cleaner.workers[0].run()
    assert scripted.first_dirty_offsets == [4, 4]
    assert manager.cleaner_checkpoint(log) == 8


def _once(do: Round) -> Round:
    """`do` as the first round, then rounds that clean everything."""
    rounds = iter([do])
    return lambda *args: next(rounds, clean_all)(*args)


def test_damaged_log_is_uncleanable_and_the_others_go_on(
    logs: Any, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, sound = logs.filled("damaged", records=20), logs.filled("sound", records=10)
    cleaner, scripted = make(_for("damaged", failing_with(CorruptRecordError("bad batch"))))
    cleaner.workers[0].run()
    cleaner.workers[0].run()
    assert sorted(scripted.cleaned) == ["damaged", "sound"]
    manager = logs.manager.cleaner_manager
    assert manager.uncleanable_logs(damaged.log_dir) == [damaged]
    assert manager.cleaner_checkpoint(sound) == 8
    assert "uncleanable from now on action=clean" in caplog.text
    assert not cleaner.workers[0].has_failed


def _for(topic: str, do: Round) -> Round:
    return lambda log, *args: (do if log.topic_partition.topic == topic else clean_all)(log, *args)


@pytest.mark.parametrize(
    "error", [LogCleaningAbortedError("aborted"), LogDirFailedError("disk")], ids=["abort", "disk"]
)
def test_round_that_is_cut_off_does_not_make_the_log_uncleanable(
    logs: Any, make: Make, error: Exception
) -> None:
    log = logs.filled("a", records=10)
    cleaner, scripted = make(_once(failing_with(error)))
    cleaner.workers[0].run()
    assert scripted.cleaned == ["a", "a"]
    assert logs.manager.cleaner_manager.cleaner_checkpoint(log) == 8


def test_throttle_waits_for_the_bytes_of_a_round(logs: Any, make: Make, clock: SimClock) -> None:
    logs.filled("a", records=10)

    def transfer(log: Any, to_clean: Any, throttle: Any, abort: Any) -> CleanedLog:
        throttle(1500)
        throttle(500)
        return clean_all(log, to_clean, throttle, abort)

    cleaner, _ = make(transfer, log_cleaner_io_max_bytes_per_second=1000)
    run = threading.Thread(target=cleaner.workers[0].run, daemon=True)
    run.start()
    clock.await_waiters(1)
    clock.advance(1499)
    assert run.is_alive()
    clock.advance(1)
    clock.await_waiters(1, within_s=0.5)
    clock.advance(500)
    run.join(300)
    assert not run.is_alive()


def test_abort_ends_a_wait_for_the_throttle(logs: Any, make: Make, clock: SimClock) -> None:
    log = logs.filled("a", records=10)
    ended: list[str] = []

    def transfer(*args: Any) -> CleanedLog:
        with pytest.raises(LogCleaningAbortedError):
            args[2](10**9)
        ended.append("aborted")
        raise LogCleaningAbortedError("as the core passes it on")

    cleaner, _ = make(_once(transfer), log_cleaner_io_max_bytes_per_second=1)
    run = threading.Thread(target=cleaner.workers[0].run, daemon=True)
    run.start()
    clock.await_waiters(1)
    logs.manager.cleaner_manager.abort(log.topic_partition)
    run.join(300)
    assert ended == ["aborted"]


@pytest.mark.parametrize("keyless", [0, 2])
def test_records_without_a_key_are_reported(
    logs: Any, make: Make, caplog: pytest.LogCaptureFixture, keyless: int
) -> None:
    stats = CleanerStats(0.0, invalid_messages_read=keyless)
    logs.filled("a", records=10)
    make(_once(lambda *_: CleanedLog(8, stats)))[0].workers[0].run()
    expected = "records without a key were dropped partition=a-0 count=2"
    assert (expected in caplog.text) is bool(keyless)
    assert ("without a key" in caplog.text) is bool(keyless)


# Metrics


def test_metrics_of_rounds_are_those_of_the_last_one(
    logs: Any, make: Make, metrics: Metrics, clock: SimClock
) -> None:
    cleaner, _ = make()
    publish_cleaner_metrics(metrics, cleaner, logs.manager.log_dirs(), clock)
    names = ["max_buffer_utilization_percent", "cleaner_recopy_percent", "max_clean_time_secs"]
    assert [metrics.value(LOG_CLEANER + name) for name in names] == [0, 0, 0]
    logs.filled("a", records=10)
    cleaner.workers[0].run()
    assert [metrics.value(LOG_CLEANER + name) for name in names] == [50, 25, 7]


def test_metrics_of_the_last_look_tell_ratio_delay_and_time(
    logs: Any, make: Make, metrics: Metrics, clock: SimClock
) -> None:
    cleaner, _ = make()
    publish_cleaner_metrics(metrics, cleaner, logs.manager.log_dirs(), clock)
    config = TopicConfig(
        cleanup_policy=("compact",), internal_segment_bytes=400, max_compaction_lag_ms=1000
    )
    logs.filled("a", records=10, config=config)
    clock.advance(3500)
    assert metrics.value(MANAGER + "time_since_last_run_ms") == 3500
    cleaning = logs.manager.cleaner_manager.begin_filthiest()
    assert metrics.value(MANAGER + "time_since_last_run_ms") == 0
    assert metrics.value(MANAGER + "max_dirty_percent") == 100
    assert metrics.value(LOG_CLEANER + "max_compaction_delay_secs") == 2.5
    logs.manager.cleaner_manager.done_cleaning(cleaning, 8)
    cleaner.workers[0].run()
    assert metrics.value(MANAGER + "max_dirty_percent") == 0
    assert metrics.value(LOG_CLEANER + "max_compaction_delay_secs") == 0


def test_metrics_count_uncleanable_logs_by_directory(
    logs: Any, make: Make, metrics: Metrics, clock: SimClock
) -> None:
    cleaner, _ = make(failing_with(CorruptRecordError("bad batch")))
    publish_cleaner_metrics(metrics, cleaner, logs.manager.log_dirs(), clock)
    log = logs.filled("a", records=10)
    directory, other = str(logs.dirs[0]), str(logs.dirs[1])
    assert str(log.log_dir.path) == directory
    assert metrics.value(MANAGER + "uncleanable_partitions_count", logDirectory=directory) == 0
    cleaner.workers[0].run()
    assert metrics.value(MANAGER + "uncleanable_partitions_count", logDirectory=directory) == 1
    size = sum(segment.size_in_bytes for segment in log.segments()[:-1])
    assert metrics.value(MANAGER + "uncleanable_bytes", logDirectory=directory) == size
    assert metrics.value(MANAGER + "uncleanable_partitions_count", logDirectory=other) == 0
    assert metrics.value(MANAGER + "uncleanable_bytes", logDirectory=other) == 0


def test_metrics_count_a_thread_whose_last_run_failed(
    logs: Any, metrics: Metrics, clock: SimClock
) -> None:
    outcomes = iter([MemoryError("no room for the offset map"), ScriptedCleaner(clean_all)])

    def make_cleaner(config: CleanerConfig) -> ScriptedCleaner:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    log = logs.filled("a", records=10)
    manager = logs.manager.cleaner_manager
    cleaner = LogCleaner(manager, CleanerConfig(), clock=clock, make_cleaner=make_cleaner)
    publish_cleaner_metrics(metrics, cleaner, logs.manager.log_dirs(), clock)
    with pytest.raises(MemoryError):
        cleaner.workers[0].run()
    assert metrics.value(LOG_CLEANER + "deadthreadcount") == 1
    assert manager.uncleanable_logs(log.log_dir) == []
    cleaner.workers[0].run()
    assert metrics.value(LOG_CLEANER + "deadthreadcount") == 0
    assert manager.cleaner_checkpoint(log) == 8


def test_reconfigured_cleaner_has_as_many_workers_as_threads(make: Make) -> None:
    cleaner, _ = make()
    assert len(cleaner.workers) == 1
    cleaner.reconfigure(replace(CleanerConfig(), log_cleaner_threads=3))
    assert len(cleaner.workers) == 3
