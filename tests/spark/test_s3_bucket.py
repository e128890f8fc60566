"""The source on a real S3 server, its settings given as options."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, SparkSession

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker
from tests.support.s3_server import S3Server, find_versitygw


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path / "buckets") as running:
        yield running


def reader(spark: SparkSession, server: S3Server, **more: str) -> DataFrameReader:
    config = {name: value for name, value in server.config.items() if name != "url"}
    options = {"path": f"{server.config['url']}/tier", "subscribe": "t", **config, **more}
    return spark.read.format("isotherm").options(**options)


def test_bucket_is_read_with_settings_given_as_options(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    settings = ObjectStoreSettings.from_config(
        server.config | {"url": f"{server.config['url']}/tier", "key.prefix": "cluster-1/"}
    )
    maker = RecordSegmentMaker(tmp_path / "made", ObjectStoreRemoteStorageManager(settings))
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    for base in (0, 50):
        records = [NewRecord(base + n, b"%d" % (base + n), b"v" * 100) for n in range(50)]
        maker.tier(owner, [build_batch(records, base_offset=base)])
    frame = reader(spark, server, **{"key.prefix": "cluster-1/"}).load()
    rows = frame.selectExpr("offset", "CAST(key AS STRING)").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(n, str(n)) for n in range(100)]


def test_wrong_credentials_are_an_error_that_shows_no_secret(
    spark: SparkSession, server: S3Server
) -> None:
    wrong = {"aws.secret.access.key": "not-the-secret-that-was-set"}
    with pytest.raises(AnalysisException) as refused:
        reader(spark, server, **wrong).load().count()
    assert "cannot be listed" in str(refused.value)
    assert wrong["aws.secret.access.key"] not in str(refused.value)
