"""Reads the reasons of a table's newest dead letters from an Iceberg catalog, without Spark and
within named bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import Table

from isotherm.errors import RemoteStorageError
from isotherm.spark.tables.iceberg_snapshots import translated
from isotherm.spark.tables.topic_table import DEAD_LETTERS_SUFFIX
from isotherm.types import Offset, TimestampMs

FILES_MAX = 8
"""The most data files that are read, the newest ones."""
BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of the columns that are read, as they are in the files."""
ROWS_MAX = 100_000
MANIFEST_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of the manifests in which the newest files are looked up."""
REASONS_MAX = 10
NEWEST_MAX = 5
REASON_CHARS_MAX = 200

_COLUMNS = ("partition", "offset", "timestamp", "reason")
_BATCH_ROWS = 4096


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that the table could not have. `timestamp_ms` is None if no table can have it."""

    partition: int
    offset: Offset
    timestamp_ms: TimestampMs | None
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of the newest files. `reasons` are the REASONS_MAX most frequent of
    `reasons_total`, with the number of each, the most frequent first."""

    files: int = 0
    rows: int = 0
    reasons_total: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    newest: tuple[DeadLetter, ...] = ()


def read_dead_letters(catalog: Catalog, name: str) -> DeadLetters:
    """The newest dead letters of the table `name`. Raises RemoteStorageError if the catalog or the
    store fails, or if a file is not one of dead letters."""
    with translated("the dead letters cannot be read"):
        try:
            table = catalog.load_table(name + DEAD_LETTERS_SUFFIX)
        except NoSuchTableError:
            return DeadLetters()
        reading = _Reading()
        for entry in _newest_files(table):
            if not reading.has_room:
                break
            _read_file(table, entry.data_file.file_path, reading)
        return reading.result()


def _newest_files(table: Table) -> list[ManifestEntry]:
    """The FILES_MAX newest data files, the newest first."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    manifests = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    entries: list[ManifestEntry] = []
    left = MANIFEST_BYTES_MAX
    for manifest in sorted(manifests, key=lambda m: m.sequence_number, reverse=True):
        left -= manifest.manifest_length
        if left < 0 or len(entries) >= FILES_MAX:
            break
        entries += manifest.fetch_manifest_entry(table.io)
    return sorted(entries, key=lambda e: e.sequence_number or 0, reverse=True)[:FILES_MAX]


class _Reading:
    """What was read so far."""

    def __init__(self) -> None:
        self.files = self.rows = 0
        self.bytes_left = BYTES_MAX
        self._reasons: Counter[str] = Counter()
        self._newest: pa.Table | None = None

    @property
    def has_room(self) -> bool:
        return self.bytes_left > 0 and self.rows < ROWS_MAX

    def add(self, batch: pa.RecordBatch) -> None:
        batch = batch.slice(0, ROWS_MAX - self.rows)
        self.rows += batch.num_rows
        whole: Any = batch.column("reason")
        reasons: Any = pc.utf8_slice_codeunits(whole.fill_null(""), 0, REASON_CHARS_MAX)
        for count in reasons.value_counts():
            self._reasons[count["values"].as_py()] += count["counts"].as_py()
        # Python has no date for some of them.
        times: Any = batch.column("timestamp")
        times_ms = times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        columns = [batch.column("partition"), batch.column("offset"), times_ms, reasons]
        part = pa.table(columns, names=list(_COLUMNS))
        both = part if self._newest is None else pa.concat_tables([self._newest, part])
        # Those without a time come last.
        order = pc.sort_indices(both, sort_keys=[("timestamp", "descending")])
        self._newest = both.take(order[:NEWEST_MAX])

    def result(self) -> DeadLetters:
        newest = [] if self._newest is None else self._newest.to_pylist()
        return DeadLetters(
            self.files,
            self.rows,
            len(self._reasons),
            tuple(self._reasons.most_common(REASONS_MAX)),
            tuple(
                DeadLetter(row["partition"], row["offset"], row["timestamp"], row["reason"])
                for row in newest
            ),
        )


def _read_file(table: Table, path: str, reading: _Reading) -> None:
    """Read the row groups for which there is room, the last one first."""
    opened: Any = table.io.new_input(path).open()
    try:
        with opened as source:
            file: Any = parquet.ParquetFile(source)
            missing = set(_COLUMNS) - set(file.schema_arrow.names)
            if missing:
                raise RemoteStorageError(
                    f"not a file of dead letters: it lacks columns file={path}"
                    f" columns={','.join(sorted(missing))}"
                )
            reading.files += 1
            for group in reversed(range(file.num_row_groups)):
                reading.bytes_left -= sum(_sizes(file.metadata.row_group(group)))
                if not reading.has_room:
                    return
                for batch in file.iter_batches(_BATCH_ROWS, [group], list(_COLUMNS)):
                    if reading.rows == ROWS_MAX:
                        return
                    reading.add(batch)
    except pa.ArrowException as error:
        raise RemoteStorageError(f"not a Parquet file file={path} reason={str(error)!r}") from error


def _sizes(group: Any) -> Iterator[int]:
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in _COLUMNS:
            yield column.total_compressed_size
