"""Maintains an Iceberg table: merged files, deleted rows, expired snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from isotherm.errors import ConfigError, TableOvertakenError
from isotherm.spark.tables.iceberg_files import arrow_columns, check_column_names, place_of
from isotherm.spark.tables.iceberg_snapshots import (
    COMMIT_TRIES,
    FileChange,
    ancestors,
    commit_snapshot,
    newest_with,
    note_of,
    translated,
    whole_files,
)
from isotherm.spark.tables.parquet_files import Place
from isotherm.spark.tables.topic_table import overtaken
from isotherm.spark.tables.upkeep_plan import DataFile, Expired
from isotherm.types import TimestampMs


class IcebergKept:
    """One Iceberg table in the driver, in the state of its last read. Not thread-safe.

    A topic has two: one of rows, one of dead letters.
    `load` reads the table. A snapshot of upkeep repeats the note `carried` of the newest snapshot
    that has it. The next run needs the newest snapshot with the note `needed`, which must not
    expire.
    """

    def __init__(self, name: str, load: Callable[[], Table], *, carried: str, needed: str) -> None:
        self.name = name
        self._load = load
        self._carried = carried
        self._needed = needed
        self._table: Table | None = None

    @property
    def place(self) -> Place:
        return place_of(self._known)

    @property
    def schema(self) -> pa.Schema:
        """The schema of new files: all columns of the table, including those that other programs
        added.
        """
        return arrow_columns(self._known)

    def read(self) -> None:
        """Read the current state of the table."""
        with translated("the table cannot be read"):
            self._table = self._load()

    def files(self) -> list[DataFile]:
        """The files of the table. Raises ConfigError if rows were deleted without rewriting their
        files, or columns were renamed."""
        check_column_names(self._known, self.name)
        hint = "rewrite the files by the engine that deleted the rows"
        return [self._described(file) for file in whole_files(self._known, self.name, hint)]

    def replace(
        self,
        added: Sequence[str],
        removed: Sequence[str],
        *,
        keeps_rows: bool,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Replace files in one commit. `check` is called right before each try, and may raise.
        Raises TableOvertakenError if one of the removed files is no longer in the table, or was
        changed. Nothing is committed then."""

        def summary() -> Mapping[str, str]:
            if check is not None:
                check()
            newest = newest_with(self._known, self._carried)
            return {} if newest is None else {self._carried: note_of(newest, self._carried) or ""}

        with translated("the table cannot be written"):
            change = FileChange(added, removed, keeps_rows=keeps_rows)
            commit_snapshot(self._known, change, summary, self._lost())

    def named_files(self) -> set[str]:
        """The files that any snapshot names."""
        return named_files(self._known, self._known.snapshots())

    def data_folder(self) -> tuple[FileIO, str]:
        """The folder of the table's data files, without a slash at its end, and how it is read."""
        return self._known.io, self._known.location_provider().new_data_location("")[:-1]

    def expire(self, before_ms: TimestampMs) -> Expired:
        """Expire older snapshots, except the newest one, those that the next run needs, and those
        with a tag or a branch. Then delete the files that no snapshot names any more."""
        if self._known.properties.get("gc.enabled", "true").lower() == "false":
            raise ConfigError(
                f"other tables may use the table's files too table={self.name}"
                " property=gc.enabled hint='expire snapshots where the table is managed'"
            )
        with translated("snapshots cannot expire"):
            for _ in range(COMMIT_TRIES):
                gone = expirable_snapshots(self._known, before_ms, self._needed)
                if not gone:
                    return Expired(0, 0)
                # Read before the commit, after which the snapshots cannot be found any more.
                named = named_files(self._known, gone)
                if self._remove(gone):
                    self._known.refresh()
                    # By the table after the commit: a snapshot that was added meanwhile may name
                    # some of the files. A crash before the deletion leaves files that no snapshot
                    # names, and harms no reader.
                    left = named_files(self._known, self._known.snapshots())
                    unnamed = sorted(named - left)
                    for file in unnamed:
                        self._known.io.delete(file)
                    return Expired(len(gone), len(unnamed))
                self._known.refresh()
        raise self._lost()

    def _lost(self) -> TableOvertakenError:
        return overtaken(self.name, "its files stay as they were: start the upkeep again")

    @property
    def _known(self) -> Table:
        if self._table is None:
            self.read()
        assert self._table is not None
        return self._table

    def _described(self, file: IcebergFile) -> DataFile:
        return DataFile(
            name=file.file_path,
            size=file.file_size_in_bytes,
            rows=file.record_count,
            partitions=self._bounds(file, "partition"),
            offsets=self._bounds(file, "offset"),
            group=(file.spec_id, str(file.partition)),
        )

    def _bounds(self, file: IcebergFile, column: str) -> tuple[int, int] | None:
        field = self._known.schema().find_field(column)
        bounds: list[Any] = [file.lower_bounds, file.upper_bounds]
        first, last = ((bound or {}).get(field.field_id) for bound in bounds)
        if first is None or last is None:
            return None
        kind: Any = field.field_type
        return int(from_bytes(kind, first)), int(from_bytes(kind, last))

    def _remove(self, gone: Iterable[Snapshot]) -> bool:
        """Remove snapshots. Returns False if another program committed first: after a rollback one
        of these may be the newest."""
        refs = self._known.metadata.refs
        ids = [snapshot.snapshot_id for snapshot in gone]
        removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})
        unmoved = [
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
            for name, ref in refs.items()
        ]
        try:
            self._known.catalog.commit_table(self._known, tuple(unmoved), (removal,))
        except CommitFailedException:
            return False
        return True


def expirable_snapshots(table: Table, before_ms: TimestampMs, needed: str) -> list[Snapshot]:
    """The snapshots older than `before_ms` that may expire. Those between the newest one and the
    newest one with the note `needed` stay, because the chain of ancestors leads over them."""
    kept = {ref.snapshot_id for ref in table.refs().values()}
    for ancestor in ancestors(table):
        kept.add(ancestor.snapshot_id)
        if note_of(ancestor, needed) is not None:
            break
    return [
        snapshot
        for snapshot in table.snapshots()
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in kept
    ]


def named_files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """The files that snapshots name: manifest lists, manifests, and files of data and deletes."""
    lists: set[str] = set()
    manifests: dict[str, Any] = {}
    for snapshot in snapshots:
        lists.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            manifests[manifest.manifest_path] = manifest
    files = {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    return lists | manifests.keys() | files
