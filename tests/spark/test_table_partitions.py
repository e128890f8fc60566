"""`isotherm pipeline table --partition-by`: a file has one day's rows, so readers skip the files of
other days.

Oracle: the records put into the bucket. Readers: PyIceberg, delta-rs, DuckDB and Spark.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession

import isotherm.spark
from isotherm.errors import ConfigError
from isotherm.record.batch import NewRecord, build_batch
from tests.spark.conftest import Tier
from tests.spark.test_table import OTHER, OWNER
from tests.spark.test_topic_frame import places
from tests.support.topic_tables import Row, load_table, rows_of, run_table

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01
# A day before 1970, the last of year 9999, and three that follow one another.
DAYS = {-1: "1969-12-31", NEW_YEAR_MS + DAY_MS - 1: "2026-01-01",
        NEW_YEAR_MS + DAY_MS: "2026-01-02",
        NEW_YEAR_MS + 2 * DAY_MS + 7: "2026-01-03", 253_402_300_799_999: "9999-12-31"}  # fmt: skip
FORMATS = ["iceberg", "delta", "parquet"]


def put_days(tier: Tier, start: int, count: int) -> None:
    """Add records of all days in turn to both partitions."""
    moments = list(DAYS)
    for owner in (OWNER, OTHER):
        records = [
            NewRecord(moments[n % len(moments)], b"key-%d" % (n % 3), b'{"n":%d}' % n)
            for n in range(start, start + count)
        ]
        tier.maker.tier(owner, [build_batch(records, base_offset=start)])
        for offset, record in enumerate(records, start):
            tier.records[owner.topic, owner.partition, offset] = record


def files_by_day(lake: Path, to: str) -> dict[str, list[Path]]:
    """Day of its rows -> the files of the table, as its own metadata names them."""
    if to == "iceberg":
        tasks = load_table(lake, "kafka.prices").scan().plan_files()
        files = [Path(task.file.file_path.removeprefix("file://")) for task in tasks]
    elif to == "delta":
        uris = DeltaTable(lake / "prices").file_uris()
        files = [Path(unquote(uri.removeprefix("file://"))) for uri in uris]
    else:
        files = list((lake / "prices").glob("timestamp_day=*/*.parquet"))
    found: dict[str, list[Path]] = {}
    for file in files:
        rows = parquet.read_table(file, columns=["timestamp"], partitioning=None)
        milliseconds = rows.column("timestamp").cast("int64").to_numpy() // 1000
        (day,) = {DAYS[int(millisecond)] for millisecond in milliseconds}
        assert file.parent.name == f"timestamp_day={day}"
        found.setdefault(day, []).append(file)
    return found


def rows_of_one_day(lake: Path, to: str) -> tuple[list[Row], int]:
    """The rows of January 2nd by the reader's own filter, and the number of files that it opens."""
    if to == "iceberg":
        scan = load_table(lake, "kafka.prices").scan(
            "timestamp >= '2026-01-02T00:00:00+00:00' and timestamp < '2026-01-03T00:00:00+00:00'"
        )
        return scan.to_arrow().to_pylist(), len(list(scan.plan_files()))
    day = ("timestamp_day", "=", "2026-01-02")
    if to == "delta":
        table = DeltaTable(lake / "prices")
        rows = table.to_pyarrow_table(filters=[day]).to_pylist()
        return rows, len(table.file_uris(file_pruning_predicate="timestamp_day = '2026-01-02'"))
    with duckdb.connect() as engine:
        folder = lake / "prices"
        chosen = engine.sql(
            f"""SELECT "partition", "offset", "timestamp", filename
            FROM read_parquet('{folder}/*/*.parquet', filename = true, hive_partitioning = true)
            WHERE timestamp_day = '2026-01-02'"""
        ).fetchall()
    rows = [{"partition": row[0], "offset": row[1], "timestamp": row[2]} for row in chosen]
    return rows, len({row[3] for row in chosen})


