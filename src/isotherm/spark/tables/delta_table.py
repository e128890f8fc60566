"""Keeps a topic as a Delta table, with delta-rs: in a folder or a bucket, without a catalog.

    <table>/<file>.parquet                the rows, below folders if the table has partitions
    <table>/_delta_log/<version>.json     Delta's commits
    <table>_dead_letters/                 the dead letters, which are a second table

The next offset of each partition is stored as the version of a Delta transaction id, because these
are in every checkpoint, while the texts of commits expire. Two more transaction ids have the
table's version at our newest commit, and at our newest commit with dead letters, whose text names
their files. The second table has the version whose dead letters it contains. So the next run
completes a run that was killed between the two commits.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from isotherm.clock import Clock, SystemClock
from isotherm.errors import ConfigError, RemoteStorageError
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.tables.dead_letters import DeadLetterReading, DeadLetters
from isotherm.spark.tables.delta_statistics import file_statistics
from isotherm.spark.tables.erasable_files import ErasableFiles
from isotherm.spark.tables.folder_place import (
    OpenedPlace,
    check_unused,
    local_folder,
    plain_url,
    store_client,
)
from isotherm.spark.tables.listed_table import ListedTable
from isotherm.spark.tables.table_rows import dead_schema, rows_schema
from isotherm.spark.tables.time_partitions import (
    partition_column,
    partition_values,
)
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

_OFFSET_OF = "isotherm.offset."
_PARTITIONS = "isotherm.partitions"
_VERSION = "isotherm.version"
_WITH_DEAD_LETTERS = "isotherm.dead-letters-version"
_OF_VERSION = "isotherm.of-version"
_OFFSETS = "isotherm.offsets"
_DEAD_LETTERS = "isotherm.dead-letters"
_COMMIT = "isotherm.commit"
_RESTORE = "RESTORE"
# Commits of other programs that do not change our offsets do not end a run: the commit is tried
# again.
_COMMIT_TRIES = 4
# A footer is a request or two: the threads mostly wait.
_FOOTER_THREADS = 16


@dataclass(frozen=True)
class DeltaPlace(OpenedPlace):
    """The folder of a Delta table.

    The names of files are URLs here, and paths in the table's log.
    """

    @property
    def root(self) -> str:
        return f"{plain_url(self.settings.url)}/{self.folder}/"


class DeltaTopicTable:
    """`TopicTable` over Delta Lake."""

    def __init__(
        self, settings: ObjectStoreSettings, name: str, clock: Clock | None = None
    ) -> None:
        self.name = name
        self._settings = settings
        self._place = DeltaPlace(settings, name)
        self._dead_place = DeltaPlace(settings, name + DEAD_LETTERS_SUFFIX)
        self._clock = clock or SystemClock()
        self._storage = storage_options(settings)
        # delta-rs would read these characters as parts of a URL.
        if marks := sorted(set("?#%\\") & set(self._place.root)):
            raise ConfigError(
                "the path of a Delta table cannot have these characters"
                f" path={self._place.root} characters={''.join(marks)}"
            )
        self._table: DeltaTable | None = None
        self._covered: dict[int, Offset] = {}

    def identity(self) -> Identity | None:
        with translated("the table cannot be read"):
            self._table = self._open(self._place)
            if self._table is None:
                # The table may have been deleted since the last commit.
                self._covered = {}
                return None
            properties = self._table.metadata().configuration
            identity = stored_identity(properties, self.name)
            if properties.get("delta.columnMapping.mode", "none") != "none":
                raise ConfigError(
                    "columns of the table have other names in its files, which this command does"
                    f" not support table={self.name} hint='name another table with --table'"
                )
            self._covered = self._read_covered(self._table)
        return identity

    def create(self, identity: Identity) -> None:
        first = first_types(identity.key_format, identity.value_format)
        column = partition_column(identity.partition_by)
        made = self._create(self._place, rows_schema(first), identity_properties(identity), column)
        if made is None:
            raise overtaken(self.name)
        self._table = made

    def covered(self) -> dict[int, Offset]:
        return dict(self._covered)

    def types(self) -> DecodedTypes:
        return decoded_types(_columns(self._known))

    def data_files(self) -> list[str]:
        with translated("the table cannot be read"):
            deleted = pa.table(self._known.deletion_vectors().read_all()).num_rows
            if deleted:
                raise ConfigError(
                    "rows of the table were deleted without rewriting their files"
                    f" table={self.name} files={deleted} hint='rewrite the files, or read the table"
                    " by an engine that knows Delta'"
                )
            return [f"{self._place.root}{path}" for path in _files(self._known)]

    def places(self, types: DecodedTypes) -> FilePlaces:
        with translated("the table's columns cannot be changed"):
            if types != self.types():
                schema = rows_schema(types)
                fields = [schema.field(name) for name in KeyValue._fields if name in schema.names]
                added = Schema.from_arrow(pa.schema(fields)).fields
                try:
                    self._known.alter.add_columns(added, commit_properties=_properties({}))
                except CommitFailedError as error:
                    raise overtaken(self.name) from error
                self._known.update_incremental()
            dead = self._dead_table()
        return FilePlaces(
            self._place,
            checked_columns(_columns(self._known), rows_schema(types), self.name),
            self._dead_place,
            checked_columns(_columns(dead), dead_schema(), self._dead_place.folder),
            self._columns_in_files(),
            self._partition_by(),
        )

    def _partition_by(self) -> str:
        return stored_identity(self._known.metadata().configuration, self.name).partition_by

    def _columns_in_files(self) -> pa.Schema:
        """The columns in files. The value of a partition column is only in the log."""
        partitions = self._known.metadata().partition_columns
        return pa.schema(
            [column for column in _columns(self._known) if column.name not in partitions]
        )

    def commit(self, commit: TableCommit) -> None:
        table = self._known
        with translated("the table cannot be written"):
            # Once for all tries: the files do not change.
            added = self._added(self._place, commit.rows)
            for _ in range(_COMMIT_TRIES):
                # Other programs may have committed since the table was read, or since the last try.
                if self._read_covered(table) != self._covered:
                    raise overtaken(self.name)
                # delta-rs does not retry by itself, so the commit gets this version or fails.
                version = table.version() + 1
                # Transaction ids are looked up by name, so the number of partitions is one of them.
                versions = {_VERSION: version, _PARTITIONS: max(commit.covered, default=-1) + 1}
                versions |= {f"{_OFFSET_OF}{n}": offset for n, offset in commit.covered.items()}
                if commit.dead:
                    versions[_WITH_DEAD_LETTERS] = version
                texts = {
                    _OFFSETS: json.dumps({str(n): at for n, at in commit.covered.items()}),
                    _DEAD_LETTERS: json.dumps([self._dead_place.path_of(n) for n in commit.dead]),
                }
                if self._write(self._place, table, added, commit.replaced, versions, texts):
                    self._covered = dict(commit.covered)
                    return
        raise overtaken(self.name)

    def settle(self) -> None:
        """Append the dead letters of the newest commit that has any, unless that was done."""
        with translated("the dead letters cannot be written"):
            version = self._known.transaction_version(_WITH_DEAD_LETTERS)
            if version is None:
                return
            dead = self._dead_table()
            added: Sequence[AddAction] | None = None
            for _ in range(_COMMIT_TRIES):
                # Looked at before each try: another run may have appended the same files since.
                if dead.transaction_version(_OF_VERSION) == version:
                    return
                if added is None:
                    paths = json.loads(self._dead_letters_of(version))
                    files = [f"{self._dead_place.root}{path}" for path in paths]
                    added = self._added(self._dead_place, files)
                if self._write(self._dead_place, dead, added, (), {_OF_VERSION: version}, {}):
                    return
        raise overtaken(self.name)

    def listed(self) -> ListedTable | None:
        """The table for a list. None if there is none. Raises ConfigError if another program made
        it."""
        identity = self.identity()
        if identity is None:
            return None
        with translated("the table cannot be read"):
            dead = self._open(self._dead_place)
            return ListedTable(
                "delta",
                self.name,
                identity,
                _row_count(self._known),
                self._known.version() + 1,
                self._known.history(1)[0].get("timestamp"),
                self.covered(),
                0 if dead is None else _row_count(dead),
            )

    def newest_dead_letters(self) -> DeadLetters:
        """The dead letters of the newest files. Raises RemoteStorageError if the store fails, or if
        a file is not one of dead letters."""
        reading = DeadLetterReading()
        with translated("the dead letters cannot be read"):
            table = self._open(self._dead_place)
            if table is None:
                return reading.result()
            for path in _newest_files(table):
                if not reading.has_room:
                    break
                with self._dead_place.open(f"{self._dead_place.root}{path}") as file:
                    reading.read(file, path)
        return reading.result()

    def erasable(self) -> list[ErasableFiles]:
        return [_DeltaErasure(self, is_dead=False), _DeltaErasure(self, is_dead=True)]

    @property
    def _known(self) -> DeltaTable:
        assert self._table is not None, "identity or create comes first"
        return self._table

    def _open(self, place: DeltaPlace) -> DeltaTable | None:
        warehouse = local_folder(self._settings)
        if warehouse is not None and not (warehouse / place.folder).is_dir():
            # delta-rs would make the folder.
            return None
        try:
            return DeltaTable(self._uri(place), storage_options=self._storage)
        except TableNotFoundError:
            return None

    def _uri(self, place: DeltaPlace) -> str:
        return f"{self._settings.url.rstrip('/')}/{place.folder}"

    def _create(
        self,
        place: DeltaPlace,
        schema: pa.Schema,
        properties: Mapping[str, str],
        column: str | None = None,
    ) -> DeltaTable | None:
        """Create the table, with the partition column `column` if given. None if another program
        has created it first."""
        if self._open(place) is not None:
            return None
        check_unused(self._settings, place.folder, ("_delta_log",))
        if column is not None:
            schema = schema.append(pa.field(column, pa.string()))
        with translated("the table cannot be created"):
            try:
                return DeltaTable.create(
                    self._uri(place),
                    Schema.from_arrow(schema),
                    partition_by=None if column is None else [column],
                    configuration=dict(properties),
                    storage_options=self._storage,
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                # delta-rs has no own error for a table that exists.
                if self._open(place) is None:
                    raise
                return None

    def _dead_table(self) -> DeltaTable:
        table = self._open(self._dead_place) or self._create(self._dead_place, dead_schema(), {})
        table = table or self._open(self._dead_place)
        assert table is not None, "another run has made it"
        return table

    def _added(self, place: DeltaPlace, names: Sequence[str]) -> list[AddAction]:
        """The actions that add files, with the statistics of their footers."""
        now_ms = self._clock.now_ms()

        def added(name: str) -> AddAction:
            with place.open(name) as file:
                statistics = json.dumps(file_statistics(parquet.ParquetFile(file).metadata))
                size = file.seek(0, io.SEEK_END)
            values = partition_values(name)
            return AddAction(place.path_of(name), size, values, now_ms, True, statistics)

        with ThreadPoolExecutor(_FOOTER_THREADS, thread_name_prefix="isotherm-footer") as pool:
            return list(pool.map(added, names))

    def _write(
        self,
        place: DeltaPlace,
        table: DeltaTable,
        added: Sequence[AddAction],
        replaced_names: Sequence[str],
        versions: Mapping[str, int],
        texts: Mapping[str, str],
    ) -> bool:
        """Try one commit, which adds files and removes the replaced ones. The table is loaded at
        the new version. Returns False if another program committed first."""
        now_ms = self._clock.now_ms()
        files = _files(table) if replaced_names else {}
        replaced = [place.path_of(name) for name in replaced_names]
        if not files.keys() >= set(replaced):
            raise overtaken(self.name)
        actions: list[AddAction | RemoveAction] = list(added)
        actions += [
            RemoveAction(path, True, now_ms, files[path], partition_values(path))
            for path in replaced
        ]
        own = secrets.token_hex(8)
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=_properties(versions, {**texts, _COMMIT: own}),
            )
        except CommitFailedError:
            # The commit may have succeeded all the same: if the store's answer is lost, the
            # repeated request conflicts with our own commit. The random `own` identifies it.
            before = table.version()
            table.update_incremental()
            later = table.history(max(table.version() - before, 1))
            return any(commit.get(_COMMIT) == own for commit in later)
        table.update_incremental()
        return True

    def _read_covered(self, table: DeltaTable) -> dict[int, Offset]:
        """The offsets that the loaded version of the table covers."""
        last = table.transaction_version(_VERSION)
        if last is None:
            if _files(table):
                raise ConfigError(
                    "the table has rows, and no commit names the offsets that it covers"
                    f" table={self.name} hint='name another table with --table'"
                )
            return {}
        later = table.history(table.version() - last) if table.version() > last else []
        if any(commit["operation"] == _RESTORE for commit in later):
            return self._restored_offsets(table)
        count = table.transaction_version(_PARTITIONS) or 0
        versions = ((n, table.transaction_version(f"{_OFFSET_OF}{n}")) for n in range(count))
        return {number: offset for number, offset in versions if offset is not None}

    def _restored_offsets(self, table: DeltaTable) -> dict[int, Offset]:
        """The offsets after a restore, which does not change transaction ids. They are in the text
        of our newest commit at or before the restored version."""
        at = table.version()
        for commit in table.history():
            if commit["version"] > at:
                continue
            if commit["operation"] == _RESTORE:
                at = int(commit["operationParameters"].get("version", -1))
            elif _OFFSETS in commit:
                offsets = json.loads(commit[_OFFSETS])
                return {int(partition): offset for partition, offset in offsets.items()}
            elif commit["version"] == 0:
                return {}
        raise ConfigError(
            "the table was restored, and the log no longer has the offsets that it covers"
            f" table={self.name} hint='make the table anew, under another name with --table'"
        )

    def _dead_letters_of(self, version: int) -> str:
        """The names of the files of dead letters, as JSON, in the text of this version's commit."""
        for commit in self._known.history(self._known.version() - version + 1):
            if commit["version"] == version:
                return str(commit[_DEAD_LETTERS])
        raise ConfigError(
            "a run was killed before its dead letters were in their table, and the commit that"
            f" names them has expired table={self.name} version={version}"
            " hint='make the table anew, under another name with --table'"
        )


