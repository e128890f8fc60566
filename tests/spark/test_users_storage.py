"""Queries and jobs through a user's storage manager: the examples of docs/plugins.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import isotherm.spark
from isotherm.cli.main import app
from isotherm.errors import ConfigError, UnsupportedVersionError
from isotherm.remote.metadata.wire.serde import decode_event, encode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.types import uuid_from_text
from oracle.consumed_records import ConsumedRecord, consume_all, records_of_frame
from tests.support.conditions import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
EXAMPLE = re.compile(r"<!-- example: (\w+)\.py -->\n```python\n(.*?)```", re.DOTALL)
CLASS = "remote.log.storage.manager.class.name"
TIMEOUT_S = 300
# The page's class, with an error of its own, an answer that is short, and one that is not there.
SICK = """
from my_storage import FolderStorage

class Raises(FolderStorage):
    def fetch_log_segment(self, metadata, start_position, end_position_inclusive=None):
        raise LookupError("the shelf has fallen down")

class Short(FolderStorage):
    def fetch_log_segment(self, *args):
        return super().fetch_log_segment(*args)[:-1]

class Names(FolderStorage):
    def list_log_segments(self):
        return [folder.name for folder in self._root.iterdir()]
"""


@dataclass(frozen=True)
class Shelf:
    """A topic that a broker has copied with the page's class, and the copies."""

    options: dict[str, str]
    consumed: list[ConsumedRecord]
    folder: Path

    def load(self, spark: SparkSession, **more: str) -> list[ConsumedRecord]:
        options = {**self.options, "includeHeaders": "true", **more}
        return records_of_frame(spark.read.format("isotherm").options(**options).load())


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Shelf]:
    modules = tmp_path_factory.mktemp("modules")
    examples = dict(EXAMPLE.findall(PAGE.read_text(encoding="utf-8")))
    for name, text in {**examples, "sick_storage": SICK}.items():
        (modules / f"{name}.py").write_text(text, encoding="utf-8")
        spark.sparkContext.addPyFile(str(modules / f"{name}.py"))
    folder = tmp_path_factory.mktemp("shelf")
    of_class = {CLASS: "my_listed_storage.ListedStorage", "rsm.config.dir": str(folder)}
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
        for name in (*examples, "sick_storage"):
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
    wait_until(lambda: len(list(log.glob("*.log"))) <= 1, "the topic's tiering")


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
    ("name", "message"),
    [
        ("Raises", "remote storage manager failed .*cause=.*the shelf has fallen down"),
        ("Short", "remote storage manager returned a wrong value .*method=fetch_log_segment"),
        (
            "Missing",
            "remote storage manager cannot be used: there is no such Python class .*Missing",
        ),
    ],
)
def test_error_of_the_class_is_one_clear_error(
    spark: SparkSession, shelf: Shelf, name: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        shelf.load(spark, **{CLASS: f"sick_storage.{name}"})


def test_segment_that_the_class_has_lost_is_named(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    shutil.copytree(shelf.folder, tmp_path / "shelf")
    lost = min((tmp_path / "shelf").iterdir())
    (lost / "segment.log").unlink()
    with pytest.raises(PySparkException, match=r"no object=segment\.log topic=flights partition=0"):
        shelf.load(spark, **{"rsm.config.dir": str(tmp_path / "shelf")})


def run_job(
    shelf: Shelf, job: str, *more: str, folder: Path | None = None, name: str | None = None
) -> Result:
    """Run a job with the class, or another class of that name, over the shelf or another folder."""
    options = {CLASS: name or shelf.options[CLASS], "rsm.config.dir": str(folder or shelf.folder)}
    named = [part for pair in options.items() for part in ("-o", "=".join(pair))]
    return CliRunner().invoke(app, ["pipeline", job, "--json", *named, *more])


def rows_of(result: Result, exit_code: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.nightly
def test_scrub_reads_through_the_class(spark: SparkSession, shelf: Shelf, tmp_path: Path) -> None:
    """Scrub checks batches, records and indexes; objects are internal to the class."""
    topic = ["-b", shelf.options["kafka.bootstrap.servers"], "-o", "subscribe=flights"]
    sound = rows_of(run_job(shelf, "scrub", *topic))[-1]["scrubbed"]
    assert sound["segments"] == len(list(shelf.folder.iterdir()))
    assert sound["findings"] == 0
    listed = rows_of(run_job(shelf, "scrub", "-o", "subscribe=flights"))[-1]["scrubbed"]
    assert listed == sound
    damaged = tmp_path / "shelf"
    shutil.copytree(shelf.folder, damaged)
    changed, lost, *_ = sorted(damaged.iterdir())
    log = bytearray((changed / "segment.log").read_bytes())
    log[200] ^= 1
    (changed / "segment.log").write_bytes(log)
    (lost / "segment.log").unlink()
    found = rows_of(run_job(shelf, "scrub", *topic, folder=damaged), 3)
    assert {row["kind"] for row in found if "kind" in row} == {"wrong-crc", "missing-object"}


def test_query_takes_the_list_of_the_class(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    """An incomplete copy is no segment."""
    history = shelf.load(spark, includeTail="false")
    listed = shelf.load(spark, metadata="bucket", includeTail="false")
    assert listed == history
    shutil.copytree(shelf.folder, tmp_path / "shelf")
    last = max((tmp_path / "shelf").iterdir(), key=start_offset_of)
    (last / "whole").unlink()
    alone = {name: text for name, text in shelf.options.items() if not name.startswith("kafka.")}
    frame = spark.read.format("isotherm").options(
        **{**alone, "rsm.config.dir": str(tmp_path / "shelf"), "includeHeaders": "true"}
    )
    assert records_of_frame(frame.load()) == history[: start_offset_of(last)]


def start_offset_of(folder: Path) -> int:
    event = decode_event((folder / "metadata").read_bytes())
    assert isinstance(event, RemoteLogSegmentMetadata)
    return event.start_offset


def test_metadata_is_rebuilt_from_the_list_of_the_class(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    """A broker with only the rebuilt metadata serves the segments again, through the class."""
    log_dir = tmp_path / "broker" / "log"
    rows = rows_of(run_job(shelf, "rebuild", "--log-dir", str(log_dir), "--run"))
    segments = len(list(shelf.folder.iterdir()))
    assert {"found", "written"} <= {key for row in rows for key in row}
    found = next(row["found"] for row in rows if "found" in row)
    assert (found["partitions"], found["segments"], found["findings"]) == (1, segments, 0)
    settings = {name: shelf.options[name] for name in (CLASS, "rsm.config.dir")}
    settings["rlmm.config.remote.log.metadata.topic.num.partitions"] = "50"
    with EmbeddedBroker(tmp_path / "broker", settings) as broker:
        served = consume_all(broker.bootstrap_servers, "flights")
    assert 0 < len(served) < 3000
    assert served == shelf.consumed[: len(served)]
    refused = run_job(shelf, "rebuild", "--topic-id", "A" * 22 + "=" + "B" * 22)
    assert isinstance(refused.exception, ConfigError)


@pytest.mark.nightly
def test_sweep_compares_the_list_of_the_class(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    """A missing segment, an incomplete one, and two that no metadata names: sweep deletes the
    partial one of them, and keeps the other because it is young.
    """
    topic = ["-b", shelf.options["kafka.bootstrap.servers"], "--age-hours", "0"]
    sound = rows_of(run_job(shelf, "sweep", *topic))[-1]["swept"]
    nothing = {"orphaned_objects": 0, "orphaned_bytes": 0, "cost_per_month": 0.0}
    assert sound == {"objects": len(list(shelf.folder.iterdir())), "findings": 0, **nothing}
    swept = tmp_path / "shelf"
    shutil.copytree(shelf.folder, swept)
    lost, cut, *_ = sorted(swept.iterdir())
    stray, young = stray_copy(cut, age_ms=1000), stray_copy(cut, age_ms=-3_600_000)
    (stray / "whole").unlink()
    shutil.rmtree(lost)
    (cut / "whole").unlink()
    refused = run_job(shelf, "sweep", *topic, "--delete", folder=swept)
    assert "deletes segments for ever" in str(refused.exception)
    assert stray.exists()
    done = rows_of(run_job(shelf, "sweep", *topic, "--delete", "--for-good", folder=swept), 3)
    kinds = {segment_of(row["key"]): row["kind"] for row in done if "kind" in row}
    assert kinds == {
        lost.name: "missing-object",
        cut.name: "missing-object",
        stray.name: "partial-upload",
    }
    outcomes = {segment_of(row["key"]): row["outcome"] for row in done if "outcome" in row}
    assert outcomes == {stray.name: "deleted"}
    assert not stray.exists()
    assert {cut, young} <= set(swept.iterdir())


def stray_copy(template: Path, *, age_ms: int) -> Path:
    """Copy a segment under a new id and with another time."""
    event = decode_event((template / "metadata").read_bytes())
    assert isinstance(event, RemoteLogSegmentMetadata)
    new_id = RemoteLogSegmentId(event.topic_id_partition, uuid.uuid4())
    at_ms = int(time.time() * 1000) - age_ms
    folder = template.parent / new_id.id.hex
    shutil.copytree(template, folder)
    other = replace(event, segment_id=new_id, event_timestamp_ms=at_ms)
    (folder / "metadata").write_bytes(encode_event(other))
    return folder


def segment_of(key: str) -> str:
    """The folder of the segment that a finding's key names."""
    return uuid_from_text(key.rpartition("/")[2].partition(".")[0]).hex


@pytest.mark.nightly
def test_compacted_copy_is_made_through_the_class(
    spark: SparkSession, shelf: Shelf, tmp_path: Path
) -> None:
    """Every key occurs once, so the copy has every record of the segments."""
    refused = run_job(shelf, "compact", "-o", "subscribe=flights")
    assert "--to" in str(refused.exception)
    copy = tmp_path / "copy"
    rows = rows_of(run_job(shelf, "compact", "-o", "subscribe=flights", "--to", str(copy), "--run"))
    history = shelf.load(spark, includeTail="false")
    assert [(row["records_before"], row["records_after"]) for row in rows] == [(len(history),) * 2]
    frame = spark.read.format("isotherm").options(
        path=str(copy), subscribe="flights", includeHeaders="true"
    )
    assert records_of_frame(frame.load()) == history


@pytest.mark.parametrize("job", ["scrub", "sweep", "rebuild", "compact"])
def test_class_that_lists_nothing_is_refused_by_the_methods_name(
    spark: SparkSession, shelf: Shelf, job: str, tmp_path: Path
) -> None:
    more = {
        "sweep": ["-b", shelf.options["kafka.bootstrap.servers"]],
        "compact": ["--to", str(tmp_path / "copy")],
    }
    refused = run_job(shelf, job, *more.get(job, ()), name="my_storage.FolderStorage")
    assert isinstance(refused.exception, UnsupportedVersionError), refused.output
    assert "method='list_log_segments()'" in str(refused.exception)
    assert "class=my_storage.FolderStorage" in str(refused.exception)


def test_list_that_breaks_the_interface_is_one_clear_error(
    spark: SparkSession, shelf: Shelf
) -> None:
    refused = run_job(shelf, "scrub", name="sick_storage.Names")
    assert "method=list_log_segments" in str(refused.exception)
    assert "expected='RemoteLogSegmentMetadata in state" in str(refused.exception)
