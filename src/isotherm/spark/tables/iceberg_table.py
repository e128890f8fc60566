"""Keeps a topic as an Iceberg table, with PyIceberg, in any catalog that it knows.

The summary of each of our snapshots has the offsets that the table then covers. So after a rollback
the next run continues from the older snapshot, and after other programs have compacted or extended
the table it continues from our newest snapshot. The dead letters are a second table. The summary of
the first table's snapshot names their files, and the second table's snapshot names that snapshot.
So the next run completes a run that was killed between the two commits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionSpec,
)
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, Transform

from isotherm.errors import ConfigError, TableOvertakenError
from isotherm.spark.tables.erasable_files import ErasableFiles
from isotherm.spark.tables.iceberg_erasure import IcebergErasure
from isotherm.spark.tables.iceberg_files import arrow_columns, check_column_names, place_of
from isotherm.spark.tables.iceberg_snapshots import (
    DEAD_LETTERS,
    OF_SNAPSHOT,
    OFFSETS,
    FileChange,
    KnownTransaction,
    ancestors,
    commit_snapshot,
    newest_with,
    note_of,
    offsets_text,
    translated,
    whole_files,
)
from isotherm.spark.tables.iceberg_upkeep import IcebergKept
from isotherm.spark.tables.table_rows import dead_schema, rows_schema
from isotherm.spark.tables.time_partitions import DAY, HOUR, partition_column
from isotherm.spark.tables.topic_table import (
    DEAD_LETTERS_SUFFIX,
    FilePlaces,
    Identity,
    TableCommit,
    checked_columns,
    identity_properties,
    overtaken,
    stored_identity,
)
from isotherm.spark.tables.value_formats import first_types
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue, decoded_types
from isotherm.types import Offset

# Each commit writes a metadata file, of which the last hundred stay.
_OF_METADATA = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_TRANSFORMS: dict[str, Transform[Any, Any]] = {HOUR: HourTransform(), DAY: DayTransform()}


class IcebergTable:
    """`TopicTable` over Iceberg."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        namespace, _, table = name.rpartition(".")
        if not namespace or not table:
            raise ConfigError(f"a table's name has a namespace value={name} hint='--table kafka.x'")
        self.name = name
        self._catalog = catalog
        self._namespace = tuple(namespace.split("."))
        self._identifier = (*self._namespace, table)
        self._dead_identifier = (*self._namespace, table + DEAD_LETTERS_SUFFIX)
        self._table: Table | None = None
        self._covered: dict[int, Offset] = {}

    def identity(self) -> Identity | None:
        with translated("the table cannot be read"):
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                # The table may have been dropped since the last commit.
                self._table, self._covered = None, {}
                return None
        identity = stored_identity(self._table.properties, self.name)
        self._covered = self._read_covered(self._table)
        return identity

    def create(self, identity: Identity) -> None:
        properties = identity_properties(identity)
        first = first_types(identity.key_format, identity.value_format)
        # PyIceberg assigns ids to columns only after it has searched for those of the partitions,
        # so assign them here.
        schema = assign_fresh_schema_ids(
            self._catalog._convert_schema_if_needed(rows_schema(first))
        )
        with translated("the table cannot be created"):
            self._catalog.create_namespace_if_not_exists(self._namespace)
            try:
                # Not by a transaction: its schema is an update, which older catalogs refuse.
                self._table = self._catalog.create_table(
                    self._identifier,
                    schema,
                    partition_spec=_partition_spec(schema, identity.partition_by),
                    properties={**_OF_METADATA, **properties},
                )
            except TableAlreadyExistsError as error:
                raise overtaken(self.name) from error
            except ValueError as error:
                # The catalog has no default location for tables.
                raise ConfigError(
                    f"the catalog cannot make the table table={self.name} reason={str(error)!r}"
                    " hint='--warehouse'"
                ) from error

    def covered(self) -> dict[int, Offset]:
        return dict(self._covered)

    def types(self) -> DecodedTypes:
        return decoded_types(arrow_columns(self._known))

    def data_files(self) -> list[str]:
        check_column_names(self._known, self.name)
        hint = "rewrite the files, or read the table by an engine that knows Iceberg"
        return [file.file_path for file in whole_files(self._known, self.name, hint)]

    def places(self, types: DecodedTypes) -> FilePlaces:
        with translated("the table's columns cannot be changed"):
            if types != self.types():
                try:
                    change = KnownTransaction(self._known, autocommit=True)
                    with change.update_schema() as update:
                        update.union_by_name(_decoded_columns(types))
                except CommitFailedException as error:
                    raise overtaken(self.name) from error
            dead = self._dead_table()
        return FilePlaces(
            place_of(self._known),
            checked_columns(arrow_columns(self._known), rows_schema(types), self.name),
            place_of(dead),
            checked_columns(arrow_columns(dead), dead_schema(), self.name),
            arrow_columns(self._known),
            stored_identity(self._known.properties, self.name).partition_by,
        )

    def commit(self, commit: TableCommit) -> None:
        def summary() -> dict[str, str]:
            # Commits of other programs that do not change our offsets do not end a run.
            if self._read_covered(self._known) != self._covered:
                raise overtaken(self.name)
            return {
                OFFSETS: offsets_text(commit.covered),
                DEAD_LETTERS: json.dumps(list(commit.dead)),
            }

        with translated("the table cannot be written"):
            change = FileChange(commit.rows, commit.replaced)
            commit_snapshot(self._known, change, summary, overtaken(self.name))
        self._covered = dict(commit.covered)

    def settle(self) -> None:
        """Append the dead letters of the newest run, unless that was done."""
        newest = newest_with(self._known, DEAD_LETTERS)
        files = [] if newest is None else json.loads(note_of(newest, DEAD_LETTERS) or "[]")
        if newest is None or not files:
            return
        of = str(newest.snapshot_id)
        with translated("the dead letters cannot be written"):
            dead = self._dead_table()

            def is_done() -> bool:
                return any(note_of(ancestor, OF_SNAPSHOT) == of for ancestor in ancestors(dead))

            def summary() -> dict[str, str]:
                # Before each try: another run may have appended the same files since.
                if is_done():
                    raise overtaken(self.name)
                return {OF_SNAPSHOT: of}

            if is_done():
                return
            try:
                commit_snapshot(dead, FileChange(files), summary, overtaken(self.name))
            except TableOvertakenError:
                # The commit failed, perhaps because another run has appended the same dead letters.
                if not is_done():
                    raise

    def kept(self) -> list[IcebergKept]:
        """The table of rows and the table of dead letters, for upkeep."""
        return [
            IcebergKept(
                self.name,
                lambda: self._catalog.load_table(self._identifier),
                carried=OFFSETS,
                needed=DEAD_LETTERS,
            ),
            IcebergKept(
                self.name + DEAD_LETTERS_SUFFIX,
                self._dead_table,
                carried=OF_SNAPSHOT,
                needed=OF_SNAPSHOT,
            ),
        ]

    def erasable(self) -> list[ErasableFiles]:
        rows, dead = self.kept()

        def commit(added: Sequence[str], removed: Sequence[str]) -> None:
            self.commit(TableCommit(added, (), self._covered, removed))

        def commit_dead(added: Sequence[str], removed: Sequence[str]) -> None:
            dead.replace(added, removed, keeps_rows=False)

        return [IcebergErasure(rows, commit), IcebergErasure(dead, commit_dead)]

    @property
    def _known(self) -> Table:
        assert self._table is not None, "identity or create comes first"
        return self._table

    def _dead_table(self) -> Table:
        return self._catalog.create_table_if_not_exists(
            self._dead_identifier, dead_schema(), properties=_OF_METADATA
        )

    def _read_covered(self, table: Table) -> dict[int, Offset]:
        newest = newest_with(table, OFFSETS)
        if newest is not None:
            offsets = json.loads(note_of(newest, OFFSETS) or "")
            return {int(partition): offset for partition, offset in offsets.items()}
        if table.current_snapshot() is not None:
            raise ConfigError(
                "the table has snapshots, and none of them names the offsets that it covers"
                f" table={self.name} hint='those of this command have expired: make the table anew,"
                " under another name with --table'"
            )
        return {}


def _partition_spec(schema: Schema, partition_by: str) -> PartitionSpec:
    column = partition_column(partition_by)
    if column is None:
        return UNPARTITIONED_PARTITION_SPEC
    source = schema.find_field("timestamp").field_id
    return PartitionSpec(
        PartitionField(
            source_id=source,
            field_id=PARTITION_FIELD_ID_START,
            transform=_TRANSFORMS[partition_by],
            name=column,
        )
    )


def _decoded_columns(types: DecodedTypes) -> pa.Schema:
    columns = rows_schema(types)
    return pa.schema([columns.field(name) for name in KeyValue._fields if name in columns.names])