class _DeltaErasure:
    """`ErasableFiles` over Delta.

    The log's commits have bounds of columns, those of removed files too. So a checkpoint follows
    the commit of an erasure, and all of the log before it is deleted.
    """

    def __init__(self, owner: DeltaTopicTable, *, is_dead: bool) -> None:
        self._owner = owner
        self._is_dead = is_dead
        self.place = owner._dead_place if is_dead else owner._place
        self.name = self.place.folder

    @property
    def _table(self) -> DeltaTable:
        return self._dead if self._is_dead else self._owner._known

    @property
    def schema(self) -> pa.Schema | None:
        return _columns(self._table) if self._is_dead else self._owner._columns_in_files()

    def read(self) -> None:
        if self._is_dead:
            self._dead = self._owner._dead_table()
        else:
            self._owner.identity()

    def files(self) -> list[str]:
        if not self._is_dead:
            return self._owner.data_files()
        return [f"{self.place.root}{path}" for path in _files(self._table)]

    def replace(self, added: Sequence[str], removed: Sequence[str]) -> None:
        if self._is_dead:
            actions = self._owner._added(self.place, added)
            if not self._owner._write(self.place, self._table, actions, removed, {}, {}):
                raise overtaken(self.name)
        else:
            self._owner.commit(TableCommit(added, (), self._owner.covered(), removed))
        with translated("the table's log cannot be shortened"):
            self._table.create_checkpoint()
        version = self._table.version()
        log = f"{self.place.folder}/_delta_log/"
        client = store_client(self._owner._settings)
        for object_ in client.list_level(log)[1]:
            number = object_.key.removeprefix(log).partition(".")[0]
            if number.isdigit() and int(number) < version:
                client.delete(object_.key)

    def older(self) -> list[str]:
        return []

    def unnamed(self) -> list[str]:
        named = set(self.files())
        folder = f"{self.place.folder}/"
        listed = [
            f"{self.place.root}{object_.key.removeprefix(folder)}"
            for object_ in store_client(self._owner._settings).list_objects(folder)
            if object_.key.endswith(".parquet")
            and not object_.key.startswith(f"{folder}_delta_log/")
        ]
        return sorted(name for name in listed if name not in named)


