"""The manifest and files of an S3 Inventory as S3 writes them, without Spark."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from isotherm.errors import ConfigError, CorruptMetadataError, UnsupportedVersionError
from isotherm.remote.storage.object_client import StoredObject
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.s3_inventory import read_inventory_file, read_inventory_manifest

STORE = ObjectStoreSettings(url="s3://bucket/kafka")
AT = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
AT_MS = int(AT.timestamp() * 1000)


def write_manifest(folder: Path, file_format: str, schema: str, name: str) -> str:
    path = folder / "manifest.json"
    members = {
        "sourceBucket": "bucket",
        "version": "2016-11-30",
        "creationTimestamp": str(AT_MS),
        "fileFormat": file_format,
        "fileSchema": schema,
        "files": [{"key": f"inventory/data/{name}", "size": 1, "MD5checksum": "x"}],
    }
    path.write_text(json.dumps(members))
    return str(path)


def test_csv_has_encoded_keys_and_only_current_objects_count(tmp_path: Path) -> None:
    schema = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate"
    rows = [
        '"bucket","kafka/t%3D1/a+b.log","v1","true","false","10","2026-03-01T12:00:00.000Z"',
        '"bucket","kafka/old.log","v1","false","false","10","2026-03-01T12:00:00.000Z"',
        '"bucket","kafka/gone.log","v2","true","true","","2026-03-01T12:00:00.000Z"',
        '"bucket","other/x.log","v1","true","false","10","2026-03-01T12:00:00.000Z"',
    ]
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    manifest = read_inventory_manifest(STORE, write_manifest(tmp_path, "CSV", schema, "one.csv.gz"))
    assert manifest.created_ms == AT_MS
    found = list(read_inventory_file(STORE, manifest, manifest.files[0]))
    assert found == [StoredObject("t=1/a b.log", 10, AT_MS)]


def test_parquet_keys_are_as_they_are(tmp_path: Path) -> None:
    table = pa.table(
        {
            "bucket": ["bucket", "bucket"],
            "key": ["kafka/a%b.log", "elsewhere.log"],
            "size": pa.array([3, 4], pa.int64()),
            "last_modified_date": pa.array([AT, AT], pa.timestamp("ms")),
        }
    )
    parquet.write_table(table, tmp_path / "one.parquet")
    place = write_manifest(tmp_path, "Parquet", "message s3.inventory { }", "one.parquet")
    manifest = read_inventory_manifest(STORE, place)
    found = list(read_inventory_file(STORE, manifest, manifest.files[0]))
    assert found == [StoredObject("a%b.log", 3, AT_MS)]


@pytest.mark.parametrize(
    ("file_format", "schema", "error"),
    [
        ("ORC", "struct<bucket:string>", UnsupportedVersionError),
        ("CSV", "Bucket, Key", ConfigError),
    ],
)
def test_inventory_that_does_not_serve_is_refused(
    tmp_path: Path, file_format: str, schema: str, error: type[Exception]
) -> None:
    place = write_manifest(tmp_path, file_format, schema, "one")
    with pytest.raises(error):
        read_inventory_manifest(STORE, place)


def test_damaged_manifest_is_named(tmp_path: Path) -> None:
    place = tmp_path / "manifest.json"
    place.write_text("{}")
    with pytest.raises(CorruptMetadataError, match=r"manifest\.json"):
        read_inventory_manifest(STORE, str(place))
