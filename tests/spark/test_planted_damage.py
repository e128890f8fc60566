"""Thirty kinds of damage, planted in one bucket: each is found and named by the jobs whose business
it is, and a sound bucket has no findings. Run through the command line, in the session of the tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
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
    bucket.write_dump()
    return bucket


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    bucket = PlantedBucket(tmp_path_factory.mktemp("sound"))
    bucket.add_sound_topics()
    bucket.write_dump()
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


def test_sound_bucket_has_no_findings(spark: SparkSession, sound: PlantedBucket) -> None:
    age(sound)
    swept = run("sweep", sound, exit_code=0)
    assert swept[-1] == {"swept": {"objects": 18, "findings": 0}}
    scrubbed = run("scrub", sound, exit_code=0)[-1]["scrubbed"]
    assert (scrubbed["segments"], scrubbed["findings"]) == (6, 0)


def test_deletable_objects_go_to_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    bucket = PlantedBucket(tmp_path)
    bucket.add_sound_topics()
    names = ("partial-upload", "extra-segment", "deleted-but-present", "failed-copy")
    for damage in PLANTED:
        if damage.name in names:
            damage.plant(bucket.add_topic(damage.name))
    age(bucket)
    # Young objects are nobody's yet, whatever the metadata says of them.
    young = bucket.add_topic("young")
    copied = young.copy_more(young.middle)
    bucket.write_dump()
    contents = {path.name: path.read_bytes() for path in bucket.folder.rglob("*.*")}

    rows = run("sweep", bucket, "--delete", exit_code=3)
    moved = [row for row in rows if "outcome" in row]
    assert len(moved) == 2 + 3 + 3 + 3
    for row in moved:
        assert row["outcome"] == "quarantined"
        assert not (bucket.folder / row["key"]).exists()
        target = bucket.folder / row["moved_to"]
        assert target.read_bytes() == contents[target.name]
    assert run("sweep", bucket, exit_code=0)[-1]["swept"]["findings"] == 0
    assert young.path(copied, "log").exists()
