"""Rewrites files of a table without some of their rows, directly from Arrow batches. One task
rewrites one file, and returns the new files to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from isotherm.spark.tables.column_fit import as_schema
from isotherm.spark.tables.parquet_files import ParquetFiles, Place, PutFile, attempt_name
from isotherm.spark.tables.time_partitions import folder_of
from isotherm.spark.task_folder import task_folder

Keeps: TypeAlias = Callable[[pa.RecordBatch], "npt.NDArray[np.bool_]"]
"""Tells which rows of a batch stay."""

_FIELDS: list[Any] = [
    ("number", pa.int32()),
    ("name", pa.string()),
    ("rows", pa.int64()),
    ("size", pa.int64()),
]
PUT_SCHEMA = pa.schema(_FIELDS)
"""One row for each new file, with the number of the old file or group of files. If no row is left,
there is one row without a new file."""


def rewrite_file(
    place: Place, file: str, keeps: Keeps, schema: pa.Schema, name: str
) -> list[PutFile]:
    """Rewrite one file, in an executor, and return the new files in its partition. None if no row
    stays. Their names begin with `name`."""
    with (
        task_folder("isotherm-table-") as folder,
        ParquetFiles(place, schema, folder / attempt_name(name), folder_of(file)) as kept,
        place.open(file) as source,
    ):
        for batch in parquet.ParquetFile(source).iter_batches():
            kept.write(as_schema(batch.filter(pa.array(keeps(batch))), schema))
        return kept.put_all()


def put_rows(number: int, put: Sequence[PutFile]) -> pa.Table:
    """The result of a task for the old file or group `number`, as rows of PUT_SCHEMA."""
    rows = [{"number": number, **file._asdict()} for file in put] or [{"number": number}]
    return pa.Table.from_pylist(rows, schema=PUT_SCHEMA)


def put_by_number(rows: Iterable[Any]) -> dict[int, list[PutFile]]:
    """The new files by the number of the old file or group, from collected rows of PUT_SCHEMA."""
    made: dict[int, list[PutFile]] = {}
    for row in sorted(rows, key=lambda row: (row.number, row.name or "")):
        put = made.setdefault(row.number, [])
        if row.name is not None:
            put.append(PutFile(row.name, row.rows, row.size))
    return made
