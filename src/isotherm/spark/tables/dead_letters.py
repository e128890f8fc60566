"""The reasons of a table's newest dead letters, read within named bounds, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from isotherm.errors import RemoteStorageError
from isotherm.types import Offset, TimestampMs

FILES_MAX = 8
"""The most data files that are read, the newest ones."""
BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of the columns that are read, as they are in the files."""
ROWS_MAX = 100_000
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


class DeadLetterReading:
    """What was read so far. The newest file comes first."""

    def __init__(self) -> None:
        self.files = self.rows = 0
        self.bytes_left = BYTES_MAX
        self._reasons: Counter[str] = Counter()
        self._newest: pa.Table | None = None

    @property
    def has_room(self) -> bool:
        return self.files < FILES_MAX and self.bytes_left > 0 and self.rows < ROWS_MAX

    def read(self, source: IO[bytes], path: str) -> None:
        """Read the row groups of a file for which there is room, the last one first. Raises
        RemoteStorageError if it is not one of dead letters."""
        try:
            file: Any = parquet.ParquetFile(source)
            missing = set(_COLUMNS) - set(file.schema_arrow.names)
            if missing:
                raise RemoteStorageError(
                    f"not a file of dead letters: it lacks columns file={path}"
                    f" columns={','.join(sorted(missing))}"
                )
            self.files += 1
            for group in reversed(range(file.num_row_groups)):
                self.bytes_left -= sum(_sizes(file.metadata.row_group(group)))
                if self.bytes_left <= 0 or self.rows == ROWS_MAX:
                    return
                for batch in file.iter_batches(_BATCH_ROWS, [group], list(_COLUMNS)):
                    if self.rows == ROWS_MAX:
                        return
                    self._add(batch)
        except pa.ArrowException as error:
            raise RemoteStorageError(
                f"not a Parquet file file={path} reason={str(error)!r}"
            ) from error

    def _add(self, batch: pa.RecordBatch) -> None:
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


def _sizes(group: Any) -> Iterator[int]:
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in _COLUMNS:
            yield column.total_compressed_size