def storage_options(settings: ObjectStoreSettings) -> dict[str, str]:
    """The settings of a store under delta-rs' names.

    Raises ConfigError for settings that it lacks.
    """
    if settings.scheme == "memory":
        raise ConfigError("a Delta table cannot be in memory key=url value=memory://")
    if settings.ca_certificates_path is not None:
        raise ConfigError(
            "delta-rs trusts the authorities of the system alone key=ca.certificates.path"
            f" value={settings.ca_certificates_path}"
        )
    if settings.scheme == "file":
        return {}
    options = {
        "aws_endpoint": settings.s3_endpoint_url,
        "aws_region": settings.s3_region,
        "aws_access_key_id": settings.aws_access_key_id,
        "aws_secret_access_key": settings.aws_secret_access_key,
        "aws_session_token": settings.aws_session_token,
        "aws_virtual_hosted_style_request": str(not settings.s3_path_style_access_enabled).lower(),
        "google_service_account": settings.gcs_credentials_path,
        "azure_storage_account_name": settings.azure_account_name,
        "azure_storage_account_key": settings.azure_account_key,
        "azure_storage_sas_token": settings.azure_sas_token,
    }
    prefixes = {"s3": "aws_", "s3a": "aws_", "gs": "google_"}
    prefix = prefixes.get(settings.scheme, "azure_")
    return {
        **{k: v for k, v in options.items() if v is not None and k.startswith(prefix)},
        "allow_http": str((settings.s3_endpoint_url or "").startswith("http://")).lower(),
        "timeout": f"{settings.request_timeout_ms}ms",
        "connect_timeout": f"{settings.connect_timeout_ms}ms",
        "max_retries": str(settings.retries),
        "retry_timeout": f"{settings.retry_timeout_ms}ms",
    }


