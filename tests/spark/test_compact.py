"""`compact` on Spark: a copy of a bucket's topic, against what the log cleaner makes of the same log."""

from __future__ import annotations

import hashlib
import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.errors import PolicyViolationError
from isotherm.record.batch import CompressionType, iterate_batches, read_records
from isotherm.remote.storage.inventory import open_for_reading, read_inventory
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact import compact, cost_of, read_plan, settings_of
from isotherm.spark.option_parsing import parse_options
from isotherm.testing.cleaning_histories import CleaningHistory
from isotherm.testing.tiered_history import tier_closed_segments
from isotherm.types import TopicIdPartition

TOPIC_ID = uuid.UUID(int=9)
DELETE_RETENTION_MS = 5000
NOW_MS = 1_700_100_000_000


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CleaningHistory]]:
    """Two partitions with transactions, tombstones and every codec, of many small segments."""
    made = []
    for partition in range(2):
        rng = random.Random(40 + partition)
        history = CleaningHistory(
            tmp_path_factory.mktemp("log") / f"accounts-{partition}",
            rng,
            codecs=tuple(CompressionType),
        )
        for step in range(160):
            history.step()
            if step % 20 == 19:
                history.log.log.roll()
        history.end_transactions()
        history.log.log.roll()
        history.log.log.update_config(
            replace(history.log.log.config, delete_retention_ms=DELETE_RETENTION_MS)
        )
        made.append(history)
    for history in made:
        history.clock.advance(NOW_MS - history.clock.now_ms())
    yield made
    for history in made:
        history.close()


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def batches_in(data: bytes) -> list[tuple[object, ...]]:
    """Compressed ones are compared by what they hold; empty ones are not compared."""
    found = []
    for position, header in iterate_batches(data):
        if header.records_count:
            batch = data[position : position + header.size_in_bytes]
            comparable = header._replace(crc=0, length=0)
            found.append((comparable, tuple(read_records(batch, 0, header))))
    return found


def test_copy_is_what_the_cleaner_leaves_and_touches_nothing_of_the_source(
    spark: SparkSession, histories: list[CleaningHistory], tmp_path: Path
) -> None:
    source, target = tmp_path / "bucket", tmp_path / "compacted"
    storage = ObjectStoreRemoteStorageManager(
        ObjectStoreSettings(url=source.as_uri(), key_prefix="kafka/")
    )
    ids = itertools.count(1)
    for partition, history in enumerate(histories):
        owner = TopicIdPartition(TOPIC_ID, "accounts", partition)
        tier_closed_segments(storage, owner, history.log.log, ids)
    before = files(source)
    options = parse_options(
        {"path": source.as_uri(), "key.prefix": "kafka/", "subscribe": "accounts"}
    )
    settings = settings_of(
        options,
        now_ms=NOW_MS,
        delete_retention_ms=DELETE_RETENTION_MS,
        to_url=target.as_uri(),
        to_storage={"key.prefix": "latest/", "compression.enabled": "true"},
    )
    plan = read_plan(options, settings)
    cost = cost_of(spark, plan, settings)
    reports = compact(spark, plan, settings)

    assert files(source) == before
    assert cost.bytes_read == 3 * plan.size_in_bytes
    client, layout = open_for_reading(settings.written), settings.written.create_layout()
    inventory = read_inventory(client, layout)
    assert not inventory.uncommitted
    assert not inventory.damaged
    assert not list((target / "latest" / "isotherm-compactions").rglob("*journal"))
    written = ObjectStoreRemoteStorageManager(settings.written)
    for history, report in zip(histories, reports, strict=True):
        copies = [
            segment
            for segment in inventory.segments
            if segment.topic_id_partition == report.partition
        ]
        assert len(copies) == report.segments == report.changed
        data = [bytes(written.fetch_log_segment(each, 0)) for each in copies]
        history.first_dirty_offset = 0
        history.clean()
        cleaned = [each.log_path.read_bytes() for each in history.log.log.segments()[:-1]]
        assert batches_in(b"".join(data)) == batches_in(b"".join(cleaned))
        assert 0 < report.records_after < report.records_before

    rows = spark.read.format("isotherm").load(
        target.as_uri(), **{"key.prefix": "latest/"}, subscribe="accounts", includeHeaders=True
    )
    assert sorted((row.partition, row.offset) for row in rows.collect()) == [
        (partition, record.offset)
        for partition, history in enumerate(histories)
        for batch in history.log.batches()
        if not batch.header.is_control
        for record in batch.records
    ]
    with pytest.raises(PolicyViolationError, match="has segments of this topic already"):
        compact(spark, plan, settings)
