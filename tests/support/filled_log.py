"""A log of twelve records in three segments, and its loads, for tests of the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches
from tests.support.local_log import open_local_log

T0 = 1_700_000_000_000
CONFIG = TopicConfig(
    internal_segment_bytes=1000, index_interval_bytes=200, segment_index_bytes=1200, retention_ms=-1
)
CLEAN = LogCheckpoints(clean_shutdown=True)
BATCH_SIZE = len(build_batch([(T0, b"k", b"v" * 100, ())]))


def fill(directory: Path, count: int = 12) -> PartitionLog:
    """A new log with a batch for each offset. Five fit into a segment. Epochs change with each
    fifth offset."""
    log = open_local_log(directory, config=CONFIG)
    for index in range(count):
        batch = build_batch([(T0 + index, b"k", b"v" * 100, ())])
        log.append_as_leader(batch, index // 5, now_ms=T0)
    return log


def reopen(directory: Path, checkpoints: LogCheckpoints | None = None) -> PartitionLog:
    return open_local_log(directory, config=CONFIG, checkpoints=checkpoints)


def offsets_in(log: PartitionLog) -> list[int]:
    offsets: list[int] = []
    for segment in log.segments():
        data = segment.log_path.read_bytes()
        offsets += [header.base_offset for _, header in iterate_batches(data)]
    return offsets


def contents(directory: Path, suffix: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob(f"*{suffix}")}


def lose_end_of_first_segment(directory: Path) -> None:
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[: 3 * BATCH_SIZE])
    for suffix in (".index", ".timeindex"):
        path.with_suffix(suffix).unlink()


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
