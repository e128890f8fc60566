"""Which logs are cleaned, and what of them: Kafka's LogCleanerManager on the same directory."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.definition import LONG_MAX
from isotherm.config.topic import TopicConfig
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from oracle.kafka import run_tool

CHOOSE_LOGS = Path(__file__).with_name("ChooseLogs.java")
NOW = 1_700_000_000_000
HOUR = 3_600_000
LOG_COUNT = 60
COMPACTED = TopicConfig(
    cleanup_policy=("compact",), internal_segment_bytes=2**20, segment_ms=2**62, retention_ms=-1
)


@pytest.mark.parametrize("seed", range(3))
def test_logs_are_chosen_as_kafka_does(tmp_path: Path, kafka_tools: Path, seed: int) -> None:
    rng = random.Random(seed)
    log_dir = tmp_path / "log"
    manager = opened(log_dir, configs := {})
    for number in range(LOG_COUNT):
        log = make_log(manager, f"topic-{number}", rng)
        configs[log.topic_partition.topic] = log.config
        if rng.random() < 0.7:
            set_checkpoint(manager, log, rng.randrange(-2, log.log_end_offset + 3))
    starts = {log.topic_partition.topic: log.log_start_offset for log in manager.logs()}
    manager.shutdown()
    theirs = kafkas_choice(log_dir, configs, starts)
    manager = opened(log_dir, configs)
    ours = list(choices(manager))
    manager.shutdown()
    assert len(theirs) > LOG_COUNT / 4
    assert sorted(ours) == sorted(theirs)
    assert [ratio(line) for line in ours] == [ratio(line) for line in theirs]


def opened(log_dir: Path, configs: dict[str, TopicConfig]) -> LogManager:
    manager = LogManager(
        [log_dir],
        config=BrokerConfig(log_dirs=(log_dir,)),
        topic_config_for=lambda topic: configs[topic],
        clock=SimClock(NOW),
        fs=OsFileSystem(),
        rng=random.Random(0),
    )
    manager.startup()
    return manager


def make_log(manager: LogManager, topic: str, rng: random.Random) -> PartitionLog:
    config = replace(
        COMPACTED,
        min_cleanable_dirty_ratio=rng.choice([0.0, 0.3, 0.5, 0.9, 1.0]),
        min_compaction_lag_ms=rng.choice([0, 0, HOUR, 3 * HOUR]),
        max_compaction_lag_ms=rng.choice([LONG_MAX, 3 * HOUR, 9 * HOUR]),
    )
    log = manager.create_log(TopicPartition(topic, 0), uuid.UUID(int=rng.getrandbits(128)), config)
    transaction_at = rng.choice([None, None, rng.randrange(6)])
    for segment in range(rng.randrange(6)):
        for batch in range(rng.randrange(1, 4)):
            timestamp = NOW - rng.randrange(12) * HOUR
            records = [(timestamp, b"k", b"v" * rng.randrange(90), ())] * rng.randrange(1, 4)
            in_transaction = (segment, batch) == (transaction_at, 0)
            producer = {
                "producer_id": 7,
                "producer_epoch": 0,
                "base_sequence": 0,
                "is_transactional": True,
            }
            encoded = build_batch(records, **(producer if in_transaction else {}))
            log.append_as_leader(encoded, 0, now_ms=NOW)
        log.update_high_watermark(log.log_end_offset)
        if rng.random() < 0.9:
            log.roll()
    if rng.random() < 0.3:
        log.maybe_increment_log_start_offset(rng.randrange(log.log_end_offset + 1))
    return log


def set_checkpoint(manager: LogManager, log: PartitionLog, offset: int) -> None:
    with manager.cleaner_manager._lock:
        manager.cleaner_manager._save_checkpoint(log, offset)


def choices(manager: LogManager) -> Iterator[str]:
    for log in manager.logs():
        log.update_high_watermark(log.log_end_offset)
    while (chosen := manager.cleaner_manager.begin_filthiest()) is not None:
        part = chosen.to_clean
        yield (
            f"{chosen.log.topic_partition.topic} {part.first_dirty_offset}"
            f" {part.first_uncleanable_offset} {part.clean_size} {part.cleanable_size}"
        )


def kafkas_choice(
    log_dir: Path, configs: dict[str, TopicConfig], starts: dict[str, int]
) -> list[str]:
    lines = [
        f"{topic} {starts[topic]} {config.min_cleanable_dirty_ratio}"
        f" {config.min_compaction_lag_ms} {config.max_compaction_lag_ms}\n"
        for topic, config in configs.items()
    ]
    output = run_tool(str(CHOOSE_LOGS), str(log_dir), str(NOW), stdin="".join(lines))
    return [line for line in output.splitlines() if line.startswith("topic-")]


def ratio(line: str) -> float:
    *_, clean, cleanable = line.split()
    return int(cleanable) / (int(clean) + int(cleanable))
