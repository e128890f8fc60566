"""Lists the tables of topics in an Iceberg catalog, without Spark. It reads the metadata of each
table, and no data file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from isotherm.errors import ConfigError
from isotherm.spark.tables.iceberg_snapshots import OFFSETS, newest_with, note_of, translated
from isotherm.spark.tables.listed_table import TABLES_MAX, ListedTable
from isotherm.spark.tables.topic_table import DEAD_LETTERS_SUFFIX, Identity, stored_identity


def list_topic_tables(catalog: Catalog) -> list[ListedTable]:
    """The tables that `isotherm pipeline table` made, among the first TABLES_MAX of a catalog, by
    their names. Raises RemoteStorageError if the catalog or the store fails."""
    with translated("the tables cannot be listed"):
        identifiers = sorted(itertools.islice(_identifiers(catalog), TABLES_MAX))
        loaded = {each: _loaded(catalog, each) for each in identifiers}
    listed = []
    for identifier, table in loaded.items():
        if table is None:
            continue
        try:
            identity = stored_identity(table.properties, ".".join(identifier))
        except ConfigError:
            continue  # another program's, or one of dead letters
        dead = loaded.get((*identifier[:-1], identifier[-1] + DEAD_LETTERS_SUFFIX))
        listed.append(_listed(identifier, table, identity, dead))
    return listed


def _identifiers(catalog: Catalog) -> Iterator[Identifier]:
    for namespace in catalog.list_namespaces():
        yield from catalog.list_tables(namespace)


def _loaded(catalog: Catalog, identifier: Identifier) -> Table | None:
    """The table. None if it was dropped since it was listed."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def _listed(
    identifier: Identifier, table: Table, identity: Identity, dead: Table | None
) -> ListedTable:
    current, noted = table.current_snapshot(), newest_with(table, OFFSETS)
    offsets = {} if noted is None else json.loads(note_of(noted, OFFSETS) or "{}")
    return ListedTable(
        "iceberg",
        ".".join(identifier),
        identity,
        _rows(table),
        len(table.metadata.snapshots),
        None if current is None else current.timestamp_ms,
        {int(partition): offset for partition, offset in offsets.items()},
        0 if dead is None else _rows(dead),
    )


def _rows(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return int(summary["total-records"]) if "total-records" in summary else None
