"""The source on a standalone Spark cluster: a master and two workers as processes, an S3 server.

The driver is a process too: a test process has room for one Spark session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.record_segments import RecordSegmentMaker
from isotherm.testing.s3_server import S3Server, find_versitygw
from isotherm.testing.spark_cluster import SparkCluster
from isotherm.types import TopicIdPartition
from oracle.tiered_topic import TieredTopic

pytestmark = pytest.mark.spark

TIMEOUT_S = 240
SEGMENTS = 24
RECORDS = 500
# What a job runs: prints nothing, writes its rows as JSON; the file `under-way` says that some
# tasks are done and others are not.
JOB = """
import json, sys, threading, time
from pathlib import Path
import isotherm.spark

master, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
spark = isotherm.spark.session(
    "cluster-test",
    master=master,
    config={"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"},
)
columns = ("partition", "offset", "md5(value) AS digest")

def watch():
    tracker = spark.sparkContext.statusTracker()
    while True:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info and 2 <= info.numCompletedTasks < info.numTasks - 2:
                (folder / "under-way").touch()
                return
        time.sleep(0.01)

if given["kind"] == "batch":
    threading.Thread(target=watch, daemon=True).start()
    frame = spark.read.format("isotherm").options(**given["options"]).load()
    rows = frame.selectExpr(*columns).collect()
else:
    stream = spark.readStream.format("isotherm").options(**given["options"]).load()
    query = (
        stream.selectExpr(*columns).writeStream.format("parquet")
        .option("path", str(folder / "rows")).option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(folder / "rows")).collect()
(folder / "rows.json").write_text(json.dumps(sorted([r.partition, r.offset, r.digest] for r in rows)))
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class Job:
    def __init__(self, cluster: SparkCluster, folder: Path, kind: str, options: dict) -> None:
        self.folder = folder
        folder.mkdir()
        given = json.dumps({"kind": kind, "options": options})
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", JOB, cluster.url, str(folder), given],
                stdout=log,
                stderr=log,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def await_under_way(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not (self.folder / "under-way").exists():
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def rows(self) -> list[tuple[int, int, str | None]]:
        assert self._process.wait(TIMEOUT_S) == 0, self._log.read_text()[-3000:]
        return [tuple(row) for row in json.loads((self.folder / "rows.json").read_text())]


def digest(value: bytes | None) -> str | None:
    import hashlib

    return None if value is None else hashlib.md5(value).hexdigest()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path / "buckets") as running:
        yield running


def test_killed_worker_costs_no_row_and_doubles_none(
    cluster: SparkCluster, server: S3Server, tmp_path: Path
) -> None:
    settings = ObjectStoreSettings.from_config(server.config)
    maker = RecordSegmentMaker(tmp_path / "made", ObjectStoreRemoteStorageManager(settings))
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    expected = []
    for base in range(0, SEGMENTS * RECORDS, RECORDS):
        values = [(b"%d-" % (base + n)).ljust(2000, b"x") for n in range(RECORDS)]
        expected += [(0, base + n, digest(value)) for n, value in enumerate(values)]
        batches = [
            build_batch([NewRecord(1, None, v) for v in values[n : n + 50]], base_offset=base + n)
            for n in range(0, RECORDS, 50)
        ]
        maker.tier(owner, batches)
    options = {name: text for name, text in server.config.items() if name != "url"} | {
        "path": server.config["url"],
        "subscribe": "t",
        "targetBytesPerTask": "200000",
    }
    job = Job(cluster, tmp_path / "job", "batch", options)
    job.await_under_way()
    cluster.kill_worker(1)
    assert job.rows() == expected


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_topic_that_kafka_tiered_is_read_on_a_cluster(
    cluster: SparkCluster, kafka_tiered_topic: TieredTopic, tmp_path: Path, kind: str
) -> None:
    options = {
        "path": kafka_tiered_topic.remote_dir.as_uri(),
        "kafka.bootstrap.servers": kafka_tiered_topic.bootstrap_server,
        "subscribe": kafka_tiered_topic.name,
        "startingOffsets": "earliest",
    }
    rows = Job(cluster, tmp_path / "job", kind, options).rows()
    assert rows == [
        (record.partition, record.offset, digest(record.value))
        for record in kafka_tiered_topic.expected
    ]
