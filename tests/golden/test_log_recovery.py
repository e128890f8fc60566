"""Recovery rebuilds every other file from the `.log` files alone, as Kafka wrote it.

Kafka wrote these indexes batch by batch in one run of the broker. After a restart or a cleaning
(README.md) its counters differ from a rebuild's; for such partitions only reading is tested.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import LogCheckpoints, load_log
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import iterate_batches
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

WRITTEN_IN_ONE_RUN = [
    *(f"client-{codec}" for codec in ("gzip", "snappy", "lz4", "zstd")),
    *(f"broker-{codec}" for codec in ("gzip", "snappy", "lz4", "zstd")),
    "append-time",
    "idempotent",
]
INDEX_INTERVAL_BYTES = 256


def _recover(golden, topic: str, directory: Path, *suffixes: str) -> PartitionLog:
    """Load the files of these kinds, and nothing else, as after an unclean stop."""
    for path in (golden.log_dir / f"{topic}-0").iterdir():
        if path.suffix in suffixes:
            shutil.copyfile(path, directory / path.name)
    config = TopicConfig(
        index_interval_bytes=INDEX_INTERVAL_BYTES,
        retention_ms=-1,
        cleanup_policy=("compact",) if topic == "compacted" else ("delete",),
    )
    # Near the golden records' timestamps, by which producers expire.
    clock = SimClock(1_700_000_000_000)
    environment = LogEnvironment(FileCache(OsFileSystem()), clock, random.Random(0))
    return load_log(
        environment,
        PartitionDirectory(LogDir(directory.parent), directory, TopicPartition(topic, 0)),
        config,
        checkpoints=LogCheckpoints(),
    )


@pytest.mark.parametrize("name", WRITTEN_IN_ONE_RUN)
def test_recovery_rebuilds_the_offset_and_time_indexes_byte_for_byte(
    golden, name, tmp_path
) -> None:
    _recover(golden, name, tmp_path, ".log").close()
    for suffix in ("index", "timeindex"):
        for path in (golden.log_dir / f"{name}-0").glob(f"*.{suffix}"):
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_recovery_rebuilds_the_transaction_indexes_byte_for_byte(golden, tmp_path) -> None:
    _recover(golden, "transactions", tmp_path, ".log").close()
    expected = {p.name: p.read_bytes() for p in (golden.log_dir / "transactions-0").glob("*.txn*")}
    assert len(expected) >= 2
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.txnindex")} == expected


@pytest.mark.parametrize("name", ["idempotent", "transactions"])
def test_recovery_rebuilds_the_producer_snapshots(golden, name, tmp_path) -> None:
    _recover(golden, name, tmp_path, ".log").close()
    # A rebuild writes no snapshots for the oldest segments; the others have the same content.
    rebuilt = sorted(tmp_path.glob("*.snapshot"))
    assert rebuilt
    for path in rebuilt:
        expected = golden.log_dir / f"{name}-0" / path.name
        assert sorted(read_producer_snapshot(path.read_bytes())) == sorted(
            read_producer_snapshot(expected.read_bytes())
        ), path.name


@pytest.mark.parametrize("name", ["client-none", *WRITTEN_IN_ONE_RUN])
def test_recovery_rebuilds_the_leader_epochs(golden, name, tmp_path) -> None:
    log = _recover(golden, name, tmp_path, ".log")
    checkpoint = golden.log_dir / f"{name}-0" / "leader-epoch-checkpoint"
    entries = read_leader_epoch_checkpoint(checkpoint.read_bytes())
    # An epoch in which nothing was written leaves no trace in the segments.
    with_records = [entry for entry in entries if entry.start_offset < log.log_end_offset]
    log.close()
    rebuilt = read_leader_epoch_checkpoint((tmp_path / "leader-epoch-checkpoint").read_bytes())
    assert rebuilt == with_records
    assert len(rebuilt) == (2 if name == "client-none" else 1)


def test_log_that_kafka_wrote_reads_back_whole(golden, topic, tmp_path) -> None:
    source = golden.log_dir / f"{topic}-0"
    log = _recover(golden, topic, tmp_path, ".log", ".index", ".timeindex", ".txnindex")
    read = bytearray()
    offset = log.local_log_start_offset
    while offset < log.log_end_offset:
        part = log.read(
            offset, 1024, isolation=FetchIsolation.LOG_END, min_one_message=True
        ).records
        read += part
        offset = _next_offset(part)
    log.close()
    assert read == b"".join(path.read_bytes() for path in sorted(source.glob("*.log")))


def _next_offset(records: memoryview) -> int:

    return [header for _, header in iterate_batches(records)][-1].next_offset
