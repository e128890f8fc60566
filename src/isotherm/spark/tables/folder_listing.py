"""Lists the Delta tables and the folders of Parquet files that `isotherm pipeline table` made in a
warehouse, without Spark. It reads the logs of their commits, and no data file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isotherm.errors import ConfigError
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.requirements import check_delta
from isotherm.spark.tables.folder_place import is_made, store_client
from isotherm.spark.tables.listed_table import TABLES_MAX, ListedTable
from isotherm.spark.tables.parquet_table import ParquetTable

if TYPE_CHECKING:
    from isotherm.spark.tables.delta_table import DeltaTopicTable


def list_folder_tables(settings: ObjectStoreSettings) -> list[ListedTable]:
    """The tables in the first TABLES_MAX folders of the warehouse, by their names. Raises
    RemoteStorageError if the store fails, and ConfigError if there is a Delta table and its package
    is missing."""
    if not is_made(settings):
        return []
    client = store_client(settings)
    listed = []
    for name in client.list_directories("")[:TABLES_MAX]:
        table: DeltaTopicTable | ParquetTable
        if client.list_level(f"{name}/_delta_log/")[1]:
            table = _delta_table(settings, name)
        elif client.list_level(f"{name}/_commits/")[1]:
            table = ParquetTable(settings, name)
        else:
            continue
        try:
            listed.append(table.listed())
        except ConfigError:
            continue  # another program's, or one of dead letters
    return [table for table in listed if table is not None]


def open_folder_table(
    settings: ObjectStoreSettings, table_format: str, name: str
) -> DeltaTopicTable | ParquetTable:
    """A table that was listed."""
    if table_format == "delta":
        return _delta_table(settings, name)
    return ParquetTable(settings, name)


def _delta_table(settings: ObjectStoreSettings, name: str) -> DeltaTopicTable:
    check_delta()
    from isotherm.spark.tables.delta_table import DeltaTopicTable

    return DeltaTopicTable(settings, name)
