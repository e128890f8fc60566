"""Reads a bucket's objects from an S3 Inventory instead of a listing: `manifest.json` and its
files.

S3 writes an inventory daily or weekly, and reading it needs no LIST request. CSV (gzip) and Parquet
are supported, ORC is refused. An inventory shows the bucket at its creation time, so ages are
relative to that time.

    manifest.json   sourceBucket, creationTimestamp (ms, as text), fileFormat, fileSchema,
                    files: [{key, size, MD5checksum}]
    CSV             no header, columns in the order of fileSchema, keys URL-encoded
    Parquet         columns bucket, key, size, last_modified_date, is_latest, is_delete_marker

In a versioned bucket only current objects count. Source: Amazon S3 user guide.
"""

from __future__ import annotations

import datetime
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

import pyarrow as pa
from pyarrow import csv, parquet
from pyspark.sql.pandas.types import from_arrow_schema

from isotherm.errors import ConfigError, CorruptMetadataError, UnsupportedVersionError
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_client import StoredObject
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.bucket_listing import LISTING_ARROW, listing_batches, spread_over
from isotherm.types import TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MANIFEST_SIZE_MAX = 64 * 1024 * 1024
_FILE_SIZE_MAX = 2 * 1024 * 1024 * 1024
# Names in a CSV's fileSchema -> names of the Parquet columns.
_CSV_NAMES = {
    "Bucket": "bucket",
    "Key": "key",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
}
_NEEDED = ("key", "size", "last_modified_date")
_USED = (*_NEEDED, "is_latest", "is_delete_marker")


@dataclass(frozen=True, slots=True)
class InventoryManifest:
    """`files` are keys in the store, or, if the manifest is a local file, paths below its
    `folder`."""

    created_ms: TimestampMs
    file_format: str
    columns: tuple[str, ...]
    files: tuple[str, ...]
    folder: str | None


def read_inventory_manifest(store: ObjectStoreSettings, place: str) -> InventoryManifest:
    """Read a manifest. `place` is a local file or a key in the store. Raises CorruptMetadataError
    if the file is not an inventory's manifest, and UnsupportedVersionError for ORC."""
    path = Path(place)
    if path.is_file():
        content, folder = path.read_bytes(), str(path.parent)
    else:
        content, folder = open_for_reading(store).get(place, _MANIFEST_SIZE_MAX), None
    try:
        members = json.loads(content)
        file_format = members["fileFormat"]
        columns = tuple(name.strip() for name in members["fileSchema"].split(","))
        manifest = InventoryManifest(
            int(members["creationTimestamp"]),
            file_format,
            tuple(_CSV_NAMES.get(name, name) for name in columns),
            tuple(file["key"] for file in members["files"]),
            folder,
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise CorruptMetadataError(f"not the manifest of an S3 Inventory file={place}") from error
    if file_format not in ("CSV", "Parquet"):
        raise UnsupportedVersionError(
            f"inventory has a format that is not read file={place} format={file_format}"
            " known=CSV,Parquet"
        )
    if file_format == "CSV":
        missing = [name for name in _NEEDED if name not in manifest.columns]
        if missing:
            raise ConfigError(
                f"inventory lacks columns file={place} missing={','.join(missing)}"
                " hint='configure it with size and last modified date'"
            )
    return manifest


def list_from_inventory(
    spark: SparkSession, store: ObjectStoreSettings, manifest: InventoryManifest
) -> DataFrame:
    """The inventory's objects with the columns of a listing (bucket_listing). Tasks read the
    files."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = store.create_layout()
        for batch in batches:
            for name in filter(None, batch.column(0).to_pylist()):
                yield from listing_batches(read_inventory_file(store, manifest, name), layout)

    files = pa.table({"file": pa.array(manifest.files, pa.string())})
    tasks = max(1, min(len(manifest.files), spread_over(spark)))
    frame = spark.createDataFrame(files, "file string").repartition(tasks)
    return frame.mapInArrow(read, from_arrow_schema(LISTING_ARROW))


def read_inventory_file(
    store: ObjectStoreSettings, manifest: InventoryManifest, name: str
) -> Iterator[StoredObject]:
    """The current objects below the store's URL in one file of the inventory."""
    table = _read_file(store, manifest, name)
    return _objects(table, store, is_encoded=manifest.file_format == "CSV")


def _read_file(store: ObjectStoreSettings, manifest: InventoryManifest, name: str) -> pa.Table:
    content = _content(store, manifest, name)
    if manifest.file_format == "Parquet":
        return parquet.read_table(io.BytesIO(content))
    names = list(manifest.columns)
    return csv.read_csv(
        io.BytesIO(gzip.decompress(content)),
        read_options=csv.ReadOptions(column_names=names),
        convert_options=csv.ConvertOptions(
            column_types={"key": pa.string(), "size": pa.int64()},
            timestamp_parsers=[csv.ISO8601],  # type: ignore[list-item]
        ),
    )


def _content(store: ObjectStoreSettings, manifest: InventoryManifest, name: str) -> bytes:
    if manifest.folder is None:
        return open_for_reading(store).get(name, _FILE_SIZE_MAX)
    beside = Path(manifest.folder) / name
    if not beside.is_file():
        beside = Path(manifest.folder) / Path(name).name
    return beside.read_bytes()


def _objects(
    table: pa.Table, store: ObjectStoreSettings, *, is_encoded: bool
) -> Iterator[StoredObject]:
    """The current objects below the store's URL, with keys relative to it."""
    prefix = urlsplit(store.url).path.strip("/") if store.scheme != "file" else ""
    prefix = f"{prefix}/" if prefix else ""
    columns = [name for name in _USED if name in table.column_names]
    rows: list[dict[str, Any]] = table.select(columns).to_pylist()
    for row in rows:
        if not _is(row.get("is_latest", True)) or _is(row.get("is_delete_marker", False)):
            continue
        key = unquote_plus(row["key"]) if is_encoded else row["key"]
        if key.startswith(prefix):
            modified = row["last_modified_date"]
            at = modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)
            modified_ms = int(at.timestamp() * 1000)
            yield StoredObject(key.removeprefix(prefix), row["size"] or 0, modified_ms)


def _is(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)
