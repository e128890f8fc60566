"""`isotherm pipeline table` by a REST catalog, its files in a bucket of S3.

Readers: PyIceberg and DuckDB.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from isotherm.errors import RemoteStorageError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition
from oracle.iceberg_catalog import rest_catalog
from oracle.jars import OracleUnavailableError
from tests.support.record_segments import RecordSegmentMaker
from tests.support.s3_server import S3Server, find_versitygw
from tests.support.topic_tables import rows_of, run_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
OWNER = TopicIdPartition(uuid.UUID(int=9), "prices", 0)


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path_factory.mktemp("s3") / "buckets", keep_alive=False) as running:
        yield running


@pytest.fixture(scope="module")
def catalog(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    try:
        with rest_catalog(tmp_path_factory.mktemp("catalog"), s3_server.config) as running:
            yield running
    except OracleUnavailableError as missing:
        pytest.skip(str(missing))


def options_of(catalog: Mapping[str, str], server: S3Server) -> list[str]:
    properties = [f"--to-option={key}={value}" for key, value in catalog.items()]
    source = [f"--option={key}={value}" for key, value in server.config.items() if key != "url"]
    return [*properties, *source, "--value", "json"]


def test_table_in_a_bucket_by_a_rest_catalog(
    s3_server: S3Server, catalog: Mapping[str, str], tmp_path: Path
) -> None:
    tier = f"{s3_server.config['url']}/tier"
    storage = ObjectStoreRemoteStorageManager(
        ObjectStoreSettings.from_config(s3_server.config | {"url": tier})
    )
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    options = options_of(catalog, s3_server)

    def put(start: int, *fields: str) -> None:
        whole = {"n": 0, "inner": dict.fromkeys(fields, 0)}
        values = [
            *(json.dumps(whole | {"n": n}).encode() for n in range(start, start + 29)),
            b"\xff",
        ]
        records = [
            NewRecord(1_767_225_600_000 + n * 3_600_000, b"%d" % n, value)
            for n, value in enumerate(values, start)
        ]
        maker.tier(OWNER, [build_batch(records, base_offset=start)])

    # Without a warehouse the catalog's own is taken; with one, its name goes to the server.
    put(0, "x")
    run_table("prices", tier, *options, "--partition-by", "day")
    put(30, "x", "y")
    options += ["--partition-by", "day"]
    assert run_table("prices", tier, *options, "--warehouse", "lake")["offsets"] == 30
    run_table("prices", tier, *options, "--compact")
    assert run_table("prices", tier, *options)["offsets"] == 0

    opened = load_catalog("rest", **catalog)
    table = opened.load_table("kafka.prices")
    rows = rows_of(table)
    good = [offset for offset in range(60) if offset % 30 != 29]
    assert [row["offset"] for row in rows] == good
    # The column y has come with the second run.
    inner = [{"x": 0, "y": None if n < 30 else 0} for n in good]
    assert [row["value"] for row in rows] == [
        {"n": n, "inner": each} for n, each in zip(good, inner, strict=True)
    ]
    files = [file.file for file in table.scan().plan_files()]
    assert all(file.file_path.startswith(s3_server.config["url"]) for file in files)
    assert len(files) == len({str(file.partition) for file in files}) == 3
    dead = rows_of(opened.load_table("kafka.prices_dead_letters"))
    assert [row["offset"] for row in dead] == [29, 59]
    with duckdb.connect() as engine:
        read = table.scan(selected_fields=("offset",)).to_arrow()  # noqa: F841
        assert engine.sql('SELECT sum("offset") FROM read').fetchall() == [(sum(good),)]


@pytest.mark.nightly
def test_a_catalog_that_is_away_is_named(s3_server: S3Server, catalog: Mapping[str, str]) -> None:
    tier = f"{s3_server.config['url']}/tier"
    away = [*options_of(catalog, s3_server), "--to-option", "uri=http://127.0.0.1:1/iceberg/"]
    with pytest.raises(
        RemoteStorageError, match=r"cannot be opened uri=http:.*: the catalog fails"
    ):
        run_table("prices", tier, *away)
