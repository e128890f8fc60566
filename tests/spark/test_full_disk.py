"""A load whose disk is full half-way: the error says it, nothing is lost, and a second run works.

The limit of a file's size stands for the disk: every write beyond it fails, in the workers too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all
from tests.support.spark_driver import SparkDriver

TIMEOUT_S = 60
START_MS = 1_700_000_000_000
FILES, RECORDS_PER_FILE, VALUE_SIZE = 10, 2000, 1000
SEGMENT_BYTES = 14 * 1024 * 1024

LOAD = """
import resource

# Before Spark starts: its workers inherit the limit.
resource.setrlimit(resource.RLIMIT_FSIZE, (given["bytes"], resource.RLIM_INFINITY))

from typer.testing import CliRunner
from isotherm.cli.main import app

result = CliRunner().invoke(app, given["arguments"])
answer("loaded", [[result.exit_code, str(result.exception)]])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit_bytes", "is_staging"),
    # A file of pieces has about a megabyte.
    [(500_000, False), (8_000_000, True)],
    ids=["pieces", "segments"],
)
def test_a_load_whose_disk_is_full_is_repeated(
    spark: SparkSession, tmp_path: Path, limit_bytes: int, is_staging: bool
) -> None:
    assert spark.getActiveSession() is not None
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
        command += ["--spark-config", "spark.sql.files.maxPartitionBytes=1000000"]
        given = {"bytes": limit_bytes, "arguments": [*command, "--master", "local[2]"]}
        with SparkDriver(tmp_path / "driver", LOAD, given) as driver:
            ((code, error),) = driver.answer("loaded")
        assert code == 1
        assert "File too large" in error
        assert consume_all(broker.bootstrap_servers, "loaded") == []
        journals = [each for each in bucket.glob("isotherm-rewrites/**/*") if each.is_file()]
        assert bool(journals) is is_staging

        if is_staging:
            refused = CliRunner().invoke(app, command)
            assert "earlier run is not over" in str(refused.exception)
            recover = ["pipeline", "load", "loaded", *place, "--recover", "--run"]
            assert CliRunner().invoke(app, recover).exit_code == 0
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (done.output, done.exception)
        read = consume_all(broker.bootstrap_servers, "loaded")
        assert [each.value for each in read] == [
            (b"%d-" % n).ljust(VALUE_SIZE, b"x") for n in range(FILES * RECORDS_PER_FILE)
        ]
