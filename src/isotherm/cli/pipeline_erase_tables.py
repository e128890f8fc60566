"""The options of `isotherm pipeline erase` for tables of the topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.options import parse_pairs
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from isotherm.spark.jobs.erase_settings import ErasureSettings
    from isotherm.spark.tables.open_table import TablePlace


Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="[FORMAT:]NAME[@WAREHOUSE]",
        help="Delete the rows of the records from this table of `isotherm pipeline table`, and from"
        " its dead letters. FORMAT is iceberg, delta or parquet. May be given many times.",
    ),
]


Warehouse = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The folder or bucket of the tables that name no other."),
]


Catalog = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="For Iceberg tables: a catalog of PyIceberg's."),
]


TableOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A property of the Iceberg catalog, or for Delta and Parquet a setting of the object"
        " store, as --to-option of `table`. May be given many times.",
    ),
]


@dataclass(frozen=True, slots=True)
class TablesOfTopics:
    """The tables from which rows are deleted."""

    table: Tables = None
    warehouse: Warehouse = None
    catalog: Catalog = None
    table_option: TableOption = None


def check_tables(places: list[TablePlace], settings: ErasureSettings) -> None:
    from isotherm.remote.erasure.erased_piece import EraseAction

    if places and not settings.in_place:
        raise ConfigError(
            "a copy leaves the source as it is, and the tables are of the source"
            " options=--table,--to"
        )
    if places and settings.action is EraseAction.REDACT:
        raise ConfigError(
            "rows of tables are deleted, and a redaction keeps records options=--table,--action"
            " hint='redact the records without --table, and make the table anew after that'"
        )


def table_places(tables: TablesOfTopics) -> list[TablePlace]:
    from isotherm.spark.tables.open_table import TABLE_FORMATS, TablePlace

    places = []
    for text in tables.table or ():
        named, _, warehouse = text.partition("@")
        table_format, _, name = named.rpartition(":")
        if table_format not in ("", *TABLE_FORMATS) or not name:
            raise typer.BadParameter(
                f"a name, or FORMAT:NAME with one of {', '.join(TABLE_FORMATS)}: {text}",
                param_hint="--table",
            )
        places.append(
            TablePlace(
                table_format or TABLE_FORMATS[0],
                warehouse or tables.warehouse,
                name,
                tables.catalog if table_format in ("", TABLE_FORMATS[0]) else None,
                parse_pairs(tables.table_option),
            )
        )
    return places
