"""Jobs of the pipeline on a standalone Spark cluster, over an S3 server: workers and drivers die in
the middle of their work. A topic that Kafka tiered is projected, swept and copied compacted; a
topic of Isotherm's is compacted in place."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.record.batch import iterate_batches, read_records
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.metadata.projection import read_segments
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import uuid_to_text
from oracle.consumed_records import ConsumedRecord, consume_all
from oracle.tiered_topic import TieredTopic
from oracle.topics import create_topic, wait_until
from tests.support.bucket_inventory import read_inventory
from tests.support.s3_server import S3Server
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_driver import SparkDriver

pytestmark = pytest.mark.spark

# Runs the commands in turn; `<name>-under-way` appears while tasks of a command are running.
COMMANDS = """
from typer.testing import CliRunner
import isotherm.spark
from isotherm.cli.main import app

spark = isotherm.spark.session("pipeline-test", master=given["master"], config=short_lived)

def watch(name):
    tracker = spark.sparkContext.statusTracker()
    while not (folder / name).exists():
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(info and info.numActiveTasks for info in infos):
            answer(f"{name}-under-way", [])
            return
        time.sleep(0.01)

for name, arguments in given["commands"].items():
    threading.Thread(target=watch, args=(name,), daemon=True).start()
    done = CliRunner().invoke(app, ["pipeline", *arguments, "--json"])
    answer(name, [[done.exit_code, done.stdout, repr(done.exception)]])
spark.stop()
"""


class Cluster:
    """The Spark cluster, the server, and the commands that run on them."""

    def __init__(self, spark_cluster: SparkCluster, server: S3Server, folder: Path) -> None:
        self.spark_cluster = spark_cluster
        self.server = server
        self._folder = folder
        self.url = server.config["url"]
        self.storage = {name: text for name, text in server.config.items() if name != "url"}
        self.options = [word for pair in self.storage.items() for word in ("-o", "=".join(pair))]

    def settings(self, folder: str) -> ObjectStoreSettings:
        return ObjectStoreSettings.from_config(self.storage | {"url": f"{self.url}/{folder}"})

    def driver(self, name: str, master: str = "", **commands: list[str]) -> SparkDriver:
        options = {job: [*words, *self.options] for job, words in commands.items()}
        given = {"master": master or self.spark_cluster.url, "commands": options}
        return SparkDriver(self._folder / name, COMMANDS, given)

    def recover(self, *arguments: str) -> list[str]:
        """Run `compact --recover`; return the steps that it shows or takes."""
        words = ["pipeline", "compact", *arguments, "--recover", "--json", *self.options]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output + repr(done.exception)
        return [json.loads(line)["step"] for line in done.stdout.splitlines()]

    def find_nothing_with(self, *arguments: str) -> None:
        done = CliRunner().invoke(app, ["pipeline", *arguments, *self.options])
        assert done.exit_code == 0, done.output + repr(done.exception)

    def objects(self, folder: str) -> dict[str, str]:
        """The digest of every object below a folder of the bucket."""
        root = self.server.bucket_folder / folder
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file()
        }

    def await_object(self, driver: SparkDriver, pattern: str) -> None:
        folder = self.server.bucket_folder
        driver.wait_until(lambda: any(folder.glob(pattern)), f"an object {pattern}")

    def kill_worker_while(self, driver: SparkDriver, job: str) -> None:
        """Kill a worker during `job`.

        The S3 server is stopped meanwhile, so the job cannot end before.
        """
        with self.server.stopped():
            assert not driver.has_answered(job)
            self.spark_cluster.replace_worker()

    def kill_driver_while(self, driver: SparkDriver, job: str) -> None:
        with self.server.stopped():
            assert not driver.has_answered(job)
            driver.kill()
        wait_until(lambda: not self.spark_cluster.executors(), "the end of the executors")


@pytest.fixture
def cluster(spark_cluster: SparkCluster, s3_server: S3Server, tmp_path: Path) -> Cluster:
    return Cluster(spark_cluster, s3_server, tmp_path)


def rows(answer: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    ((exit_code, output, error),) = answer
    assert exit_code in (0, 3), (exit_code, output, error)
    return [json.loads(line) for line in output.splitlines()]


def newest_per_key(records: list[ConsumedRecord]) -> list[ConsumedRecord]:
    newest = {
        (record.partition, record.key): record for record in records if record.key is not None
    }
    return sorted(newest.values(), key=lambda each: (each.partition, each.offset))


def read_copy(settings: ObjectStoreSettings, topic: str) -> list[tuple[int, int, Any, Any]]:
    """Partition, offset, key and value of a bucket's records, found by its manifests alone."""
    inventory = read_inventory(open_for_reading(settings), settings.create_layout())
    assert not inventory.uncommitted
    assert not inventory.damaged
    storage = ObjectStoreRemoteStorageManager(settings)
    found = []
    for segment in inventory.segments:
        partition = segment.topic_id_partition
        assert partition.topic == topic
        data = bytes(storage.fetch_log_segment(segment, 0))
        for position, header in iterate_batches(data):
            for record in read_records(data, position, header):
                found.append((partition.partition, record.offset, record.key, record.value))
    return sorted(found, key=lambda row: row[:2])


