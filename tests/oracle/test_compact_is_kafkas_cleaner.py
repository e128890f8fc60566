"""Compaction on Spark against Kafka's own Cleaner: both keep the same batches with the same records
of a log that is cleanable as a whole, with tombstones, delete horizons, transactions and their
markers. The second of two rounds, after delete.retention.ms, drops the batches that got a horizon
in the first."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    Record,
    iterate_batches,
    read_records,
)
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact import compact, read_plan, settings_of
from isotherm.spark.option_parsing import parse_options
from isotherm.types import TopicIdPartition
from oracle.kafka_cleaner import KafkaCleaner
from tests.support.bucket_inventory import read_inventory
from tests.support.cleaning_histories import CleaningHistory
from tests.support.tiered_history import tier_closed_segments

Batch: TypeAlias = tuple[BatchHeader, list[Record]]
pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "histories"
TOPIC_ID = uuid.UUID(int=11)
PARTITIONS = 6
STEPS = 40
DELETE_RETENTION_MS = 5000
NOW_MS = 1_700_100_000_000


@given(rng=st.randoms(use_true_random=False))
@settings(
    # A random log for each partition: one example is six of them.
    max_examples=1,
    suppress_health_check=list(HealthCheck),
    # A history does not get smaller by smaller random numbers.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
def test_compaction_keeps_what_kafkas_cleaner_keeps(
    spark: SparkSession, kafka_cleaner: KafkaCleaner, rng: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "bucket"
        made = [Made(Path(folder), number, rng, source) for number in range(PARTITIONS)]
        for round_number in range(2):
            now_ms = NOW_MS + round_number * (DELETE_RETENTION_MS + 1)
            target = Path(folder) / f"round-{round_number}"
            counts = compact_to(spark, source, target, now_ms)
            dropped = 0
            for each in made:
                each.clean(kafka_cleaner, now_ms)
                data, markers = batches_in_bucket(target, each.number)
                kafkas_data, kafkas_markers = each.batches()
                assert data == kafkas_data, (round_number, each.number)
                if round_number == 0:
                    assert markers == kafkas_markers, each.number
                # A marker stays while a batch of its transaction does; compaction keeps the last
                # one of each segment, empty, which Kafka drops with its segment.
                ours, kafkas = offsets_of(markers), offsets_of(kafkas_markers)
                assert kafkas <= ours, each.number
                segments = list(target.rglob(f"{TOPIC}-*/{each.number}/*.log"))
                assert len(ours - kafkas) <= len(segments) > 0, each.number
                dropped += counts[each.number]
            assert dropped > 0
            source = target


class Made:
    """A random log of closed segments, in a bucket and as Kafka's files."""

    def __init__(self, folder: Path, number: int, rng: random.Random, bucket: Path) -> None:
        self.number = number
        self.directory = folder / "kafka" / f"{TOPIC}-{number}"
        history = CleaningHistory(
            folder / f"{TOPIC}-{number}", rng, codecs=tuple(CompressionType), map_slots=(10_000,)
        )
        for _ in range(STEPS):
            history.step()
        history.end_transactions()
        history.log.log.roll()
        self._history = history
        self._end_offset = history.log.log.segments()[-1].base_offset
        storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=bucket.as_uri()))
        owner = TopicIdPartition(TOPIC_ID, TOPIC, number)
        tier_closed_segments(storage, owner, history.log.log, itertools.count(1000 * number + 1))
        history.close()
        shutil.copytree(history.directory, self.directory)

    def clean(self, kafka_cleaner: KafkaCleaner, now_ms: int) -> None:
        config = self._history.config
        kafka_cleaner.clean(
            self.directory,
            0,
            self._end_offset,
            now_ms,
            self._history.map_slots,
            self._history.read_size,
            DELETE_RETENTION_MS,
            config.effective_segment_bytes,
            config.segment_index_bytes,
            config.index_interval_bytes,
        )

    def batches(self) -> tuple[list[Batch], list[Batch]]:
        logs = sorted(self.directory.glob("*.log"))
        return batches_in(b"".join(path.read_bytes() for path in logs))


def compact_to(spark: SparkSession, source: Path, target: Path, now_ms: int) -> dict[int, int]:
    """Compact the topic; return the number of dropped records by partition."""
    options = parse_options({"path": source.as_uri(), "subscribe": TOPIC})
    chosen = settings_of(
        options,
        now_ms=now_ms,
        delete_retention_ms=DELETE_RETENTION_MS,
        to_url=target.as_uri(),
    )
    reports = compact(spark, read_plan(options, chosen), chosen)
    assert all(report.uncleanable == 0 for report in reports)
    return {
        report.partition.partition: report.records_before - report.records_after
        for report in reports
    }


def batches_in_bucket(bucket: Path, number: int) -> tuple[list[Batch], list[Batch]]:
    chosen = ObjectStoreSettings(url=bucket.as_uri())
    storage = ObjectStoreRemoteStorageManager(chosen)
    inventory = read_inventory(open_for_reading(chosen), chosen.create_layout())
    mine = [each for each in inventory.segments if each.topic_id_partition.partition == number]
    mine.sort(key=lambda segment: segment.start_offset)
    return batches_in(b"".join(bytes(storage.fetch_log_segment(each, 0)) for each in mine))


def batches_in(data: bytes) -> tuple[list[Batch], list[Batch]]:
    """Data batches, and markers, with their records in place of their compressed bytes.

    Empty batches are left out: each side keeps some for its own reasons.
    """
    found = [
        (header._replace(length=0, crc=0), read_records(data, position, header))
        for position, header in iterate_batches(data)
        if header.records_count
    ]
    return (
        [batch for batch in found if not batch[0].is_control],
        [batch for batch in found if batch[0].is_control],
    )


def offsets_of(batches: list[Batch]) -> set[int]:
    return {header.base_offset for header, _ in batches}
