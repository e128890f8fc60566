"""Opens the table of a topic by the names that users give, for the command that writes it and
for queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isotherm.errors import ConfigError
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_check import check_store
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.options import SourceOptions, storage_url
from isotherm.spark.requirements import check_delta, check_iceberg
from isotherm.spark.tables.folder_place import check_warehouse, local_folder
from isotherm.spark.tables.topic_table import TopicTable

if TYPE_CHECKING:
    from isotherm.spark.tables.iceberg_upkeep import IcebergKept

TABLE_FORMATS = ("iceberg", "delta", "parquet")
DEFAULT_WAREHOUSE = "isotherm-warehouse"
_NAMESPACE = "kafka"

# The options of the source that the table determines.
_CHOSEN = (
    "subscribe", "subscribepattern", "assign", "columns", "includeheaders",
    "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
    "endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp",
)  # fmt: skip


@dataclass(frozen=True)
class TablePlace:
    """The place of a table. The default `name` is that of `iceberg_name`, or for Delta and Parquet
    TOPIC. `properties` are those of the Iceberg catalog, or settings of the object store. The
    default `warehouse` is that of the named catalog, or DEFAULT_WAREHOUSE without one."""

    table_format: str = "iceberg"
    warehouse: str | None = None
    name: str | None = None
    catalog: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def open_table(topic: str, place: TablePlace, *, writes: bool) -> TopicTable:
    """The table, which need not exist yet. Raises ConfigError for an invalid place."""
    if place.table_format not in TABLE_FORMATS:
        raise ConfigError(
            f"no such format option=to value={place.table_format} known={','.join(TABLE_FORMATS)}"
        )
    if place.table_format != "iceberg":
        if place.catalog is not None:
            raise ConfigError("a catalog is for --to iceberg")
        config = {**place.properties, "url": storage_url(place.warehouse or DEFAULT_WAREHOUSE)}
        settings = ObjectStoreSettings.from_config(config)
        if (folder := local_folder(settings)) is not None:
            check_warehouse(folder)
        check_store(settings, writes=writes)
        if place.table_format == "delta":
            check_delta()
            from isotherm.spark.tables.delta_table import DeltaTopicTable

            return DeltaTopicTable(settings, place.name or topic)
        from isotherm.spark.tables.parquet_table import ParquetTable

        return ParquetTable(settings, place.name or topic)
    check_iceberg()
    from isotherm.spark.tables.iceberg_catalogs import open_catalog
    from isotherm.spark.tables.iceberg_table import IcebergTable

    has_catalog = place.catalog is not None or bool(place.properties)
    warehouse = place.warehouse or (None if has_catalog else DEFAULT_WAREHOUSE)
    opened = open_catalog(place.catalog, place.properties, warehouse)
    return IcebergTable(opened, place.name or iceberg_name(topic))


def iceberg_name(topic: str) -> str:
    """The default name of a topic's Iceberg table: kafka.db_public_cust for db.public.Cust. Every
    catalog and engine can name it: a dot would begin a nested namespace, and Trino, Hive's and
    Glue's catalogs know lower case alone.

    Topics may have one name together: `check_topic` refuses the second.
    """
    return f"{_NAMESPACE}.{topic.replace('.', '_').lower()}"


def kept_tables(table: TopicTable) -> Sequence[IcebergKept]:
    """The tables of rows and of dead letters, for upkeep.

    The format must have passed `check_upkeep`.
    """
    from isotherm.spark.tables.iceberg_table import IcebergTable

    assert isinstance(table, IcebergTable), "check_upkeep comes first"
    return table.kept()


def check_chosen(texts: Mapping[str, str]) -> None:
    """Raise ConfigError for options of the source that the table determines."""
    if chosen := sorted(name for name in texts if name.lower() in _CHOSEN):
        raise ConfigError(
            f"the table decides these options of the source options={','.join(chosen)}"
        )


def table_source_options(texts: Mapping[str, str]) -> SourceOptions:
    """The options of the source for one topic, as a table needs them."""
    texts = {**texts, "includeHeaders": "true"}
    if not {"isolationlevel", "kafka.isolation.level"} & {name.lower() for name in texts}:
        texts["isolationLevel"] = "read_committed"
    return parse_options(texts)