@pytest.mark.nightly
def test_killed_workers_cost_no_row_and_double_no_object(
    cluster: Cluster, kafka_tiered_topic: TieredTopic
) -> None:
    """A worker dies while a topic of Kafka's is projected, one while its bucket is swept, and one
    while it is copied compacted and some segments of the copy exist.
    """
    topic = kafka_tiered_topic
    bucket = cluster.server.bucket_folder / "kafka"
    shutil.copytree(topic.remote_dir, bucket)
    left_over = leave_partial_uploads(bucket, topic)
    source = ["--path", f"{cluster.url}/kafka", "-b", topic.bootstrap_server]
    commands = {
        "project": ["project", "-b", topic.bootstrap_server, "--to", f"{cluster.url}/projected"],
        "sweep": ["sweep", *source, "--age-hours", "0", "--delete"],
        "compact": [
            *("compact", *source, "-o", f"subscribe={topic.name}", "--run"),
            *("--to", f"{cluster.url}/copy", "--delete-retention-ms", "0"),
        ],
    }
    before = cluster.objects("kafka")
    with cluster.driver("jobs", **commands) as driver:
        driver.answer("project-under-way")
        cluster.kill_worker_while(driver, "project")
        rows(driver.answer("project"))
        driver.answer("sweep-under-way")
        cluster.kill_worker_while(driver, "sweep")
        swept = rows(driver.answer("sweep"))
        cluster.await_object(driver, "copy/**/*.log")
        cluster.kill_worker_while(driver, "compact")
        counts = rows(driver.answer("compact"))
        driver.finish()

    projected = [
        (row["partition"], row["start_offset"], row["segment_id"])
        for table in read_segments(cluster.settings("projected"), lambda _: True)
        for row in table.to_pylist()
        if row["topic"] == topic.name
    ]
    assert sorted(projected) == segments_in(topic)
    tables = [name for name in cluster.objects("projected") if name.endswith(".parquet")]
    assert len({Path(name).parent for name in tables}) == len(tables) > 0

    found = {row["key"]: row["kind"] for row in swept if "kind" in row}
    assert {key: found.get(key) for key in left_over} == dict.fromkeys(left_over, "unknown-segment")
    after = cluster.objects("kafka")
    assert before.keys() - after.keys() == left_over
    moved = after.keys() - before.keys()
    assert len(moved) == len(left_over)
    assert all(name.startswith("isotherm-quarantine/") for name in moved)
    assert all(after[name] == before[name] for name in before.keys() & after.keys())

    tiered = [
        each for each in topic.expected if each.offset < topic.local_start_offsets[each.partition]
    ]
    expected = newest_per_key(tiered)
    assert read_copy(cluster.settings("copy"), topic.name) == [
        (record.partition, record.offset, record.key, record.value) for record in expected
    ]
    # Log, indexes and manifest of each segment, and nothing else: no attempt, no journal.
    assert sum(row["segments"] for row in counts) == len(segments_in(topic))
    assert len(cluster.objects("copy")) == 3 * len(segments_in(topic))


def segments_in(topic: TieredTopic) -> list[tuple[int, int, str]]:
    """Partition, base offset and id of each segment, from the names of Kafka's files."""
    found = []
    for path in topic.remote_root.glob(f"{topic.name}-*/*.log"):
        partition = int(path.parent.name.removeprefix(f"{topic.name}-").split("-")[0])
        offset, _, segment_id = path.stem.partition("-")
        found.append((partition, int(offset), segment_id))
    return sorted(found)


