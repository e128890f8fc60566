"""A topic as an Iceberg table, through PyIceberg: any catalog that it knows.

The summary of each snapshot of ours has the offsets that the table covers with it. So a table that
is rolled back goes on from there, and one that others compact or extend in between goes on from the
newest snapshot of ours. Dead letters are a second table. Its files are named in the summary of the
first table's snapshot, and the second's snapshot names that one: a run that was killed in between is
completed by the next.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from isotherm.errors import ConfigError, RemoteStorageError, TableOvertakenError
from isotherm.spark.tables.table_rows import dead_schema, rows_schema
from isotherm.spark.tables.topic_table import (
    DEAD_LETTERS_SUFFIX,
    FilePlaces,
    Identity,
    TableCommit,
    checked_columns,
    identity_properties,
    stored_identity,
)
from isotherm.spark.tables.value_formats import first_types
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue, decoded_types
from isotherm.types import Offset

_map: Any = pa.map_  # the stubs do not know fields
_OFFSETS = "isotherm.offsets"
_DEAD_LETTERS = "isotherm.dead-letters"
_OF_SNAPSHOT = "isotherm.of-snapshot"
# Commits of others that leave our offsets as they are do not end a run.
_COMMIT_TRIES = 4
_FOOTER_THREADS = 16


@dataclass(frozen=True)
class IcebergPlace:
    """The data folder of an Iceberg table."""

    io: FileIO
    folder: str

    def put(self, name: str, path: Path) -> str:
        location = f"{self.folder}/{name}"
        with path.open("rb") as source, self.io.new_output(location).create() as target:
            shutil.copyfileobj(source, target)
        return location

    def open(self, name: str) -> Any:
        return self.io.new_input(name).open()

    def delete(self, files: Sequence[str]) -> None:
        for each in files:
            self.io.delete(each)


def open_catalog(name: str | None, properties: Mapping[str, str], warehouse: str) -> Catalog:
    """The catalog `name` of PyIceberg's configuration, with these properties over its own. With
    neither, one in SQLite beside the warehouse, a local folder."""
    if warehouse.startswith("file://"):
        # Iceberg's locations are not escaped as URLs are.
        warehouse = f"file://{unquote(warehouse.removeprefix('file://'))}"
        if marks := sorted(set("?#") & set(warehouse)):
            raise ConfigError(
                "the path of an Iceberg warehouse cannot have these characters"
                f" warehouse={warehouse} characters={''.join(marks)}"
            )
    if name is None and not properties:
        if not warehouse.startswith("file://"):
            raise ConfigError(
                "a warehouse that is no local folder needs a catalog"
                f" warehouse={warehouse} hint='--catalog or --catalog-option'"
            )
        folder = Path(warehouse.removeprefix("file://"))
        with _translated("the warehouse cannot be made"):
            folder.mkdir(parents=True, exist_ok=True)
        file = URL.create("sqlite", database=str(folder / "catalog.db"))
        properties = {"type": "sql", "uri": file.render_as_string()}
    with _translated("the catalog cannot be opened"):
        try:
            return load_catalog(name or "isotherm", **{"warehouse": warehouse, **properties})
        except ValueError as error:
            raise ConfigError(f"no such catalog catalog={name} reason={str(error)!r}") from error


class IcebergTable:
    """See TopicTable."""

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
        with _translated("the table cannot be read"):
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                return None
        identity = stored_identity(self._table.properties, self.name)
        self._covered = self._read_covered(self._table)
        return identity

    def create(self, identity: Identity) -> None:
        properties = identity_properties(identity)
        first = first_types(identity.key_format, identity.value_format)
        with _translated("the table cannot be created"):
            self._catalog.create_namespace_if_not_exists(self._namespace)
            try:
                self._table = self._catalog.create_table(
                    self._identifier, rows_schema(first), properties=properties
                )
            except TableAlreadyExistsError as error:
                raise self._overtaken() from error

    def covered(self) -> dict[int, Offset]:
        return dict(self._covered)

    def types(self) -> DecodedTypes:
        return decoded_types(_arrow_schema(self._known))

    def data_files(self) -> list[str]:
        _check_column_names(self._known, self.name)
        with _translated("the table cannot be read"):
            planned = list(self._known.scan().plan_files())
        if any(each.delete_files for each in planned):
            raise ConfigError(
                "rows of the table were deleted without rewriting their files"
                f" table={self.name} hint='rewrite the files, or read the table by an engine that"
                " knows Iceberg'"
            )
        return [each.file.file_path for each in planned]

    def places(self, types: DecodedTypes) -> FilePlaces:
        with _translated("the table's columns cannot be changed"):
            if types != self.types():
                try:
                    with self._known.update_schema() as update:
                        update.union_by_name(_decoded_columns(types))
                except CommitFailedException as error:
                    raise self._overtaken() from error
            dead = self._dead_table()
        return FilePlaces(
            _place(self._known),
            checked_columns(_arrow_schema(self._known), rows_schema(types), self.name),
            _place(dead),
            checked_columns(_arrow_schema(dead), dead_schema(), self.name),
            _arrow_schema(self._known),
        )

    def commit(self, commit: TableCommit) -> None:
        summary = {
            _OFFSETS: json.dumps(commit.covered, sort_keys=True),
            _DEAD_LETTERS: json.dumps(list(commit.dead)),
        }
        with _translated("the table cannot be written"):
            for _ in range(_COMMIT_TRIES):
                # Others may have committed since, also between two of these tries.
                if self._read_covered(self._known) != self._covered:
                    raise self._overtaken()
                if self._append(self._known, commit.rows, summary, commit.replaced):
                    self._covered = dict(commit.covered)
                    return
                self._known.refresh()
        raise self._overtaken()

    def settle(self) -> None:
        """Append the dead letters of the newest snapshot, unless that was done."""
        newest = self._newest(self._known)
        files = [] if newest is None else json.loads(_told(newest, _DEAD_LETTERS) or "[]")
        if newest is None or not files:
            return
        with _translated("the dead letters cannot be written"):
            dead = self._dead_table()
            of = str(newest.snapshot_id)
            if any(_told(each, _OF_SNAPSHOT) == of for each in _ancestors(dead)):
                return
            if not self._append(dead, files, {_OF_SNAPSHOT: of}):
                raise self._overtaken()

    @property
    def _known(self) -> Table:
        assert self._table is not None, "identity or create comes first"
        return self._table

    def _dead_table(self) -> Table:
        return self._catalog.create_table_if_not_exists(self._dead_identifier, dead_schema())

    def _append(
        self,
        table: Table,
        files: Sequence[str],
        summary: dict[str, str],
        replaced: Sequence[str] = (),
    ) -> bool:
        """One snapshot with these files and without the replaced ones; False if the table is another
        one meanwhile."""
        known = (
            {each.file.file_path: each.file for each in table.scan().plan_files()}
            if replaced
            else {}
        )
        if not known.keys() >= set(replaced):
            raise self._overtaken()
        # PyIceberg would try again on top of what another run has added. Of the copy in memory.
        table.properties["commit.retry.num-retries"] = "0"
        with ThreadPoolExecutor(_FOOTER_THREADS, thread_name_prefix="isotherm-footer") as pool:
            data_files = list(
                pool.map(lambda f: parquet_file_to_data_file(table.io, table.metadata, f), files)
            )
        try:
            with table.transaction() as transaction:
                update = transaction.update_snapshot(snapshot_properties=summary)
                with update.overwrite() if replaced else update.fast_append() as producer:
                    for each in data_files:
                        producer.append_data_file(each)
                    for name in replaced:
                        producer.delete_data_file(known[name])
        except CommitFailedException:
            return False
        return True

    def _newest(self, table: Table) -> Snapshot | None:
        """The newest snapshot of ours."""
        return next((each for each in _ancestors(table) if _told(each, _OFFSETS)), None)

    def _read_covered(self, table: Table) -> dict[int, Offset]:
        newest = self._newest(table)
        if newest is not None:
            offsets = json.loads(_told(newest, _OFFSETS) or "")
            return {int(partition): offset for partition, offset in offsets.items()}
        if table.current_snapshot() is not None:
            raise ConfigError(
                "the table has snapshots, and none of them tells which offsets it covers"
                f" table={self.name} hint='those of this command have expired: make the table anew,"
                " under another name with --table'"
            )
        return {}

    def _overtaken(self) -> TableOvertakenError:
        return TableOvertakenError(
            f"another run has written to the table meanwhile table={self.name}"
            " hint='nothing of this run is in it: start it again'"
        )


def _check_column_names(table: Table, name: str) -> None:
    """ConfigError unless a column's name means the same in all files: Spark finds columns by name,
    Iceberg by the id of the field."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in table.metadata.schemas:
        for column in schema.column_names:
            field_id = schema.find_field(column).field_id
            if (
                ids.setdefault(column, field_id) != field_id
                or names.setdefault(field_id, column) != column
            ):
                raise ConfigError(
                    f"a column of the table was renamed or made anew table={name} column={column}"
                    " hint='read it by an engine that knows Iceberg, or make the table anew, under"
                    " another name with --table'"
                )


