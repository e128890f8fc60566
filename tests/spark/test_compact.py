"""`compact` on Spark: a copy of a bucket's topic, compared with the log cleaner's result for the
same log.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import random
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app, main
from isotherm.errors import PolicyViolationError
from isotherm.record.batch import CompressionType, build_batch, iterate_batches, read_records
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact import compact, cost_of, read_plan, settings_of
from isotherm.spark.jobs.replay import replay
from isotherm.spark.jobs.verify import verify
from isotherm.spark.metadata.remote_metadata_log import TopicMetadataLog
from isotherm.spark.option_parsing import parse_options
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, TopicIdPartition
from oracle.consumed_records import consume_all
from tests.support.bucket_inventory import read_inventory
from tests.support.cleaning_histories import CleaningHistory
from tests.support.conditions import wait_until
from tests.support.record_segments import RecordSegmentMaker
from tests.support.tiered_history import tier_closed_segments

PAGE = Path(__file__).parents[2] / "docs" / "pipeline" / "compact.md"
TIMEOUT_S = 300
TOPIC_ID = uuid.UUID(int=9)
DELETE_RETENTION_MS = 5000
NOW_MS = 1_700_100_000_000


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CleaningHistory]]:
    """Two partitions of many small segments, with transactions, tombstones and every codec."""
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
    """Batches for a comparison: compressed ones by their records, and without empty ones."""
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
    assert not list((target / "latest" / "isotherm-rewrites").rglob("*journal"))
    written = ObjectStoreRemoteStorageManager(settings.written)
    for history, report in zip(histories, reports, strict=True):
        copies = [
            segment
            for segment in inventory.segments
            if segment.topic_id_partition == report.partition
        ]
        assert len(copies) == report.segments == report.changed
        data = [bytes(written.fetch_log_segment(copy, 0)) for copy in copies]
        history.first_dirty_offset = 0
        history.clean()
        cleaned = [segment.log_path.read_bytes() for segment in history.log.log.segments()[:-1]]
        assert batches_in(b"".join(data)) == batches_in(b"".join(cleaned))
        assert 0 < report.records_after < report.records_before

    rows = (
        spark.read.format("isotherm")
        .option("failOnOffsetGaps", False)
        .load(
            target.as_uri(), **{"key.prefix": "latest/"}, subscribe="accounts", includeHeaders=True
        )
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


def test_damage_that_a_task_meets_is_reported_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --debug the traceback follows."""
    tier = ObjectStoreSettings(url=(tmp_path / "bucket").as_uri())
    maker = RecordSegmentMaker(tmp_path / "made", ObjectStoreRemoteStorageManager(tier))
    maker.tier(TopicIdPartition(TOPIC_ID, "t", 0), [build_batch([(1, b"key", b"v" * 50, ())])])
    (log,) = (tmp_path / "bucket").rglob("*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    arguments = ["compact", "--path", str(tmp_path / "bucket"), "-o", "metadata=bucket"]
    arguments += ["--to", str(tmp_path / "copy"), "--run"]
    shown_as = {}
    for name, options in {"plain": [], "debug": ["--debug"]}.items():
        shown = io.StringIO()
        monkeypatch.setattr(sys, "argv", ["isotherm", "pipeline", *options, *arguments])
        with contextlib.redirect_stderr(shown), pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 3
        shown_as[name] = shown.getvalue()
        run(["pipeline", *arguments[:-1], "--recover", "--run"])
    assert shown_as["plain"].startswith("isotherm: records cannot be read from the tier topic=t")
    assert "batch fails its crc" in shown_as["plain"]
    assert shown_as["plain"].count("\n") == 1
    assert shown_as["debug"].startswith(shown_as["plain"])
    assert "Traceback (most recent call last)" in shown_as["debug"]


def test_topic_of_a_broker_is_compacted_in_place_under_its_readers(
    spark: SparkSession,
    broker: EmbeddedBroker,
    await_manifests: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Readers see the newest record of each key before, during and after the compaction."""
    assert spark.getActiveSession() is not None
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("prices", 1, 1, config=TIERED_TOPIC)
    for future in admin.create_topics([topic]).values():
        future.result(TIMEOUT_S)
    newest = produce_prices(broker, range(6000))
    await_manifests(broker, "prices", 3)
    # This reader planned before, and goes on reading after the old objects are gone.
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "slow",
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 300,
            "fetch.message.max.bytes": 65536,
        }
    )
    reader.assign([KafkaPartition("prices", 0, 0)])
    seen = {message.key(): message.value() for message in reader.consume(10, TIMEOUT_S)}

    bucket = (broker.directory / "bucket").as_uri()
    target = tmp_path / "newest"
    plan, in_place, copy, recover = commands(broker.bootstrap_servers, bucket, target.as_uri())
    outputs = [run(plan)]
    refused = CliRunner().invoke(app, [*in_place, "--max-bytes", "1000"])
    assert "max_bytes=1000" in str(refused.exception)
    before = files(broker.directory / "bucket")
    outputs.append(run([*in_place, "--keep-old-ms", "0"]))
    await_cleared(broker, before)
    assert run(recover) == "no compaction was interrupted\n"
    outputs.append(run(copy))
    assert [headers(output) for output in outputs] == [headers(output) for output in shown()]

    while seen.keys() != newest.keys() or seen != newest:
        for message in reader.consume(1000, 0.2):
            seen[message.key()] = message.value()
    reader.close()
    assert {
        each.key: each.value for each in consume_all(broker.bootstrap_servers, "prices")
    } == newest
    rows = (
        spark.read.format("isotherm")
        .options(path=bucket, subscribe="prices", failOnOffsetGaps=False)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .load()
        .orderBy("offset")
        .collect()
    )
    assert {bytes(row.key): bytes(row.value) for row in rows} == newest
    assert len(rows) < 4000
    copied = spark.read.format("isotherm").load(
        target.as_uri(), subscribe="prices", failOnOffsetGaps=False
    )
    assert copied.count() == 50
    check_jobs_over_the_metadata(spark, broker)


def check_jobs_over_the_metadata(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """Check that the history, in which a replacement is one more event, leads to the topic's
    states.
    """
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    history = TopicMetadataLog(properties, REMOTE_LOG_METADATA_AUDIT_TOPIC)
    with replay(spark, history) as shown_as, replay(spark, TopicMetadataLog(properties)) as kept:
        assert shown_as.findings.collect() == []
        assert verify(shown_as.segments, kept.segments).collect() == []
        assert shown_as.segments.count() > 2
    # Its exit code 0 means that it found nothing.
    audit = ["pipeline", "audit", "--history", REMOTE_LOG_METADATA_AUDIT_TOPIC]
    run([*audit, "-b", broker.bootstrap_servers])


def commands(bootstrap: str, bucket: str, target: str) -> list[list[str]]:
    """The commands of the page, on this broker and its bucket."""
    blocks = re.findall(r"```sh\nisotherm (.*?)\n```", PAGE.read_text(), re.DOTALL)
    places = {
        "broker:9092": bootstrap,
        "s3://my-bucket/kafka": bucket,
        "s3://my-bucket/newest": target,
    }
    return [[places.get(word, word) for word in block.split()] for block in blocks]


def run(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, [*arguments, "--master", "local[2]"])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def shown() -> list[str]:
    """The output of the commands as the page shows it."""
    return re.findall(r"```\n( topic .*?)```", PAGE.read_text(), re.DOTALL)


def headers(output: str) -> list[str]:
    return output.splitlines()[0].split()


def produce_prices(broker: EmbeddedBroker, numbers: range) -> dict[bytes, bytes]:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    newest = {}
    for number in numbers:
        key, value = b"key-%d" % (number % 50), (b"%d-" % number).ljust(1000, b"x")
        producer.produce("prices", partition=0, key=key, value=value)
        newest[key] = value
    assert producer.flush(TIMEOUT_S) == 0
    return newest


def await_cleared(broker: EmbeddedBroker, before: dict[str, str]) -> None:
    """Wait until the old objects and the journal are gone."""
    old = {name for name in before if name.startswith("prices-")}
    wait_until(
        lambda: not any("isotherm-rewrites" in name for name in files(broker.directory / "bucket")),
        "the removal of the journal",
    )
    assert not old <= files(broker.directory / "bucket").keys()
