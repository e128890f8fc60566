"""The source on a standalone Spark cluster: a master and workers as processes, an S3 server.

Drivers are processes too: a test process has room for one Spark session.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import uuid
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicIdPartition
from oracle.tiered_topic import TieredTopic
from tests.support.conditions import wait_until
from tests.support.record_segments import RecordSegmentMaker
from tests.support.s3_server import S3Server
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_driver import SparkDriver

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
RECORDS = 12_000
# Thirty tasks: enough to notice that some are done and others are not.
TASK_BYTES = 800_000
# Reads each topic as a batch, as a stream and by `isotherm.spark.read`. `batch-under-way` and
# `stream-under-way` say that some tasks of the query are done and others are not. No worker dies
# under the third, which has the default size of tasks.
ALL_QUERIES = """
import isotherm.spark

spark = isotherm.spark.session("cluster-test", master=given["master"], config=short_lived)

def watch(name):
    tracker = spark.sparkContext.statusTracker()
    while True:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info and 2 <= info.numCompletedTasks < info.numTasks - 4:
                answer(f"{name}-under-way", [])
                return
        time.sleep(0.01)

for topic, options in given["topics"].items():
    threading.Thread(target=watch, args=(f"{topic}-batch",), daemon=True).start()
    answer(f"{topic}-batch", digests(spark.read.format("isotherm").options(**options).load()))
    threading.Thread(target=watch, args=(f"{topic}-stream",), daemon=True).start()
    rows, checkpoint = str(folder / f"{topic}-rows"), str(folder / f"{topic}-checkpoint")
    stream = spark.readStream.format("isotherm").options(startingOffsets="earliest", **options)
    writer = stream.load().writeStream.format("parquet").option("path", rows)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    answer(f"{topic}-stream", digests(spark.read.parquet(rows)))
    options.pop("targetBytesPerTask", None)
    answer(f"{topic}-mapped", digests(isotherm.spark.read(spark, options)))
