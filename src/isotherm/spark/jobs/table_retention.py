"""Deletes a table's rows below the topic's log start, because Kafka has deleted these records.

A file with all rows below the log start is removed by its bounds alone. A file that may have rows
on both sides is rewritten without the rows below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from isotherm.errors import TableOvertakenError
from isotherm.spark.jobs.rewritten_files import (
    PUT_SCHEMA,
    put_by_number,
    put_rows,
    rewrite_file,
)
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.options import SourceOptions
from isotherm.spark.tables.parquet_files import Place, PutFile
from isotherm.spark.tables.upkeep_plan import DataFile
from isotherm.spark.tier.open_log import open_brokers
from isotherm.types import Offset, uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.spark.tables.iceberg_upkeep import IcebergKept


@dataclass(frozen=True, slots=True)
class LogStarts:
    """The log start offset of each partition of a topic, by partition number."""

    topic_id: str
    offsets: Mapping[int, Offset]


class RetentionPlan(NamedTuple):
    """`whole` files lie below the log start. `border` files may have rows on both sides."""

    whole: Sequence[DataFile]
    border: Sequence[DataFile]


def read_log_starts(options: SourceOptions) -> LogStarts:
    """Ask the brokers for the log starts. The bucket alone is not enough, because a lost segment
    looks like a deleted one."""
    brokers = open_brokers(options)
    assert brokers is not None, "the command asks for them"
    partitions = brokers.partitions(options.named_topics)
    bounds = brokers.bounds([partition.topic_partition for partition in partitions])
    return LogStarts(
        uuid_to_text(partitions[0].topic_id),
        {partition.partition: bound.start for partition, bound in bounds.items()},
    )


def plan_retention(files: Iterable[DataFile], starts: Mapping[int, Offset]) -> RetentionPlan:
    """Sort the files by their bounds. A partition without a log start keeps its rows."""
    whole, border = [], []
    for file in files:
        if file.partitions is None or file.offsets is None:
            border.append(file)
            continue
        first, last = file.partitions
        # Bounds are of the file, so any partition between them may be in it.
        own = [starts.get(partition, 0) for partition in range(first, last + 1)]
        if file.offsets[1] < min(own):
            whole.append(file)
        elif file.offsets[0] < max(own):
            border.append(file)
    return RetentionPlan(whole, border)


def delete_below(
    table: IcebergKept,
    read_starts: Callable[[], LogStarts],
    open_spark: Callable[[], SparkSession],
    name: str,
) -> int:
    """Delete the rows below the log starts in one commit, and return their number. Without such
    rows there is no commit. The names of new files begin with `name`.

    The log starts are read again right before the commit. Raises TableOvertakenError if the table
    was changed since it was read, or if the topic was created again. Nothing is deleted then.
    """
    starts = read_starts()
    files = table.files()
    plan = plan_retention(files, starts.offsets)
    place = table.place
    made = (
        _without_rows_below(open_spark(), plan.border, starts, place, table.schema, name)
        if plan.border
        else {}
    )
    by_name = {file.name: file for file in files}
    removed = [file.name for file in plan.whole] + list(made)
    if not removed:
        return 0
    added = [file for put in made.values() for file in put]

    def check() -> None:
        now = read_starts()
        # A log start never falls, except in a new topic of the same name.
        is_lower = any(now.offsets.get(p, 0) < start for p, start in starts.offsets.items())
        if now.topic_id != starts.topic_id or is_lower:
            raise TableOvertakenError(
                "the topic was created again since the rows below its log start were found"
                f" table={table.name} hint='nothing was deleted: start it again'"
            )

    try:
        table.replace([file.name for file in added], removed, keeps_rows=False, check=check)
    except TableOvertakenError:
        place.delete([file.name for file in added])
        raise
    return sum(by_name[path].rows for path in removed) - sum(file.rows for file in added)


def _without_rows_below(
    spark: SparkSession,
    files: Sequence[DataFile],
    starts: LogStarts,
    place: Place,
    schema: pa.Schema,
    name: str,
) -> dict[str, list[PutFile]]:
    """Rewrite the files that have rows below the log starts. Returns the new files by the name of
    the old one."""

    def is_kept(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        partitions, offsets = (batch.column(n).to_numpy() for n in ("partition", "offset"))
        kept = np.ones(batch.num_rows, np.bool_)
        for partition in np.unique(partitions).tolist():
            start = starts.offsets.get(partition, 0)
            kept &= (partitions != partition) | (offsets >= start)
        return kept

    def run(number: int) -> Iterator[pa.RecordBatch]:
        file = files[number].name
        with ExitStack() as opened:
            reader = parquet.ParquetFile(opened.enter_context(place.open(file)))
            places = reader.iter_batches(columns=["partition", "offset"])
            if all(is_kept(batch).all() for batch in places):
                return
        put = rewrite_file(place, file, is_kept, schema, f"{name}-{number:05}")
        yield from put_rows(number, put).to_batches()

    # A second action would run the tasks again and put their files twice, so this is the only one.
    puts = each_of(spark, len(files), run, PUT_SCHEMA).collect()
    return {files[number].name: put for number, put in put_by_number(puts).items()}
