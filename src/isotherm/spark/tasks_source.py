"""A data source whose rows are the tasks of a read, and the function that turns tasks into a
topic's rows.

`isotherm.spark.mapped_read` gives the reason.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from isotherm.spark.option_parsing import parse_options
from isotherm.spark.options import SourceOptions
from isotherm.spark.row_schema import arrow_schema
from isotherm.spark.source import IsothermReader
from isotherm.spark.source_task import freeze_imports, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.record.varint import ReadBuffer

_TASK_COLUMN = "task"


class IsothermTasks(DataSource):
    """The tasks of a read. Each partition has one row, a pickled TaskPartition."""

    @classmethod
    def name(cls) -> str:
        return "isotherm-tasks"

    def schema(self) -> StructType:
        freeze_imports()
        return StructType([StructField(_TASK_COLUMN, BinaryType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TasksReader(parse_options(self.options), schema)


class _TasksReader(IsothermReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from isotherm.spark.arrow_rows import repeated

        schema = arrow_schema(self._schema)
        task = repeated(pickle.dumps(partition), 1, schema.field(0).type)
        yield pa.RecordBatch.from_arrays([task], schema=schema)


def rows_of_tasks(
    options: SourceOptions, schema: StructType, tasks: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`, in an executor: turns batches of tasks into batches of
    rows.
    """
    for batch in tasks:
        for task in batch.column(0):
            yield from _rows_of(options, schema, task.as_buffer())


def rows_of_numbers(
    options: SourceOptions,
    schema: StructType,
    tasks: Sequence[bytes],
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Same as `rows_of_tasks`, of the tasks with these numbers."""
    for batch in numbers:
        for number in batch.column(0).to_numpy().tolist():
            yield from _rows_of(options, schema, tasks[number])


def _rows_of(
    options: SourceOptions, schema: StructType, task: ReadBuffer
) -> Iterator[pa.RecordBatch]:
    # Safe to unpickle: the driver of this query has pickled it.
    return read_partition(options, schema, pickle.loads(task))  # noqa: S301
