"""Queries through a storage manager of the user's: the example of docs/plugins.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import isotherm.spark
from isotherm.cli.main import app
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import ConsumedRecord, consume_all, records_of_frame

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
EXAMPLE = re.compile(r"<!-- example: my_storage\.py -->\n```python\n(.*?)```", re.DOTALL)
CLASS = "remote.log.storage.manager.class.name"
TIMEOUT_S = 60
# The page's class, with an error of its own, an answer that is short, and one that is not there.
SICK = """
from my_storage import FolderStorage

class Raises(FolderStorage):
    def fetch_log_segment(self, metadata, start_position, end_position_inclusive=None):
        raise LookupError("the shelf has fallen down")

class Short(FolderStorage):
    def fetch_log_segment(self, *args):
        return super().fetch_log_segment(*args)[:-1]
"""


@dataclass(frozen=True)
class Shelf:
    """A topic that a broker has copied with the page's class, and its copies."""

    options: dict[str, str]
    consumed: list[ConsumedRecord]
    folder: Path

    def load(self, spark: SparkSession, **more: str) -> list[ConsumedRecord]:
        options = {**self.options, "includeHeaders": "true", **more}
        return records_of_frame(spark.read.format("isotherm").options(**options).load())


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Shelf]:
    modules = tmp_path_factory.mktemp("modules")
    code = EXAMPLE.search(PAGE.read_text(encoding="utf-8"))
    assert code is not None
    for name, text in {"my_storage": code[1], "sick_storage": SICK}.items():
        (modules / f"{name}.py").write_text(text, encoding="utf-8")
        spark.sparkContext.addPyFile(str(modules / f"{name}.py"))
    folder = tmp_path_factory.mktemp("shelf")
    of_class = {CLASS: "my_storage.FolderStorage", "rsm.config.dir": str(folder)}
    sys.path.insert(0, str(modules))
    try:
        with EmbeddedBroker(tmp_path_factory.mktemp("broker"), of_class) as broker:
            fill(broker, "flights")
            consumed = consume_all(broker.bootstrap_servers, "flights")
            options = {
                **of_class,
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "subscribe": "flights",
            }
            yield Shelf(options, consumed, folder)
    finally:
        sys.path.remove(str(modules))
        for name in ("my_storage", "sick_storage"):
            sys.modules.pop(name, None)


def fill(broker: EmbeddedBroker, topic: str) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(servers)
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=TIERED_TOPIC)]).values():
        future.result(TIMEOUT_S)
    producer = Producer({**servers, "linger.ms": 20, "batch.size": 65536})
    for number in range(3000):
        producer.produce(
            topic, key=b"k%d" % number, value=os.urandom(1000), timestamp=10**12 + number
        )
    assert producer.flush(TIMEOUT_S) == 0
    log = broker.directory / "log" / f"{topic}-0"
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(log.glob("*.log"))) > 1:
        assert time.monotonic() < deadline, "the topic was not copied in time"
        time.sleep(0.05)


def test_rows_are_what_the_broker_serves(spark: SparkSession, shelf: Shelf) -> None:
    assert len(list(shelf.folder.iterdir())) > 1
    assert len(shelf.consumed) == 3000
    assert shelf.load(spark) == shelf.consumed
    assert shelf.load(spark, isolationLevel="read_committed") == shelf.consumed


def test_bucket_alone_times_and_functions_read_through_the_class(
    spark: SparkSession, shelf: Shelf
) -> None:
    options = {**shelf.options, "includeTail": "false"}
    history = shelf.load(spark, includeTail="false", targetBytesPerTask="100000")
    assert 0 < len(history) < 3000
    assert history == shelf.consumed[: len(history)]
    assert isotherm.spark.count(options) == len(history)
    fast = isotherm.spark.read(spark, {**options, "includeHeaders": True})
    assert records_of_frame(fast) == history
    found = shelf.load(
        spark, startingTimestamp=str(10**12 + 777), endingTimestamp=str(10**12 + 999)
    )
    assert found == shelf.consumed[777:999]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Raises", "remote storage manager failed .*cause=.*the shelf has fallen down"),
        ("Short", "remote storage manager gave a wrong answer .*method=fetch_log_segment"),
        (
            "Missing",
            "remote storage manager cannot be used: there is no such Python class .*Missing",
        ),
    ],
)
def test_error_of_the_class_is_one_clear_error(
    spark: SparkSession, shelf: Shelf, name: str, told: str
) -> None:
    with pytest.raises(PySparkException, match=told):
        shelf.load(spark, **{CLASS: f"sick_storage.{name}"})


def test_segment_that_the_class_has_lost_is_named(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    shutil.copytree(shelf.folder, tmp_path / "shelf")
    lost = min((tmp_path / "shelf").iterdir())
    (lost / "segment.log").unlink()
    with pytest.raises(PySparkException, match=r"no object=segment\.log topic=flights partition=0"):
        shelf.load(spark, **{"rsm.config.dir": str(tmp_path / "shelf")})


def scrub(shelf: Shelf, folder: Path, *more: str, job: str = "scrub") -> Result:
    options = {CLASS: shelf.options[CLASS], "rsm.config.dir": str(folder)}
    named = [part for pair in options.items() for part in ("-o", "=".join(pair))]
    return CliRunner().invoke(app, ["pipeline", job, "--json", *named, *more])


def test_scrub_reads_through_the_class(spark: SparkSession, shelf: Shelf, tmp_path: Path) -> None:
    """Batches, records and indexes; objects are the class's own business."""
    topic = ["-b", shelf.options["kafka.bootstrap.servers"], "-o", "subscribe=flights"]
    sound = scrub(shelf, shelf.folder, *topic)
    assert sound.exit_code == 0, sound.output + str(sound.exception)
    told = json.loads(sound.stdout.splitlines()[-1])["scrubbed"]
    assert told["segments"] == len(list(shelf.folder.iterdir()))
    assert told["findings"] == 0
    damaged = tmp_path / "shelf"
    shutil.copytree(shelf.folder, damaged)
    changed, lost, *_ = sorted(damaged.iterdir())
    log = bytearray((changed / "segment.log").read_bytes())
    log[200] ^= 1
    (changed / "segment.log").write_bytes(log)
    (lost / "segment.log").unlink()
    found = scrub(shelf, damaged, *topic)
    assert found.exit_code == 3, found.output + str(found.exception)
    kinds = {row["kind"] for row in map(json.loads, found.stdout.splitlines()) if "kind" in row}
    assert kinds == {"wrong-crc", "missing-object"}


@pytest.mark.parametrize("job", ["scrub", "sweep", "rebuild"])
def test_job_that_has_to_list_segments_is_refused(
    spark: SparkSession, shelf: Shelf, job: str
) -> None:
    refused = scrub(shelf, shelf.folder, job=job)
    assert refused.exit_code in (1, 2)
    assert "cannot list its segments" in str(refused.exception) + refused.output