def _ancestors(table: Table) -> Iterator[Snapshot]:
    yield from ancestors_of(table.current_snapshot(), table.metadata)


def _told(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def _place(table: Table) -> IcebergPlace:
    return IcebergPlace(table.io, table.location_provider().new_data_location("")[:-1])


def _arrow_schema(table: Table) -> pa.Schema:
    """The table's columns in Arrow's small types, with field ids."""
    return pa.schema([f.with_type(_small(f.type)) for f in schema_to_pyarrow(table.schema())])


def _decoded_columns(types: DecodedTypes) -> pa.Schema:
    columns = rows_schema(types)
    return pa.schema([columns.field(name) for name in KeyValue._fields if name in columns.names])


def _small(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_small(field.type)) for field in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    if isinstance(kind, pa.MapType):
        inner = (kind.key_field, kind.item_field)
        small: pa.DataType = _map(*(each.with_type(_small(each.type)) for each in inner))
        return small
    if types.is_large_string(kind):
        return pa.string()
    return pa.binary() if types.is_large_binary(kind) else kind


@contextmanager
def _translated(fact: str) -> Iterator[None]:
    """Failures of the catalog's database or server, and of the warehouse's store, as ours."""
    try:
        yield
    except (DBAPIError, RESTError) as error:
        raise RemoteStorageError(f"{fact}: the catalog fails") from error
    except OSError as error:
        raise RemoteStorageError(f"{fact}: the store fails") from error
