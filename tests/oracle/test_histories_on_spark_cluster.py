"""Jobs that write histories on a standalone Spark cluster, whose workers are killed meanwhile.

There the pieces of a load are rows that are shuffled, and not files of the driver's machine.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.remote.erasure.certificate import CERTIFICATES_FOLDER
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import ConsumedRecord, consume_all
from tests.support.conditions import wait_until
from tests.support.s3_server import S3Server
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_driver import SparkDriver

pytestmark = pytest.mark.spark

TIMEOUT_S = 300
OLD_PARTITIONS, NEW_PARTITIONS = 3, 8
RECORDS = 12_000
VALUE_SIZE = 2000
# Thirty tasks read the topic.
TASK_BYTES = 800_000
START_MS = 1_700_000_000_000

# Runs the commands. For each of its points a command says once, by `NAME-POINT`, that some tasks of
# a stage are done and others are not: `reading` is from its start on, `writing` when it stages.
COMMANDS = """
from typer.testing import CliRunner

import isotherm.spark
from isotherm.cli.main import app
from isotherm.spark.jobs import erase, load

spark = isotherm.spark.session("cluster-test", master=given["master"], config=short_lived)
points = set()

def announced(step):
    def announce(*arguments, **named):
        points.add("writing")
        return step(*arguments, **named)
    return announce

load.write_all = announced(load.write_all)
erase._stage_all = announced(erase._stage_all)

def is_under_way():
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(stage and 0 < stage.numCompletedTasks < stage.numTasks - 1 for stage in stages)

def watch(name, point):
    while not (point in points and is_under_way()):
        time.sleep(0.01)
    answer(f"{name}-{point}", [])

