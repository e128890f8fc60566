"""Reads a table's newest dead letters from an Iceberg catalog, without Spark and within named
bounds."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table

from isotherm.spark.tables import dead_letters
from isotherm.spark.tables.dead_letters import DeadLetterReading, DeadLetters
from isotherm.spark.tables.iceberg_snapshots import translated
from isotherm.spark.tables.topic_table import DEAD_LETTERS_SUFFIX

MANIFEST_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of the manifests in which the newest files are looked up."""


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
