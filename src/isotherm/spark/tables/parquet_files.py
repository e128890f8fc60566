"""Writes the Parquet files of one task to a local folder, and puts each to the table's place when
it is complete.

Memory is bounded by ROW_GROUP_BYTES, and disk by FILE_BYTES and a row group, separately for rows
and dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol, Self

import pyarrow as pa
from pyarrow import parquet

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""The bytes of rows in memory from which a row group is written."""
FILE_BYTES = 512 * 1024 * 1024
"""The size of a file from which it is ended. The row group that reaches it is the last one."""


class Place(Protocol):
    """The place of a table's files. It is pickled for executors."""

    def put(self, name: str, path: Path) -> str:
        """Put a file. Returns the name by which a commit refers to it."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file of the table, or one that was put."""

    def delete(self, files: Sequence[str]) -> None:
        """Delete files that no commit names."""


class PutFile(NamedTuple):
    """A file that was put, and that no commit names yet."""

    name: str
    rows: int
    size: int


def attempt_name(name: str) -> str:
    """A name that differs in each attempt of a task, because Spark may repeat a task, and run two
    attempts at the same time."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{name}-{context.taskAttemptId() if context is not None else 0}"


class ParquetFiles:
    """Writes rows to files. A file is at `path` with a number while it is written, and is then put
    into `folder` of the place. Without rows there is no file. If the context ends without
    `put_all`, the files that were put are deleted."""

    def __init__(self, place: Place, schema: pa.Schema, path: Path, folder: str = "") -> None:
        self._place = place
        self._schema = schema
        self._path = path
        self._folder = folder
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        """The bytes of rows in memory."""
        self.local_bytes = 0
        """The size of the file that is being written."""
        self._writer: parquet.ParquetWriter | None = None
        self._rows = 0
        self._put: list[PutFile] = []
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if not self._is_whole:
            self._place.delete([file.name for file in self._put])

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, which must have the columns of the schema, in its order."""
        if batch.num_rows == 0:
            return
        # The schema may have field ids, which the batch lacks.
        self._waiting.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        self.waiting_bytes += batch.nbytes
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.write_row_group()

    def put_all(self) -> list[PutFile]:
        if self._waiting:
            self.write_row_group()
        self.end_file()
        self._is_whole = True
        return self._put

    @property
    def _file(self) -> Path:
        return self._path.with_name(f"{self._path.name}-{len(self._put)}.parquet")

    def write_row_group(self) -> None:
        """Write rows in memory as one row group."""
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd")
        self._writer.write_table(table, row_group_size=len(table))
        self._rows += len(table)
        self._waiting.clear()
        self.waiting_bytes = 0
        self.local_bytes = self._file.stat().st_size
        if self.local_bytes >= FILE_BYTES:
            self.end_file()

    def end_file(self) -> None:
        """Put the file that is being written, if there is one."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        path = self._file
        size = path.stat().st_size
        name = self._place.put(f"{self._folder}{path.name}", path)
        self._put.append(PutFile(name, self._rows, size))
        path.unlink()
        self._rows = 0
        self.local_bytes = 0
