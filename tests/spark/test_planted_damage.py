"""Thirty kinds of damage, planted in one bucket: each is found and named by the jobs whose business
it is, and the sound topics beside them have no findings. Run through the command line.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.testing.planted_bucket import PlantedBucket
from isotherm.testing.planted_damage import PLANTED, plant_all

DAY_S = 86_400


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    bucket = PlantedBucket(tmp_path_factory.mktemp("planted"))
    bucket.add_sound_topics()
    plant_all(bucket)
    bucket.write_dumps()
    return bucket


def run(job: str, bucket: PlantedBucket, *arguments: str, exit_code: int) -> list[dict[str, Any]]:
    """The rows that the job prints."""
    place = ["--path", str(bucket.folder), "-o", "key.prefix=tiered/", "--dump", str(bucket.dump)]
    result = CliRunner().invoke(app, ["pipeline", job, *place, "--json", *arguments])
    assert result.exit_code == exit_code, result.output + str(result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def kinds_by_topic(rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows:
        if "kind" in row:
            found.setdefault(row["topic"], set()).add(row["kind"])
    return found


def age(bucket: PlantedBucket) -> None:
    """Make every object two days old."""
    for path in bucket.folder.rglob("*"):
        stat = path.stat()
        os.utime(path, (stat.st_atime - 2 * DAY_S, stat.st_mtime - 2 * DAY_S))


def test_sweep_names_what_is_planted_and_deletes_nothing_on_metadata_that_lags(
    spark: SparkSession, planted: PlantedBucket
) -> None:
    age(planted)
    before = sorted(planted.folder.rglob("*"))
    found = kinds_by_topic(run("sweep", planted, "--everywhere", "--delete", exit_code=1))
    expected = {damage.name: {kind.value for kind in damage.sweep} for damage in PLANTED}
    assert found == {name: kinds for name, kinds in expected.items() if kinds}
    assert sorted(planted.folder.rglob("*")) == before


def test_scrub_names_what_is_planted(spark: SparkSession, planted: PlantedBucket) -> None:
    found = kinds_by_topic(run("scrub", planted, exit_code=3))
    expected = {damage.name: {kind.value for kind in damage.scrub} for damage in PLANTED}
    assert found == {name: kinds for name, kinds in expected.items() if kinds}


def test_verify_names_what_differs_in_the_metadata(
    spark: SparkSession, planted: PlantedBucket
) -> None:
    arguments = ["--dump", str(planted.dump), "--against-dump", str(planted.sound_dump), "--json"]
    result = CliRunner().invoke(app, ["pipeline", "verify", *arguments])
    assert result.exit_code == 3, result.output
    found = kinds_by_topic([json.loads(line) for line in result.stdout.splitlines()])
    assert found == {damage.name: damage.verify for damage in PLANTED if damage.verify}
