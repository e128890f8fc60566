"""A load whose disk is full half-way: the error says it, nothing is lost, and a second run works.

The limit of a file's size stands for the disk: every write beyond it fails in the workers.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all

TIMEOUT_S = 300
START_MS = 1_700_000_000_000
FILES, RECORDS_PER_FILE, VALUE_SIZE = 3, 600, 1000
SEGMENT_BYTES = 1536 * 1024


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """No process of Spark can make a file larger than `size`. The broker, in this process, can."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        _limit_children((size, resource.RLIM_INFINITY))
        yield
    finally:
        _limit_children(unlimited)


def _limit_children(limits: tuple[int, int]) -> None:
    # New workers have the limits of PySpark's daemon, which is one of them.
    for process in psutil.Process().children(recursive=True):
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit_bytes", "is_staging"),
    # A file of pieces has the records of one file, more than half a megabyte.
    [(300_000, False), (1_000_000, True)],
    ids=["pieces", "segments"],
)
def test_a_load_whose_disk_is_full_is_repeated(
    spark: SparkSession, tmp_path: Path, limit_bytes: int, is_staging: bool
) -> None:
    # A task for each file.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "700000")
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    rows = tmp_path / "rows"
    rows.mkdir()
    for number in range(FILES):
        lines = [
            json.dumps({"value": f"{n}-".ljust(VALUE_SIZE, "x"), "at": START_MS + n})
            for n in range(number * RECORDS_PER_FILE, (number + 1) * RECORDS_PER_FILE)
        ]
        (rows / f"{number}.json").write_text("\n".join(lines))
    with EmbeddedBroker(tmp_path / "broker") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        config = {**TIERED_TOPIC, "segment.bytes": str(SEGMENT_BYTES)}
        admin.create_topics([NewTopic("loaded", 1, config=config)])["loaded"].result(TIMEOUT_S)
        bucket = broker.directory / "bucket"
        place = ["-b", broker.bootstrap_servers, "--path", str(bucket)]
        command = ["pipeline", "load", "loaded", str(rows), "--from", "json", *place, "--run"]
        command += ["--column", "timestamp=at"]
        with limited_files(limit_bytes):
            failed = CliRunner().invoke(app, command)
        assert failed.exit_code == 1
        assert "File too large" in str(failed.exception)
        assert consume_all(broker.bootstrap_servers, "loaded") == []
        journals = [path for path in bucket.glob("isotherm-rewrites/**/*") if path.is_file()]
        assert bool(journals) is is_staging

        if is_staging:
            refused = CliRunner().invoke(app, command)
            assert "earlier run is unfinished" in str(refused.exception)
            recover = ["pipeline", "load", "loaded", *place, "--recover", "--run"]
            assert CliRunner().invoke(app, recover).exit_code == 0
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (done.output, done.exception)
        read = consume_all(broker.bootstrap_servers, "loaded")
        assert [each.value for each in read] == [
            (b"%d-" % n).ljust(VALUE_SIZE, b"x") for n in range(FILES * RECORDS_PER_FILE)
        ]
