"""Kafka's own DumpLogSegments reads segments that a load has written, and finds no fault: those of
the writer, and those in the bucket of a load on Spark."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import isotherm.spark
from isotherm.record.compression import CompressionType
from isotherm.remote.rewriting.history_writer import HistoryRules, HistoryWriter
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, read_leader_epoch_checkpoint
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.types import TopicIdPartition
from oracle.dump_text import parse_dump
from oracle.kafka import dump_log_segments
from tests.support.bucket_inventory import read_inventory

START_MS = 1_700_000_000_000
START_OFFSET = 2**33
COUNT = 3000
TIMEOUT_S = 300
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


@pytest.mark.spark
@pytest.mark.slow
def test_kafka_finds_no_fault_in_the_bucket_of_a_load(
    spark: SparkSession,
    kafka_tools: Path,
    start_broker: Callable[..., EmbeddedBroker],
    tmp_path: Path,
) -> None:
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("flights", 2, config=TIERED_TOPIC)
    admin.create_topics([topic])["flights"].result(TIMEOUT_S)
    number = sql.col("id")
    rows = spark.range(COUNT).select(
        sql.when(number % 7 != 0, sql.concat(sql.lit("k"), number)).alias("key"),
        sql.when(number % 5 != 0, sql.concat(number, sql.repeat(sql.lit("-x"), 1000))).alias(
            "value"
        ),
        sql.timestamp_millis(START_MS + number).alias("timestamp"),
    )
    bucket = broker.directory / "bucket"
    options = {"path": str(bucket), "kafka.bootstrap.servers": broker.bootstrap_servers}
    isotherm.spark.write_history(rows, "flights", options, wait_s=TIMEOUT_S)

    settings = ObjectStoreSettings(url=bucket.as_uri())
    storage = ObjectStoreRemoteStorageManager(settings)
    inventory = read_inventory(open_for_reading(settings), settings.create_layout())
    segments = [s for s in inventory.segments if s.topic_id_partition.topic == "flights"]
    assert len(segments) >= 4
    files: list[Path] = []
    for segment in segments:
        partition = segment.topic_id_partition.partition
        log = tmp_path / "loaded" / f"flights-{partition}"
        log.mkdir(parents=True, exist_ok=True)
        start, end = segment.start_offset, segment.end_offset_inclusive + 1
        parts = {
            f"{start:020}.log": bytes(storage.fetch_log_segment(segment, 0)),
            f"{start:020}.index": storage.fetch_index(segment, IndexType.OFFSET),
            f"{start:020}.timeindex": storage.fetch_index(segment, IndexType.TIMESTAMP),
            f"{end:020}.snapshot": storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT),
        }
        for name, content in parts.items():
            (log / name).write_bytes(content)
            files.append(log / name)
    records = 0
    for log in sorted((tmp_path / "loaded").iterdir()):
        of_log = sorted(path for path in files if path.parent == log)
        dumped = parse_dump(dump_log_segments(of_log, "--deep-iteration", "--print-data-log"))
        assert {name: file.remarks for name, file in dumped.items() if file.remarks} == {}
        logs = [file for name, file in sorted(dumped.items()) if name.endswith(".log")]
        assert {batch["isvalid"] for file in logs for batch in file.batches} == {"true"}
        offsets = [int(record["offset"]) for file in logs for record in file.records]
        assert offsets == list(range(len(offsets)))
        records += len(offsets)
        indexes = [path for path in of_log if path.suffix in (".index", ".timeindex")]
        for file in parse_dump(dump_log_segments(indexes, "--verify-index-only")).values():
            assert file.remarks == []
    assert records == COUNT
