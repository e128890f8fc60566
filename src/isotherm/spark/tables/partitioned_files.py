"""Writes the Parquet files of one task, with separate files for each partition of the table.

All partitions together obey the bounds that ParquetFiles has for one: ROW_GROUP_BYTES of rows in
memory, FILE_BYTES of files on the disk. So a task with rows of many partitions writes smaller
files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pyarrow as pa

from isotherm.spark.tables.parquet_files import (
    FILE_BYTES,
    ROW_GROUP_BYTES,
    ParquetFiles,
    Place,
    PutFile,
)
from isotherm.spark.tables.time_partitions import split_by_time

OPEN_PARTITIONS_MAX = 64
"""The most partitions with an open file. Beyond that the least recently written file is ended."""


class PartitionedFiles:
    """Writes rows to files, which are at `path` with numbers while they are written. Without rows
    there is no file. If the context ends without `put_all`, the files that were put are deleted."""

    def __init__(self, place: Place, schema: pa.Schema, path: Path, partition_by: str) -> None:
        self._place = place
        self._schema = schema
        self._path = path
        self._partition_by = partition_by
        self._begun = 0
        # In the order of their last write.
        self._open: dict[str, ParquetFiles] = {}
        self._put: list[PutFile] = []
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._open.values():
            file.__exit__(*error)
        if not self._is_whole:
            self._place.delete([file.name for file in self._put])

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, which must have the columns of the schema, in its order."""
        for folder, rows in split_by_time(batch, self._partition_by):
            files = self._open.pop(folder, None) or self._begin(folder)
            self._open[folder] = files
            files.write(rows)
            self._keep_bounds()

    def put_all(self) -> list[PutFile]:
        while self._open:
            self._end_oldest()
        self._is_whole = True
        return self._put

    def _begin(self, folder: str) -> ParquetFiles:
        if len(self._open) == OPEN_PARTITIONS_MAX:
            self._end_oldest()
        path = self._path.with_name(f"{self._path.name}-{self._begun}")
        self._begun += 1
        return ParquetFiles(self._place, self._schema, path, folder)

    def _end_oldest(self) -> None:
        folder = next(iter(self._open))
        # Remove it from the open ones only after it is put, so that its files are deleted if that
        # fails.
        self._put += self._open[folder].put_all()
        del self._open[folder]

    def _keep_bounds(self) -> None:
        files = self._open.values()
        while sum(file.waiting_bytes for file in files) >= ROW_GROUP_BYTES:
            max(files, key=lambda file: file.waiting_bytes).write_row_group()
        while sum(file.local_bytes for file in files) >= FILE_BYTES:
            max(files, key=lambda file: file.local_bytes).end_file()
