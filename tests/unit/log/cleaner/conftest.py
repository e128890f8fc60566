"""Logs to clean, as a broker has them, on a simulated clock."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

T0 = 1_700_000_000_000
COMPACTED = TopicConfig(
    cleanup_policy=("compact",),
    internal_segment_bytes=400,
    segment_index_bytes=1200,
    min_cleanable_dirty_ratio=0.1,
    retention_ms=-1,
    file_delete_delay_ms=0,
)


class Logs:
    """Log managers over the same folders, one after the other, and their logs."""

    def __init__(self, root: Path, clock: SimClock) -> None:
        self.dirs = (root / "one", root / "two")
        self.clock = clock
        self.configs: dict[str, TopicConfig] = {}
        self.manager: LogManager
        self.open()

    def open(self, fs: Any = None) -> LogManager:
        self.manager = LogManager(
            self.dirs,
            config=BrokerConfig(log_dirs=self.dirs),
            topic_config_for=lambda topic: self.configs.get(topic, COMPACTED),
            clock=self.clock,
            fs=fs or OsFileSystem(),
            rng=random.Random(0),
        )
        self.manager.startup()
        return self.manager

    def make(self, topic: str, config: TopicConfig = COMPACTED) -> PartitionLog:
        self.configs[topic] = config
        return self.manager.create_log(TopicPartition(topic, 0), uuid.uuid4(), config)

    def filled(self, topic: str, *, records: int, config: TopicConfig = COMPACTED) -> PartitionLog:
        """A log with `records` batches, each of one record of 100 bytes. About two batches fit a
        segment."""
        log = self.make(topic, config)
        self.append(log, records)
        return log

    def append(self, log: PartitionLog, records: int, key: bytes = b"k") -> None:
        now_ms = self.clock.now_ms()
        for _ in range(records):
            batch = build_batch([(now_ms, key, b"v" * 100, ())])
            log.append_as_leader(batch, 0, now_ms=now_ms)
        log.update_high_watermark(log.log_end_offset)


@pytest.fixture
def clock() -> SimClock:
    return SimClock(T0)


@pytest.fixture
def logs(tmp_path: Path, clock: SimClock) -> Iterator[Logs]:
    opened = Logs(tmp_path, clock)
    yield opened
    opened.manager.shutdown()


@pytest.fixture
def dirty_log(logs: Logs) -> Callable[..., PartitionLog]:
    return logs.filled
