"""The projection as a Delta table: a commit for each run, which Delta reads back.

Delta has no package for Spark 4.3. ISOTHERM_DELTA_PYTHON names a Python that has Isotherm and
PySpark 4.2.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oracle.jars import OracleUnavailableError, resolve_delta_jars
from tests.support.flights_history import DAY_MS, END_MS, write_flights_history
from tests.support.spark_driver import SparkDriver

PYTHON = os.environ.get("ISOTHERM_DELTA_PYTHON")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(PYTHON is None, reason="there is no Delta for Spark 4.3, see above"),
]

# Two runs of the command; then Delta itself reads both versions.
PROJECT = """
from typer.testing import CliRunner
import isotherm.spark
from isotherm.cli.main import app
from isotherm.spark.jobs.project import projected_segments
from isotherm.remote.storage.settings import ObjectStoreSettings
from tests.support.flights_history import write_flights_history

delta = {
    "spark.jars": given["jars"],
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
spark = isotherm.spark.session("delta", master="local[2]", config=short_lived | delta)

def project():
    arguments = ["project", "--dump", "metadata-log", "--to", "projection", "--format", "delta"]
    arguments += ["--table", "table"]
    done = CliRunner().invoke(app, ["pipeline", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["records"]

def texts(frame):
    return sorted([repr(row)] for row in frame.collect())

records = [project()]
write_flights_history(Path("metadata-log"))
records.append(project())
answer("records", [records])
place = ObjectStoreSettings(url=Path("projection").absolute().as_uri())
projection = projected_segments(spark, place)
answer("expected", texts(projection))
for version in (0, 1):
    read = spark.read.format("delta").option("versionAsOf", version).load("table")
    answer(f"version-{version}", texts(read.select(projection.columns)))
spark.stop()
"""


@pytest.fixture
def delta_jars() -> list[Path]:
    try:
        return resolve_delta_jars()
    except OracleUnavailableError as error:
        pytest.skip(str(error))


def test_projection_is_kept_as_a_delta_table(delta_jars: list[Path], tmp_path: Path) -> None:
    write_flights_history(tmp_path / "metadata-log", END_MS - 2 * DAY_MS)
    jars = ",".join(map(str, delta_jars))
    with SparkDriver(tmp_path, PROJECT, {"jars": jars}, str(PYTHON)) as driver:
        ((first, later),) = driver.answer("records")
        assert first > later > 0, "the second run reads what is new"
        projection = driver.answer("expected")
        assert driver.answer("version-1") == projection
        before = driver.answer("version-0")
        assert len(before) == len(projection)
        assert before != projection
        driver.finish()
    commits = (tmp_path / "table" / "_delta_log").glob("*.json")
    assert len(list(commits)) == 2
