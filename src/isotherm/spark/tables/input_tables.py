"""Reads Delta and Iceberg tables as DataFrames without their jars, with delta-rs and PyIceberg.

There are no jars of the two for the newest Spark. The version that the table has now is read: a
task for each data file. Rows are Spark's from there on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from isotherm.errors import ConfigError, UnsupportedVersionError
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.numbered_tasks import each_of, spark_schema
from isotherm.spark.options import storage_url
from isotherm.spark.requirements import check_delta, check_iceberg

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 8192
_METADATA_SUFFIX = ".metadata.json"


def delta_frame(spark: SparkSession, path: str, settings: Mapping[str, str]) -> DataFrame:
    """The rows of a Delta table in a folder or a bucket, whose settings are those of the remote
    storage (`s3.endpoint.url`). Raises ConfigError if there is no such table, and
    UnsupportedVersionError for one that delta-rs cannot read in parts: with deletion vectors or
    mapped columns."""
    check_delta()
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaProtocolError, TableNotFoundError

    from isotherm.spark.tables.delta_table import storage_options, translated
    from isotherm.spark.tables.folder_place import plain_url

    store = ObjectStoreSettings.from_config({**settings, "url": storage_url(path)})
    place, options = plain_url(store.url), storage_options(store)
    with translated("the table cannot be read"):
        try:
            table = DeltaTable(place, storage_options=options)
            dataset = table.to_pyarrow_dataset()
        except TableNotFoundError as error:
            raise ConfigError(f"there is no such Delta table path={place}") from error
        except DeltaProtocolError as error:
            raise UnsupportedVersionError(
                f"the Delta table has a feature that delta-rs does not read path={place}"
                f" reason={str(error)!r} hint='write a copy without it'"
            ) from error
        count = sum(1 for _ in dataset.get_fragments())
    schema = _plain(dataset.schema)
    read = functools.partial(_delta_rows, place, options, table.version(), schema)
    return each_of(spark, count, read, schema)


def _delta_rows(
    place: str, options: dict[str, str], version: int, schema: pa.Schema, number: int
) -> Iterator[pa.RecordBatch]:
    from deltalake import DeltaTable

    dataset = DeltaTable(place, version=version, storage_options=options).to_pyarrow_dataset()
    fragments: list[Any] = sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)
    for batch in fragments[number].to_batches(
        schema=dataset.schema, batch_size=_BATCH_ROWS, use_threads=False
    ):
        yield batch.cast(schema)


def iceberg_frame(spark: SparkSession, name: str, settings: Mapping[str, str]) -> DataFrame:
    """The rows of an Iceberg table: its name in a catalog, or the path of a metadata file.

    `settings` has `catalog` (its name in PyIceberg's configuration), `warehouse` and properties of
    the catalog, such as `uri`. Raises ConfigError if there is no such table. A task has a whole
    data file in memory.
    """
    check_iceberg()
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.table import StaticTable

    from isotherm.spark.tables.iceberg_catalogs import open_catalog
    from isotherm.spark.tables.iceberg_snapshots import translated

    properties = dict(settings)
    if name.endswith(_METADATA_SUFFIX):
        table: Any = StaticTable.from_metadata(name, properties)
    else:
        catalog, warehouse = properties.pop("catalog", None), properties.pop("warehouse", None)
        if not (catalog or warehouse or properties):
            raise ConfigError(
                f"the catalog of the Iceberg table is not named table={name}"
                " hint='--read-option warehouse=, catalog= or uri=; or the path of its newest"
                " .metadata.json'"
            )
        with translated("the table cannot be read"):
            try:
                table = open_catalog(catalog, properties, warehouse).load_table(name)
            except NoSuchTableError as error:
                raise ConfigError(f"there is no such Iceberg table table={name}") from error
    with translated("the table cannot be read"):
        tasks = sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
    schema = _plain(schema_to_pyarrow(table.schema(), include_field_ids=False))
    read = functools.partial(_iceberg_rows, table.metadata, table.io, tasks, schema)
    return each_of(spark, len(tasks), read, schema)


def _iceberg_rows(
    metadata: TableMetadata,
    io: FileIO,
    tasks: Sequence[FileScanTask],
    schema: pa.Schema,
    number: int,
) -> Iterator[pa.RecordBatch]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue())
    for batch in scan.to_record_batches([tasks[number]]):
        for start in range(0, len(batch), _BATCH_ROWS):
            yield batch.slice(start, _BATCH_ROWS).cast(schema)


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema with types that Spark takes from Arrow, and without metadata of fields."""
    from isotherm.spark.row_schema import arrow_schema

    return arrow_schema(spark_schema(schema))
