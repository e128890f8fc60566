"""The commands of the pages of sweep, scrub and rebuild give what the pages show."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from tests.support.planted_bucket import PlantedBucket
from tests.support.planted_damage import PLANTED

PAGES = Path(__file__).parents[2] / "docs" / "pipeline"
RUN = re.compile(r"<!-- run -->\n```console\n\$ isotherm (.*)\n((?:.*\n)*?)```\n")
OF_SWEEP = ("partial-upload", "extra-segment", "deleted-but-present", "failed-copy")
OF_SCRUB = ("bit-flipped-in-a-record", "offset-index-wrong", "manifest-damaged")
TWO_DAYS_S = 2 * 86_400


@pytest.fixture
def bucket(spark: SparkSession, tmp_path: Path) -> Iterator[PlantedBucket]:
    """The bucket in the folder of the commands: two sound topics, and some with damage.

    All objects are two days old, except for one upload that has just been made.
    """
    del spark
    planted = PlantedBucket(tmp_path)
    planted.add_sound_topics()
    for damage in PLANTED:
        if damage.name in OF_SWEEP + OF_SCRUB:
            damage.plant(planted.add_topic(damage.name))
    # All with one time, so that the ids decide which of equal copies is read.
    stored_s = tmp_path.stat().st_mtime - TWO_DAYS_S
    for path in planted.folder.rglob("*"):
        os.utime(path, (stored_s, stored_s))
    young = planted.topics["sound-0"]
    young.copy_more(young.middle)
    planted.write_dumps()
    before = Path.cwd()
    os.chdir(tmp_path)
    yield planted
    os.chdir(before)


@pytest.mark.nightly
def test_pages_show_what_the_jobs_print(bucket: PlantedBucket) -> None:
    contents = {path.name: path.read_bytes() for path in bucket.folder.rglob("*.*")}
    for name in ("scrub.md", "rebuild.md", "sweep.md"):
        for arguments, shown in RUN.findall((PAGES / name).read_text(encoding="utf-8")):
            result = CliRunner().invoke(app, [*arguments.split(), "--master", "local[2]"])
            given = "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())
            assert result.exit_code == 3, result.output
            assert given.strip("\n") == shown.strip("\n")

    # The last command was the deletion: the moved objects are in quarantine, complete.
    quarantine = bucket.folder / "isotherm-quarantine"
    moved = list(quarantine.rglob("*.*"))
    assert len(moved) == 2 + 3 + 3 + 3
    for path in moved:
        _, *key = path.relative_to(quarantine).parts
        assert path.read_bytes() == contents[path.name]
        assert not bucket.folder.joinpath(*key).exists()
    # The young upload is not touched: it may still be running.
    young = bucket.topics["sound-0"]
    assert len(list(young.path(young.middle, "log").parent.glob("*.log"))) == 4
