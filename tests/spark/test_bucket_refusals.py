"""sweep by an S3 Inventory, and its refusals: metadata that may be incomplete."""

from __future__ import annotations

import datetime
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import PolicyViolationError
from isotherm.remote.metadata.wire.serde import encode_event
from tests.support.metadata_dump import write_dump
from tests.support.planted_bucket import PlantedBucket
from tests.support.planted_damage import PLANTED

PLANTED_HERE = ("extra-segment", "log-missing", "partial-upload")
TWO_DAYS_S = 2 * 86_400
Dump = Callable[[PlantedBucket, Path], Path]


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    """A bucket with damage, two days old."""
    del spark
    bucket = PlantedBucket(tmp_path_factory.mktemp("planted"))
    bucket.add_sound_topics()
    for damage in PLANTED:
        if damage.name in PLANTED_HERE:
            damage.plant(bucket.add_topic(damage.name))
    bucket.write_dumps()
    for path in bucket.folder.rglob("*"):
        stat = path.stat()
        os.utime(path, (stat.st_atime - TWO_DAYS_S, stat.st_mtime - TWO_DAYS_S))
    return bucket


def sweep(bucket: PlantedBucket, *arguments: str, dump: Path | None = None) -> list[dict[str, Any]]:
    place = ["--path", str(bucket.folder), "-o", "key.prefix=tiered/", "--json"]
    metadata = ["--dump", str(dump or bucket.dump)]
    result = CliRunner().invoke(app, ["pipeline", "sweep", *place, *metadata, *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 3, result.output
    rows = (json.loads(line) for line in result.stdout.splitlines())
    return [row for row in rows if "cost" not in row]


def objects(bucket: PlantedBucket) -> Iterator[tuple[str, int, datetime.datetime]]:
    for path in sorted(bucket.folder.rglob("*.*")):
        at = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
        yield str(path.relative_to(bucket.folder)), path.stat().st_size, at


def write_inventory(bucket: PlantedBucket, folder: Path, file_format: str) -> Path:
    schema = {"CSV": "Bucket, Key, Size, LastModifiedDate", "Parquet": "message s3.inventory { }"}
    folder.mkdir()
    found = list(objects(bucket))
    if file_format == "CSV":
        lines = [
            f'"b","{quote(key)}","{size}","{at:%Y-%m-%dT%H:%M:%S.000Z}"' for key, size, at in found
        ]
        (folder / "data").write_bytes(gzip.compress("\n".join(lines).encode()))
    else:
        columns = zip(*found, strict=True)
        names = ("key", "size", "last_modified_date")
        parquet.write_table(pa.table(dict(zip(names, columns, strict=True))), folder / "data")
    manifest = folder / "manifest.json"
    made = datetime.datetime.now(datetime.UTC)
    members = {
        "sourceBucket": "b",
        "creationTimestamp": str(int(made.timestamp() * 1000)),
        "fileFormat": file_format,
        "fileSchema": schema[file_format],
        "files": [{"key": "data", "size": 1, "MD5checksum": "x"}],
    }
    manifest.write_text(json.dumps(members))
    return manifest


@pytest.mark.nightly
def test_inventory_tells_what_a_listing_tells(planted: PlantedBucket, tmp_path: Path) -> None:
    listed = sweep(planted)
    assert {row["topic"] for row in listed if "topic" in row} == set(PLANTED_HERE)
    times = ("modified_ms",)
    for file_format in ("CSV", "Parquet"):
        manifest = write_inventory(planted, tmp_path / file_format, file_format)
        swept = sweep(planted, "--inventory", str(manifest))
        for given, expected in zip(swept, listed, strict=True):
            # An inventory's times have a resolution of seconds.
            assert [n for n in given if n not in times and given[n] != expected[n]] == []


def head_missing(bucket: PlantedBucket, folder: Path) -> Path:
    records = [(None, encode_event(event)) for event in bucket.events]
    write_dump(folder, 0, records[2:], first_offset=2)
    return folder


def of_another_bucket(bucket: PlantedBucket, folder: Path) -> Path:
    other = PlantedBucket(folder, seed=1)
    other.add_sound_topics()
    other.write_dumps()
    return other.dump


@pytest.mark.parametrize(
    ("dump_of", "reason"),
    [
        (head_missing, "head missing"),
        (of_another_bucket, "bucket and metadata do not belong together"),
    ],
)
def test_nothing_is_taken_away_on_metadata_that_is_not_whole(
    planted: PlantedBucket, tmp_path: Path, dump_of: Dump, reason: str
) -> None:
    before = list(objects(planted))
    with pytest.raises(PolicyViolationError, match=reason) as refused:
        sweep(planted, "--delete", dump=dump_of(planted, tmp_path))
    assert "\n" not in str(refused.value)
    assert list(objects(planted)) == before


def test_metadata_beyond_the_bytes_that_may_be_read_is_refused(planted: PlantedBucket) -> None:
    with pytest.raises(PolicyViolationError, match="would read more than it may"):
        sweep(planted, "--max-bytes", "100")