for name, arguments, watched in given["commands"]:
    points.clear()
    points.add("reading")
    for point in watched:
        threading.Thread(target=watch, args=(name, point), daemon=True).start()
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    answer(name, [[result.exit_code, result.output + repr(result.exception)]])
spark.stop()
"""


class TieredBroker(NamedTuple):
    """A broker with its tier in S3, and the options of a command that reads it."""

    broker: EmbeddedBroker
    bucket_folder: Path
    options: tuple[str, ...]


@pytest.fixture
def tiered(s3_server: S3Server, start_broker: Callable[..., EmbeddedBroker]) -> TieredBroker:
    storage = {name: text for name, text in s3_server.config.items() if name != "url"}
    path = f"{s3_server.config['url']}/ours"
    tier = {f"rsm.config.{name}": text for name, text in storage.items()}
    broker = start_broker(tier | {"rsm.config.url": path})
    settings = storage | {"targetBytesPerTask": str(TASK_BYTES)}
    options = [word for name, text in settings.items() for word in ("-o", f"{name}={text}")]
    place = ("-b", broker.bootstrap_servers, "--path", path)
    return TieredBroker(broker, s3_server.bucket_folder / "ours", (*place, *options))


def fill(tiered: TieredBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tiered.broker.bootstrap_servers})
    new = NewTopic("old", OLD_PARTITIONS, config=TIERED_TOPIC)
    admin.create_topics([new])["old"].result(TIMEOUT_S)
    producer = Producer(
        {
            "bootstrap.servers": tiered.broker.bootstrap_servers,
            "partitioner": "murmur2_random",
            "batch.size": 65536,
        }
    )
    for number in range(RECORDS):
        value = (b"%d-" % number).ljust(VALUE_SIZE, b"x")
        producer.produce("old", value, b"k%d" % (number % 300), timestamp=START_MS + number)
    assert producer.flush(TIMEOUT_S) == 0
    segments = RECORDS * VALUE_SIZE // int(TIERED_TOPIC["segment.bytes"]) - 2 * OLD_PARTITIONS
    wait_until(
        lambda: len(list(tiered.bucket_folder.glob("old-*/**/*.rsm-manifest"))) >= segments,
        "the topic's tiering",
    )


def run(
    cluster: SparkCluster,
    folder: Path,
    commands: Mapping[str, tuple[str, ...]],
    watched: Mapping[str, tuple[str, ...]],
) -> None:
    """Run the commands, and kill a worker at each of their points."""
    listed = [
        (name, [*arguments, "--master", cluster.url], watched[name])
        for name, arguments in commands.items()
    ]
    given = {"master": cluster.url, "commands": listed}
    with SparkDriver(folder, COMMANDS, given) as driver:
        for name, points in watched.items():
            for point in points:
                driver.answer(f"{name}-{point}")
                cluster.replace_worker()
            ((code, output),) = driver.answer(name)
            assert code == 0, output
        driver.finish()


def by_key(records: list[ConsumedRecord]) -> dict[bytes | None, list[tuple[object, ...]]]:
    found = defaultdict(list)
    for record in records:
        found[record.key].append((record.value, record.timestamp_ms, record.headers))
    return found


def unfinished_objects(tiered: TieredBroker) -> list[Path]:
    """Journals of runs, and objects of segments without a manifest."""
    paths = [path for path in tiered.bucket_folder.rglob("*") if path.is_file()]
    segments = {path.with_suffix("") for path in paths if path.suffix == ".rsm-manifest"}
    return [
        path
        for path in paths
        if path.with_suffix("") not in segments and CERTIFICATES_FOLDER not in path.parts
    ]


def test_killed_workers_cost_a_repartition_no_record(
    spark_cluster: SparkCluster, tiered: TieredBroker, tmp_path: Path
) -> None:
    fill(tiered)
    command = ("repartition", "old", "new", "--partitions", str(NEW_PARTITIONS), *tiered.options)
    folder = tmp_path / "map"
    commands = {"repartition": (*command, "--offsets-map", str(folder), "--run", "--json")}
    run(spark_cluster, tmp_path / "driver", commands, {"repartition": ("reading", "writing")})

    old = consume_all(tiered.broker.bootstrap_servers, "old")
    copied = consume_all(tiered.broker.bootstrap_servers, "new")
    assert len(copied) == len(old) == RECORDS
    assert by_key(copied) == by_key(old)
    for each in copied:
        assert each.partition == (murmur2(each.key) & 0x7FFFFFFF) % NEW_PARTITIONS
    assert unfinished_objects(tiered) == []
    assert list(folder.glob("*.parquet"))


@pytest.mark.nightly
def test_killed_workers_cost_a_load_and_an_erasure_no_record(
    spark_cluster: SparkCluster, tiered: TieredBroker, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(
        "".join(
            json.dumps({"key": f"k{n % 300}", "value": f"{n}-".ljust(VALUE_SIZE, "x"), "at": n})
            + "\n"
            for n in range(RECORDS)
        )
    )
    keys = tmp_path / "keys.txt"
    keys.write_text("k7\nk11\n")
    admin = AdminClient({"bootstrap.servers": tiered.broker.bootstrap_servers})
    new = NewTopic("loaded", NEW_PARTITIONS, config=TIERED_TOPIC)
    admin.create_topics([new])["loaded"].result(TIMEOUT_S)
    loads = ("load", "loaded", str(rows), "--from", "json", "--run", *tiered.options)
    loads = (*loads, "--column", f"timestamp=at + {START_MS}L")
    erases = ("erase", "--keys", str(keys), "--run", "--keep-old-ms", "0", *tiered.options)
    commands = {"load": loads, "erase": (*erases, "-o", "subscribe=loaded")}
    watched = {"load": ("writing",), "erase": ("reading", "writing")}
    run(spark_cluster, tmp_path / "driver", commands, watched)

    kept = consume_all(tiered.broker.bootstrap_servers, "loaded")
    expected = {
        (b"k%d" % (n % 300), (b"%d-" % n).ljust(VALUE_SIZE, b"x"), START_MS + n)
        for n in range(RECORDS)
        if n % 300 not in (7, 11)
    }
    assert {(record.key, record.value, record.timestamp_ms) for record in kept} == expected
    assert len(kept) == len(expected)
    wait_until(lambda: unfinished_objects(tiered) == [], "the end of the run")
