"""Files of a table written again without some of their rows, directly from Arrow batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from isotherm.spark.tables.column_fit import as_schema
from isotherm.spark.tables.parquet_files import ParquetFiles, Place, PutFile, attempt_name
from isotherm.spark.tables.time_partitions import folder_of

Keeps: TypeAlias = Callable[[pa.RecordBatch], "npt.NDArray[np.bool_]"]
"""Of a batch, which rows stay."""


def rewrite_file(
    place: Place, file: str, keeps: Keeps, schema: pa.Schema, name: str
) -> list[PutFile]:
    """In an executor. The files that replace one, in its partition; none if no row stays. `name`
    begins their names."""
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-table-") as folder,
        ParquetFiles(place, schema, Path(folder) / attempt_name(name), folder_of(file)) as kept,
        place.open(file) as source,
    ):
        for batch in parquet.ParquetFile(source).iter_batches():
            kept.write(as_schema(batch.filter(pa.array(keeps(batch))), schema))
        return kept.put_all()
