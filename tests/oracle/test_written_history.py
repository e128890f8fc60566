"""Kafka's own DumpLogSegments reads segments that a load has written, and finds no fault."""

from __future__ import annotations

import random
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from isotherm.record.compression import CompressionType
from isotherm.remote.rewriting.history_writer import HistoryRules, HistoryWriter
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, read_leader_epoch_checkpoint
from isotherm.types import TopicIdPartition
from oracle.dump_text import parse_dump
from oracle.kafka import dump_log_segments

START_MS = 1_700_000_000_000
START_OFFSET = 2**33
COUNT = 3000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _rows(rng: random.Random, count: int) -> pa.RecordBatch:
    numbers = range(count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([None if n % 7 == 0 else b"k%d" % n for n in numbers], pa.binary()),
            pa.array([None if n % 5 == 0 else b"v%d" % n for n in numbers], pa.binary()),
            pa.array([START_MS + rng.randrange(10_000) for _ in numbers], pa.int64()),
            pa.array([0] * count, pa.int32()),
            pa.array(
                [[{"key": f"h{n}", "value": None}] if n % 3 == 0 else None for n in numbers],
                HEADERS,
            ),
        ],
        names=["key", "value", "timestamp", "timestamp_type", "headers"],
    )


def _write(directory: Path, rows: pa.RecordBatch, codec: CompressionType) -> Path:
    """The segments' files under Kafka's names."""
    job, log = directory / "job", directory / "flights-0"
    job.mkdir()
    log.mkdir()
    rules = HistoryRules(
        now_ms=START_MS,
        segment_bytes=8_000,
        index_interval_bytes=1000,
        max_message_bytes=100_000,
        batch_size=700,
        compression=codec,
    )
    writer = HistoryWriter(
        TopicIdPartition(uuid.UUID(int=3), "flights", 0), START_OFFSET, rules, job
    )

    def take() -> None:
        segment = writer.take()
        assert segment.metadata.segment_size_in_bytes == segment.data.log_path.stat().st_size
        assert read_leader_epoch_checkpoint(segment.data.leader_epoch_checkpoint) == [
            EpochEntry(0, 0)
        ]
        start, end = segment.metadata.start_offset, segment.metadata.end_offset_inclusive + 1
        shutil.copy(segment.data.log_path, log / f"{start:020}.log")
        shutil.copy(segment.data.offset_index_path, log / f"{start:020}.index")
        shutil.copy(segment.data.time_index_path, log / f"{start:020}.timeindex")
        shutil.copy(segment.data.producer_snapshot_path, log / f"{end:020}.snapshot")
        writer.remove_files()

    for piece in range(0, COUNT, 500):
        for _ in writer.append(rows.slice(piece, 500)):
            take()
    take()
    return log


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_kafka_finds_no_fault_in_a_written_history(
    kafka_tools: Path, tmp_path: Path, codec: CompressionType
) -> None:
    rows = _rows(random.Random(1), COUNT)
    log = _write(tmp_path, rows, codec)
    files = sorted(log.iterdir())
    dumped = parse_dump(dump_log_segments(files, "--deep-iteration", "--print-data-log"))
    assert {name: file.remarks for name, file in dumped.items() if file.remarks} == {}
    logs = [file for name, file in sorted(dumped.items()) if name.endswith(".log")]
    assert len(logs) > 2
    batches = [batch for file in logs for batch in file.batches]
    assert {batch["isvalid"] for batch in batches} == {"true"}
    assert {batch["compresscodec"] for batch in batches} == {codec.name.lower()}
    assert {batch["producerId"] for batch in batches} == {"-1"}
    assert {batch["partitionLeaderEpoch"] for batch in batches} == {"0"}
    printed = [record for file in logs for record in file.records]
    assert [
        (int(r["offset"]), int(r["CreateTime"]), r.get("key"), r.get("payload"), r["headerKeys"])
        for r in printed
    ] == [
        (
            START_OFFSET + n,
            row["timestamp"],
            row["key"] and row["key"].decode(),
            row["value"] and row["value"].decode(),
            f"[h{n}]" if n % 3 == 0 else "[]",
        )
        for n, row in enumerate(rows.to_pylist())
    ]
    assert sum(len(f.entries) for n, f in dumped.items() if n.endswith(".timeindex")) > 5
    indexes = [path for path in files if path.suffix in (".index", ".timeindex")]
    for option in ("--verify-index-only", "--index-sanity-check"):
        for file in parse_dump(dump_log_segments(indexes, option)).values():
            allowed = [f"{file.name} passed sanity check."] if "sanity" in option else []
            assert file.remarks == allowed