@pytest.mark.parametrize("to", FORMATS)
def test_files_are_of_one_day_and_readers_open_those_of_theirs(
    spark: SparkSession, tier: Tier, tmp_path: Path, to: str
) -> None:
    lake = tmp_path / "lake"
    options = ("--to", to, "--partition-by", "day", "--warehouse", str(lake))
    for start, count in ((0, 23), (23, 40)):
        put_days(tier, start, count)
        run_table("prices", tier.folder, *options)
    by_day = files_by_day(lake, to)
    assert by_day.keys() == set(DAYS.values())

    rows, opened = rows_of_one_day(lake, to)
    assert opened == len(by_day["2026-01-02"])
    expected = {
        (partition, offset)
        for (_, partition, offset), record in tier.records.items()
        if record.timestamp_ms == NEW_YEAR_MS + DAY_MS
    }
    assert {(row["partition"], row["offset"]) for row in rows} == expected
    assert len(rows) == len(expected)

    put_days(tier, 63, 5)
    read = {"path": tier.folder.as_uri()}
    frame = isotherm.spark.topic(spark, "prices", read, to=to, warehouse=str(lake))
    assert places(frame) == sorted((at, offset) for _, at, offset in tier.records)
    with pytest.raises(ConfigError, match="option=--partition-by its_value=day value=none"):
        run_table("prices", tier.folder, "--to", to, "--warehouse", str(lake))


@pytest.mark.usefixtures("spark")
def test_compaction_keeps_to_the_days(tier: Tier, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = ("--partition-by", "day", "--warehouse", str(lake))
    for start in (0, 20):
        put_days(tier, start, 20)
        run_table("prices", tier.folder, *options)
    assert {len(files) for files in files_by_day(lake, "iceberg").values()} != {1}
    run_table("prices", tier.folder, *options, "--compact")
    assert {len(files) for files in files_by_day(lake, "iceberg").values()} == {1}
    rows = rows_of(load_table(lake, "kafka.prices"))
    found = {(row["topic"], row["partition"], row["offset"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    assert found == {place: record.value for place, record in tier.records.items()}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("to", ["iceberg", "delta"])
def test_newest_values_stay_in_the_folder_of_their_day(tier: Tier, tmp_path: Path, to: str) -> None:
    lake = tmp_path / "lake"
    options = ("--to", to, "--mode", "latest", "--key", "string", "--value", "json",
               "--partition-by", "day", "--warehouse", str(lake))  # fmt: skip
    newest: dict[tuple[int, str], Any] = {}
    for start, count in ((0, 20), (20, 21)):
        put_days(tier, start, count)
        run_table("prices", tier.folder, *options)
    for (_, partition, _), record in sorted(tier.records.items(), key=lambda each: each[0]):
        assert record.key is not None
        assert record.value is not None
        newest[partition, record.key.decode()] = json.loads(record.value)
    paths = [str(file) for files in files_by_day(lake, to).values() for file in files]
    found: dict[tuple[int, str], Any] = {}
    for path in paths:
        for row in parquet.read_table(
            path, columns=["partition", "key", "value"], partitioning=None
        ).to_pylist():
            assert (row["partition"], row["key"]) not in found
            found[row["partition"], row["key"]] = row["value"]
    assert found == newest


@pytest.mark.usefixtures("spark")
def test_hours_are_partitions_too(tier: Tier, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    records = [NewRecord(NEW_YEAR_MS + n * 1_800_000, None, b"v") for n in range(4)]
    tier.maker.tier(OWNER, [build_batch(records, base_offset=0)])
    run_table("prices", tier.folder, "--partition-by", "hour", "--warehouse", str(lake))
    scan = load_table(lake, "kafka.prices").scan("timestamp < '2026-01-01T01:00:00+00:00'")
    (file,) = (each.file for each in scan.plan_files())
    assert file.record_count == 2
    assert "/timestamp_hour=2026-01-01-00/" in file.file_path
    moments = [row["timestamp"] for row in scan.to_arrow().to_pylist()]
    assert moments == [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 30)]