def _properties(
    versions: Mapping[str, int], texts: Mapping[str, str] | None = None
) -> CommitProperties:
    """The properties of a commit without retries. A retry of delta-rs would add the rows on top of
    those that another run has added."""
    return CommitProperties(
        custom_metadata=dict(texts or {}),
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in versions.items()],
    )


def _files(table: DeltaTable) -> dict[str, int]:
    """The sizes of the table's files, by path."""
    actions: Any = pa.table(table.get_add_actions(flatten=True))
    paths, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
    # Delta's log has paths as URLs, commits here name plain ones.
    return {unquote(path): size for path, size in zip(paths, sizes, strict=True)}


def _newest_files(table: DeltaTable) -> list[str]:
    """The paths of the table's files, the newest first."""
    actions: Any = pa.table(table.get_add_actions(flatten=True))
    order = actions.sort_by([("modification_time", "descending"), ("path", "ascending")])
    return [unquote(path) for path in order.column("path").to_pylist()]


def _row_count(table: DeltaTable) -> int | None:
    """None if a file's statistics lack it."""
    actions: Any = pa.table(table.get_add_actions(flatten=True))
    counts = actions.column("num_records").to_pylist()
    return None if None in counts else sum(counts)


def _columns(table: DeltaTable) -> pa.Schema:
    columns: Any = table.schema().to_arrow()
    return pa.schema(columns)


@contextmanager
def translated(fact: str) -> Iterator[None]:
    """Turn failures of delta-rs and of the store into RemoteStorageError."""
    try:
        yield
    except DeltaError as error:
        reason = str(error).partition("\n")[0]
        raise RemoteStorageError(f"{fact}: the table's log fails reason={reason!r}") from error
    except OSError as error:
        raise RemoteStorageError(f"{fact}: the store fails") from error