def leave_partial_uploads(bucket: Path, topic: TieredTopic) -> set[str]:
    """Leave copies of logs under ids that the metadata never had."""
    names = set()
    for number, log in enumerate(sorted(bucket.glob(f"*/{topic.name}-*/*.log")), 1):
        offset, _, _ = log.stem.partition("-")
        copy = log.with_name(f"{offset}-{uuid_to_text(uuid.UUID(int=number))}.log")
        shutil.copy(log, copy)
        names.add(str(copy.relative_to(bucket)))
    return names


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
def test_killed_drivers_are_recovered_from_without_a_trace(
    cluster: Cluster, start_broker: Callable[..., EmbeddedBroker]
) -> None:
    """One driver dies while it stages segments in place, one while it completes the segments of a
    copy.

    Readers see the whole topic meanwhile, and finally each key's newest record.
    """
    tier = {f"rsm.config.{name}": text for name, text in cluster.storage.items()}
    broker = start_broker(tier | {"rsm.config.url": f"{cluster.url}/ours"})
    written = fill(broker, cluster)
    place = ["--path", f"{cluster.url}/ours", "-b", broker.bootstrap_servers]
    in_place = [*place, "-o", "subscribe=ours"]
    copy = [*in_place, "--to", f"{cluster.url}/copy"]
    before = cluster.objects("ours")

    with cluster.driver("first", staged=["compact", *in_place, "--run"]) as driver:
        cluster.await_object(driver, "ours/isotherm-rewrites/**/*.staging")
        cluster.kill_driver_while(driver, "staged")
    left = cluster.objects("ours")
    assert left.keys() > before.keys()
    # It belongs to a compaction, so it is no leftover.
    cluster.find_nothing_with("sweep", *place, "--age-hours", "0", "--delete")
    cluster.find_nothing_with("scrub", *in_place)
    assert consume_all(broker.bootstrap_servers, "ours") == written
    assert cluster.recover(*in_place) == ["undo"]
    assert cluster.objects("ours") == left
    assert cluster.recover(*in_place, "--run") == ["undo"]
    assert cluster.objects("ours") == before

    commands = {
        "whole": ["compact", *in_place, "--run", "--keep-old-ms", "0", "--wait-s", "200"],
        "copy": ["compact", *copy, "--run"],
    }
    with cluster.driver("second", "local[2]", **commands) as driver:
        while driver.is_running and not driver.has_answered("whole"):
            read = consume_all(broker.bootstrap_servers, "ours")
            assert newest_per_key(read) == newest_per_key(written)
        (report,) = rows(driver.answer("whole"))
        cluster.await_object(driver, "copy/**/*.rsm-manifest")
        cluster.kill_driver_while(driver, "copy")
    wait_until(lambda: not any("compactions" in n for n in cluster.objects("ours")), "the end")
    assert before.keys().isdisjoint(n for n in cluster.objects("ours") if n.endswith(".log"))
    kept = consume_all(broker.bootstrap_servers, "ours")
    assert len(kept) < len(written) // 2
    assert newest_per_key(kept) == newest_per_key(written)
    assert cluster.recover(*copy, "--run") == ["finish"]
    found = read_copy(cluster.settings("copy"), "ours")
    assert len(found) == report["records_after"]
    assert set(found) <= {
        (record.partition, record.offset, record.key, record.value) for record in kept
    }
    assert len(cluster.objects("copy")) == 3 * report["segments"]
    assert cluster.recover(*copy, "--run") == []


def fill(broker: EmbeddedBroker, cluster: Cluster) -> list[ConsumedRecord]:
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    config |= {"local.retention.bytes": "1", "file.delete.delay.ms": "100"}
    create_topic(broker.bootstrap_servers, "ours", 1, config)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    for number in range(8000):
        producer.produce("ours", (b"%d-" % number).ljust(1000, b"x"), b"key-%d" % (number % 50))
    assert producer.flush(300) == 0
    log = cluster.server.bucket_folder / "ours"
    wait_until(lambda: len(list(log.glob("**/*.rsm-manifest"))) >= 7, "the tiering")
    return list(consume_all(broker.bootstrap_servers, "ours"))
