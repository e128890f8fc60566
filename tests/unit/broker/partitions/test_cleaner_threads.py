"""The cleaner's threads: when they clean, and how they stop and change in number."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.partitions.cleaner_threads import CleanerThreads
from isotherm.config.broker import BrokerConfig
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.cleaned_log import CleanedLog, CleanerStats
from isotherm.log.cleaner.log_cleaner import LogCleaner
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

T0 = 1_700_000_000_000
COMPACTED = TopicConfig(
    cleanup_policy=("compact",), internal_segment_bytes=400, min_cleanable_dirty_ratio=0.1
)
CONFIG = CleanerConfig(log_cleaner_backoff_ms=1000)


class TellingCleaner:
    """Notes the thread of each round. A round waits while `held` is not set."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.cleaned = threading.Semaphore(0)
        self.held = threading.Event()
        self.held.set()

    def clean(
        self,
        log: PartitionLog,
        to_clean: LogToClean,
        *,
        throttle: Callable[[int], None],
        check_abort: Callable[[], None],
    ) -> CleanedLog:
        self.threads.append(threading.current_thread().name)
        self.cleaned.release()
        while not self.held.wait(0.001):
            check_abort()
        return CleanedLog(to_clean.first_uncleanable_offset, CleanerStats(0.0, end_s=1.0))


@pytest.fixture
def clock() -> SimClock:
    return SimClock(T0)


@pytest.fixture
def log_manager(tmp_path: Path, clock: SimClock) -> Iterator[LogManager]:
    manager = LogManager(
        [tmp_path],
        config=BrokerConfig(log_dirs=(tmp_path,)),
        topic_config_for=lambda topic: COMPACTED,
        clock=clock,
        fs=OsFileSystem(),
        rng=random.Random(0),
    )
    manager.startup()
    yield manager
    manager.shutdown()


@pytest.fixture
def log(log_manager: LogManager) -> PartitionLog:
    return log_manager.create_log(TopicPartition("a", 0), uuid.UUID(int=1), COMPACTED)


@pytest.fixture
def telling() -> TellingCleaner:
    return TellingCleaner()


@pytest.fixture
def threads(
    log_manager: LogManager, telling: TellingCleaner, clock: SimClock
) -> Iterator[CleanerThreads]:
    cleaner = LogCleaner(
        log_manager.cleaner_manager, CONFIG, clock=clock, make_cleaner=lambda config: telling
    )
    made = CleanerThreads(cleaner, clock)
    yield made
    made.stop()


def fill(log: PartitionLog) -> None:
    for _ in range(10):
        log.append_as_leader(build_batch([(T0, b"k", b"v" * 100, ())]), 0, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)


def running() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith("isotherm-log-cleaner-")}


def test_thread_cleans_at_once_and_again_after_the_backoff(
    log: PartitionLog, threads: CleanerThreads, telling: TellingCleaner, clock: SimClock
) -> None:
    fill(log)
    threads.start()
    assert telling.cleaned.acquire(timeout=300)
    clock.await_waiters(1)
    fill(log)
    clock.advance(999)
    clock.await_waiters(1)
    assert len(telling.threads) == 1
    clock.advance(1)
    assert telling.cleaned.acquire(timeout=300)
    assert telling.threads == ["isotherm-log-cleaner-0"] * 2


def test_stop_aborts_the_round_and_ends_the_threads(
    log: PartitionLog, threads: CleanerThreads, telling: TellingCleaner, log_manager: LogManager
) -> None:
    telling.held.clear()
    fill(log)
    threads.start()
    assert telling.cleaned.acquire(timeout=300)
    threads.stop()
    assert running() == set()
    assert log_manager.cleaner_manager.cleaner_checkpoint(log) is None
    threads.stop()


def test_number_of_threads_follows_the_configuration(
    log: PartitionLog, threads: CleanerThreads, telling: TellingCleaner, log_manager: LogManager
) -> None:
    threads.start()
    telling.held.clear()
    fill(log)
    changed = BrokerConfig(cleaner=replace(CONFIG, log_cleaner_threads=2))
    threads.follow(MetadataChange(MetadataImage(), broker_config=changed))
    assert running() == {"isotherm-log-cleaner-0", "isotherm-log-cleaner-1"}
    assert telling.cleaned.acquire(timeout=300)
    telling.held.set()
    threads.follow(MetadataChange(MetadataImage(), broker_config=BrokerConfig(cleaner=CONFIG)))
    assert running() == {"isotherm-log-cleaner-0"}


def test_change_of_other_settings_leaves_a_round_alone(
    log: PartitionLog, threads: CleanerThreads, telling: TellingCleaner, log_manager: LogManager
) -> None:
    telling.held.clear()
    fill(log)
    threads.start()
    assert telling.cleaned.acquire(timeout=300)
    threads.follow(MetadataChange(MetadataImage()))
    threads.follow(
        MetadataChange(
            MetadataImage(), broker_config=BrokerConfig(cleaner=CONFIG, num_partitions=9)
        )
    )
    telling.held.set()
    threads.stop()
    assert len(telling.threads) == 1