spark.stop()
"""

Digests = list[tuple[int, int, str | None]]


def digest(value: bytes | None) -> str | None:
    return None if value is None else hashlib.md5(value).hexdigest()


def fill(broker: EmbeddedBroker, bucket: Path) -> Digests:
    """Fill a topic of two partitions, most of it in the bucket; return its records."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    config |= {"local.retention.bytes": "1"}
    admin.create_topics([NewTopic("ours", 2, 1, config=config)])["ours"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    values = [(b"%d-" % number).ljust(2000, b"x") for number in range(RECORDS)]
    for number, value in enumerate(values):
        producer.produce("ours", value, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    segments = RECORDS * 2000 // 1048576 - 3
    wait_until(
        lambda: len(list(bucket.glob("ours/**/*.rsm-manifest"))) >= segments, "the topic's tiering"
    )
    return sorted((n % 2, n // 2, digest(value)) for n, value in enumerate(values))


def test_killed_workers_cost_no_row_and_double_none(
    spark_cluster: SparkCluster,
    s3_server: S3Server,
    start_broker: Callable[..., EmbeddedBroker],
    tmp_path: Path,
) -> None:
    """Batch and streaming queries of a topic in S3. A worker dies in the middle of a batch query,
    and another in the middle of a stream."""
    storage = {name: text for name, text in s3_server.config.items() if name != "url"}
    path = f"{s3_server.config['url']}/ours"
    tier = {f"rsm.config.{name}": text for name, text in storage.items()}
    broker = start_broker(tier | {"rsm.config.url": path})
    expected = fill(broker, s3_server.bucket_folder)
    options = storage | {
        "path": path,
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "ours",
        "targetBytesPerTask": str(TASK_BYTES),
    }
    given = {"master": spark_cluster.url, "topics": {"ours": options}}
    driver = SparkDriver(tmp_path / "driver", ALL_QUERIES, given)
    driver.answer("ours-batch-under-way")
    spark_cluster.replace_worker()
    assert driver.answer("ours-batch") == expected
    driver.answer("ours-stream-under-way")
    spark_cluster.replace_worker()
    assert driver.answer("ours-stream") == expected
    assert driver.answer("ours-mapped") == expected
    driver.finish()


@pytest.mark.nightly
def test_topic_that_kafka_tiered_is_read_on_a_cluster(
    spark_cluster: SparkCluster,
    s3_server: S3Server,
    kafka_tiered_topic: TieredTopic,
    tmp_path: Path,
) -> None:
    shutil.copytree(kafka_tiered_topic.remote_dir, s3_server.bucket_folder / "kafka")
    options = {name: text for name, text in s3_server.config.items() if name != "url"} | {
        "path": f"{s3_server.config['url']}/kafka",
        "kafka.bootstrap.servers": kafka_tiered_topic.bootstrap_server,
        "subscribe": kafka_tiered_topic.name,
    }
    given = {"master": spark_cluster.url, "topics": {"kafkas": options}}
    driver = SparkDriver(tmp_path / "driver", ALL_QUERIES, given)
    expected = [
        (record.partition, record.offset, digest(record.value))
        for record in kafka_tiered_topic.expected
    ]
    for answer in ("kafkas-batch", "kafkas-stream", "kafkas-mapped"):
        assert driver.answer(answer) == expected
    driver.finish()


@pytest.fixture
def small_tier(tmp_path: Path) -> tuple[dict[str, str], Digests]:
    """Options that read a small bucket, and the rows that it holds."""
    (tmp_path / "bucket").mkdir()
    url = (tmp_path / "bucket").as_uri()
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=url))
    records = [NewRecord(1, None, b"%d" % number) for number in range(100)]
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    RecordSegmentMaker(tmp_path / "made", storage).tier(owner, [build_batch(records)])
    rows = [(0, n, digest(record.value)) for n, record in enumerate(records)]
    return {"path": url, "subscribe": "t"}, rows


def make_environment(folder: Path, *packages: str) -> None:
    """Make a Python environment with `packages` of src/. Their dependencies stay where they are
    installed: to copy them takes longer than all else.
    """
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = folder / "lib" / version / "site-packages"
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    for package in packages:
        shutil.copytree(
            ROOT / "src" / package,
            site_packages / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


def page_example(language: str, begins_with: str) -> str:
    """The example of the documentation's page that begins with this text."""
    page = (ROOT / "docs" / "spark-cluster.md").read_text()
    _, _, rest = page.partition(f"```{language}\n{begins_with}")
    assert rest, f"no example on the page begins with {begins_with}"
    return begins_with + rest.partition("```")[0]


READ = """
answer("rows", digests(spark.read.format("isotherm").options(**given["options"]).load()))
answer("mapped", digests(isotherm.spark.read(spark, given["options"])))
spark.stop()
"""


@pytest.mark.nightly
def test_source_comes_to_executors_in_an_archive(
    spark_cluster: SparkCluster, small_tier: tuple[dict[str, str], Digests], tmp_path: Path
) -> None:
    options, expected = small_tier
    folder = tmp_path / "driver"
    folder.mkdir()
    make_environment(folder / "environment", "isotherm", "pyspark_isotherm")
    pack = page_example("shell", "tar -czf environment.tar.gz")
    subprocess.run(pack, shell=True, check=True, cwd=folder)
    code = page_example("python", "import isotherm.spark\n\nspark = isotherm.spark.session(\n")
    code = code.replace('"spark://master:7077"', 'given["master"]')
    code = code.replace("config={", "config=short_lived | {")
    asked = "from_where = {p for p, _ in spark.sparkContext.parallelize(range(2), 2).map("
    asked += 'lambda _: (__import__("isotherm").__file__, 0)).collect()}\n'
    asked += 'answer("places", [[place] for place in sorted(from_where)])\n'
    given = {"master": spark_cluster.url, "options": options}
    driver = SparkDriver(folder, code + asked + READ, given, "./environment/bin/python")
    assert driver.answer("rows") == expected
    assert driver.answer("mapped") == expected
    # The workers' own folders, into which each executor has unpacked it.
    assert all("/worker-" in place for (place,) in driver.answer("places"))
    driver.finish()


@pytest.mark.nightly
def test_source_comes_to_executors_as_a_zip_of_its_packages(
    spark_cluster: SparkCluster, small_tier: tuple[dict[str, str], Digests], tmp_path: Path
) -> None:
    """The executors' Python has Isotherm's dependencies, but not Isotherm."""
    options, expected = small_tier
    folder = tmp_path / "driver"
    folder.mkdir()
    make_environment(folder / "dependencies")
    shutil.make_archive(str(folder / "isotherm"), "zip", ROOT / "src")
    code = page_example("python", "import isotherm.spark\nfrom isotherm.spark.source import")
    code = code.replace('"spark://master:7077"', 'given["master"], config=short_lived')
    code = code.replace("/opt/dependencies", str(folder / "dependencies"))
    given = {"master": spark_cluster.url, "options": options}
    driver = SparkDriver(folder, code + READ, given)
    assert driver.answer("rows") == expected
    assert driver.answer("mapped") == expected
    driver.finish()
