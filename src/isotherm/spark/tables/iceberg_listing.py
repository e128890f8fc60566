"""Lists the tables of topics in an Iceberg catalog, and reads their newest dead letters, without
Spark. The list takes the metadata of each table, and no data file. The letters are read within
named bounds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from isotherm.errors import ConfigError
from isotherm.spark.tables import dead_letters
from isotherm.spark.tables.dead_letters import DeadLetterReading, DeadLetters
from isotherm.spark.tables.iceberg_snapshots import OFFSETS, newest_with, note_of, translated
from isotherm.spark.tables.listed_table import TABLES_MAX, ListedTable
from isotherm.spark.tables.topic_table import DEAD_LETTERS_SUFFIX, Identity, stored_identity

MANIFEST_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of the manifests in which the newest files are looked up."""


def list_topic_tables(catalog: Catalog) -> list[ListedTable]:
    """The tables that `isotherm pipeline table` made, among the first TABLES_MAX of a catalog, by
    their names. Raises RemoteStorageError if the catalog or the store fails."""
    with translated("the tables cannot be listed"):
        identifiers = sorted(itertools.islice(_identifiers(catalog), TABLES_MAX))
        loaded = {identifier: _loaded(catalog, identifier) for identifier in identifiers}
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


def read_dead_letters(catalog: Catalog, name: str) -> DeadLetters:
    """The newest dead letters of the table `name`. Raises RemoteStorageError if the catalog or the
    store fails, or if a file is not one of dead letters."""
    with translated("the dead letters cannot be read"):
        try:
            table = catalog.load_table(name + DEAD_LETTERS_SUFFIX)
        except NoSuchTableError:
            return DeadLetters()
        reading = DeadLetterReading()
        for entry in _newest_files(table):
            if not reading.has_room:
                break
            path = entry.data_file.file_path
            opened: Any = table.io.new_input(path).open()
            with opened as source:
                reading.read(source, path)
        return reading.result()


def _newest_files(table: Table) -> list[ManifestEntry]:
    """The dead_letters.FILES_MAX newest data files, the newest first."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    manifests = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    entries: list[ManifestEntry] = []
    left = MANIFEST_BYTES_MAX
    for manifest in sorted(manifests, key=lambda m: m.sequence_number, reverse=True):
        left -= manifest.manifest_length
        if left < 0 or len(entries) >= dead_letters.FILES_MAX:
            break
        entries += manifest.fetch_manifest_entry(table.io)
    return sorted(entries, key=lambda e: e.sequence_number or 0, reverse=True)[
        : dead_letters.FILES_MAX
    ]
