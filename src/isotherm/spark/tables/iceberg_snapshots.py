"""Commits snapshots of an Iceberg table with our notes in their summaries. One snapshot is one
commit.

isotherm.offsets        the next offset of each partition after this snapshot
isotherm.dead-letters   in a run's snapshot: the files for the table of dead letters
isotherm.of-snapshot    in the table of dead letters: the run's snapshot whose files it contains
isotherm.commit         in each of these snapshots: a random name, by which its writer identifies it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyarrow import parquet
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.io.pyarrow import parquet_file_to_data_file, parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of
from pyiceberg.table.update.snapshot import _OverwriteFiles
from requests.exceptions import RequestException
from sqlalchemy.exc import DBAPIError

from isotherm.errors import ConfigError, RemoteStorageError, TableOvertakenError
from isotherm.types import Offset

OFFSETS = "isotherm.offsets"
DEAD_LETTERS = "isotherm.dead-letters"
OF_SNAPSHOT = "isotherm.of-snapshot"
COMMIT_TRIES = 4
"""The most tries of one commit. Other programs may commit between two of them."""
# A footer is a request or two: the threads mostly wait.
_FOOTER_THREADS = 16
_ONE_RETRY = {
    "commit.retry.num-retries": "1",
    "commit.retry.min-wait-ms": "0",
    "commit.retry.max-wait-ms": "0",
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """The data files that a snapshot adds and removes. With `keeps_rows` both have the same rows,
    and the snapshot is an Iceberg replace, which readers of changes skip."""

    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    keeps_rows: bool = False


def commit_snapshot(
    table: Table,
    change: FileChange,
    summary: Callable[[], Mapping[str, str]],
    lost: TableOvertakenError,
) -> None:
    """Commit the change in one snapshot. `summary` is called before each try with the current
    table, and may raise.

    Raises `lost` if other programs commit before every try, or if a file to remove is no longer in
    the table, or if rows of it were deleted without rewriting it.
    """
    for _ in range(COMMIT_TRIES):
        if _try_commit(table, change, summary(), lost):
            return
        table.refresh()
    raise lost


def _try_commit(
    table: Table, change: FileChange, summary: Mapping[str, str], lost: TableOvertakenError
) -> bool:
    """Try the commit once. Returns False if another program committed first."""
    removed = []
    if change.removed:
        planned = {task.file.file_path: task for task in table.scan().plan_files()}
        # Another program has rewritten such a file. Its rows would be in the table twice.
        if not planned.keys() >= set(change.removed):
            raise lost
        removed = [planned[name] for name in change.removed]
        # Another program has deleted rows of it. The files that are added still have them.
        if any(task.delete_files for task in removed):
            raise lost
    # This changes only the copy in memory.
    table.properties.update(_ONE_RETRY)
    with ThreadPoolExecutor(_FOOTER_THREADS, thread_name_prefix="isotherm-footer") as pool:
        data_files = list(pool.map(lambda file: data_file(table, file), change.added))
    try:
        with _OneCommit(table) as transaction:
            if change.keeps_rows:
                producer: Any = _ReplaceFiles(
                    Operation.OVERWRITE, transaction, table.io, snapshot_properties=dict(summary)
                )
            else:
                update = transaction.update_snapshot(snapshot_properties=dict(summary))
                producer = update.overwrite() if removed else update.fast_append()
            with producer:
                for made in data_files:
                    producer.append_data_file(made)
                for task in removed:
                    producer.delete_data_file(task.file)
    except CommitFailedException:
        return False
    return True


def data_file(table: Table, file: str) -> DataFile:
    """A file with the statistics of its footer, as a snapshot adds it.

    Parquet has no bounds of a row group for texts above 4 KiB. PyIceberg then takes those of the
    other row groups for the whole file, and readers would skip rows, so such columns get no bounds.
    """
    made = parquet_file_to_data_file(table.io, table.metadata, file)
    if len(made.split_offsets or ()) > 1:
        opened: Any = table.io.new_input(file).open()
        with opened as source:
            footer = parquet.read_metadata(source)
        ids = parquet_path_to_id_mapping(table.schema())
        for path in _without_bounds(footer):
            made.lower_bounds.pop(ids[path], None)
            made.upper_bounds.pop(ids[path], None)
    return made


def _without_bounds(footer: Any) -> Iterator[str]:
    """The columns of which a row group has values, but no bounds."""
    for number in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(number).column(index)
            if not column.is_stats_set or (
                column.statistics.num_values and not column.statistics.has_min_max
            ):
                yield column.path_in_schema


class KnownTransaction(Transaction):
    """A transaction that keeps the metadata as long as neither the table nor the updates change.

    PyIceberg makes the metadata again at each access, by deep copies. A commit has a dozen of these
    accesses, and each takes a third of a second for some thousand columns.
    """

    _known: tuple[TableMetadata, object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        before, updates = self._table.metadata, self._updates
        if self._known is None or self._known[0] is not before or self._known[1] is not updates:
            self._known = (before, updates, super().table_metadata)
        return self._known[2]


class _OneCommit(KnownTransaction):
    """A transaction that does not commit on top of other commits, as PyIceberg's retry does.

    Before its retry PyIceberg checks whether the refused commit is in the table, because the answer
    may have been lost, and the files of such a commit must not be deleted. So this class allows one
    retry, and keeps only that check of it.
    """

    def _rebuild_snapshot_updates(self) -> None:
        raise CommitFailedException("the table was replaced meanwhile")


class _ReplaceFiles(_OverwriteFiles):
    """A snapshot with the operation `replace`, which PyIceberg lacks, made of an overwrite's
    files and totals.
    """

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        made = super()._summary(snapshot_properties or {})
        return Summary(Operation.REPLACE, **made.additional_properties)


def whole_files(table: Table, name: str, hint: str) -> list[DataFile]:
    """The data files of the table.

    Raises ConfigError if rows of a file were deleted without rewriting it.
    """
    with translated("the table cannot be read"):
        planned = list(table.scan().plan_files())
    if any(task.delete_files for task in planned):
        raise ConfigError(
            "rows of the table were deleted without rewriting their files"
            f" table={name} hint='{hint}'"
        )
    return [task.file for task in planned]


def ancestors(table: Table) -> Iterator[Snapshot]:
    """The snapshots of the table's current branch, the newest first."""
    yield from ancestors_of(table.current_snapshot(), table.metadata)


def newest_with(table: Table, name: str) -> Snapshot | None:
    """The newest snapshot with the note `name`."""
    return next((ancestor for ancestor in ancestors(table) if note_of(ancestor, name)), None)


def note_of(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def offsets_text(covered: Mapping[int, Offset]) -> str:
    return json.dumps(covered, sort_keys=True)


@contextmanager
def translated(fact: str) -> Iterator[None]:
    """Turn failures of the catalog's database or server, and of the warehouse's store, into our
    errors.
    """
    try:
        yield
    except (DBAPIError, RESTError, RequestException) as error:
        raise RemoteStorageError(f"{fact}: the catalog fails") from error
    except OSError as error:
        raise RemoteStorageError(f"{fact}: the store fails") from error
