"""Keeps the newest value of each key in the files of a table and those that a run has just written.

1. Tasks read the partition, offset and key of every row. Spark finds the superseded rows: those
   with a later row of the same key and partition. Only keys pass through the JVM.
2. One task for each file with such rows rewrites it without them. Other files stay.

Files that lose no row are not read again. So the cost of a run is that of the table's keys, and of
the files that change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyarrow import parquet, types

from isotherm.spark.jobs.rewritten_files import (
    PUT_SCHEMA,
    put_by_number,
    put_rows,
    rewrite_file,
)
from isotherm.spark.numbered_tasks import each_of, spark_schema
from isotherm.spark.tables.column_fit import conformed
from isotherm.spark.tables.parquet_files import Place, PutFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The stubs of these lack types that they take.
pc: Any = pyarrow.compute
_scalar: Any = pa.scalar

_NAN_BITS = 0x7FF8000000000000


@dataclass(frozen=True)
class KeyedFile:
    """A file of rows with keys.

    A file of tombstones is in no table: its rows only delete others.
    """

    name: str
    is_of_tombstones: bool = False


def without_superseded(
    spark: SparkSession,
    files: Sequence[KeyedFile],
    place: Place,
    schema: pa.Schema,
    name: str,
) -> dict[str, list[PutFile]]:
    """Rewrite the files that have superseded or deleted rows, and return the new files by the name
    of the old one. `schema` is that of the new files, whose names begin with `name`."""

    def rewrite(lost: pa.Table) -> pa.Table:
        number = lost.column("file")[0].as_py()

        def is_kept(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
            return ~_is_in(batch, lost)

        put = rewrite_file(place, files[number].name, is_kept, schema, f"{name}-{number:05}")
        return put_rows(number, put)

    lost = _superseded(spark, files, place, schema)
    # A second action would run the tasks again and put their files twice, so this is the only one.
    puts = lost.groupBy("file").applyInArrow(rewrite, spark_schema(PUT_SCHEMA)).collect()
    return {files[number].name: put for number, put in put_by_number(puts).items()}


def _superseded(
    spark: SparkSession, files: Sequence[KeyedFile], place: Place, schema: pa.Schema
) -> DataFrame:
    """The `file`, `partition` and `offset` of rows that are not the newest of their key, or that a
    tombstone deletes."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kind = schema.field("key").type
    compared = compared_keys(pa.array([], kind)).type
    fields: list[Any] = [
        ("file", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", compared),
        ("is_tombstone", pa.bool_()),
    ]
    keys = pa.schema(fields)

    def read(number: int) -> Iterator[pa.RecordBatch]:
        file = files[number]
        with place.open(file.name) as source:
            reader = parquet.ParquetFile(source)
            for batch in reader.iter_batches(columns=["partition", "offset", "key"]):
                count = batch.num_rows
                columns = [
                    pa.array(np.full(count, number), pa.int32()),
                    batch.column("partition"),
                    batch.column("offset"),
                    compared_keys(conformed(batch.column("key"), kind)),
                    pa.array(np.full(count, file.is_of_tombstones)),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=keys)

    of_key = Window.partitionBy("partition", "key")
    # By offsets, not by the order of runs: several runs keep what one run would keep.
    rows = each_of(spark, len(files), read, keys).withColumn("newest", f.max("offset").over(of_key))
    return rows.where("offset < newest AND NOT is_tombstone").select("file", "partition", "offset")


def compared_keys(column: Any) -> Any:
    """The keys as Spark has to compare them: doubles as their bits, because Spark takes -0.0 for
    0.0, and maps as lists of entries by key, because Spark compares no maps."""
    kind = column.type
    if types.is_float64(kind):
        nan = _scalar(_NAN_BITS, pa.int64())
        return pc.if_else(pc.is_nan(column), nan, column.view(pa.int64()))
    if isinstance(kind, pa.StructType):
        children = [compared_keys(child) for child in column.flatten()]
        return pa.StructArray.from_arrays(
            children, names=[field.name for field in kind], mask=column.is_null()
        )
    if types.is_map(kind):
        return _list_of(column, _entries_by_key(column))
    if isinstance(kind, pa.ListType):
        return _list_of(column, compared_keys(_inner(column, column.values)))
    return column


def _inner(column: Any, inner: Any) -> Any:
    """The part of `inner`, the elements of all lists, that lies in the lists of `column`, which
    may be a slice.
    """
    return inner[column.offsets[0].as_py() : column.offsets[-1].as_py()]


def _list_of(column: Any, elements: Any) -> Any:
    """The lists of `column` with other elements."""
    offsets = pc.subtract(column.offsets, column.offsets[0])
    return pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())


def _entries_by_key(column: Any) -> Any:
    rows = np.repeat(np.arange(len(column)), np.diff(column.offsets))
    keys, items = _inner(column, column.keys), _inner(column, column.items)
    order = pc.sort_indices(
        pa.table({"row": rows, "key": keys}),
        sort_keys=[("row", "ascending"), ("key", "ascending")],
    )
    entries = [compared_keys(array).take(order) for array in (keys, items)]
    return pa.StructArray.from_arrays(entries, names=["key", "value"])


def _is_in(batch: pa.RecordBatch, lost: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each row of `batch` is in `lost`. Partitions are compared too, since a file may have
    rows of several."""
    partitions, offsets = (lost.column(name).to_numpy() for name in ("partition", "offset"))
    own_partitions, own_offsets = (batch.column(n).to_numpy() for n in ("partition", "offset"))
    is_in = np.zeros(batch.num_rows, np.bool_)
    for partition in np.unique(own_partitions):
        own = offsets[partitions == partition]
        is_in |= (own_partitions == partition) & np.isin(own_offsets, own)
    return is_in
