"""Copies a topic's committed records into the history of another topic (repartition).

The rows come from the Spark source, and go through `load`. Records of one key keep their order: a
key has been in one partition of the old topic, and the records of a partition stay in the order of
their offsets. Between the partitions of the old topic a record's place is how far into its
partition it lies, so that the new partitions are about in order of time if the old ones cover the
same time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from isotherm.errors import PolicyViolationError
from isotherm.spark.arrow_rows import numbers
from isotherm.spark.jobs.packed_rows import PLACE, TIE, WorkerRows
from isotherm.spark.mapped_read import planned_rows
from isotherm.spark.options import READ_COMMITTED
from isotherm.types import Offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.record.batch_table import Int64Array
    from isotherm.spark.plan.offsets import OffsetBounds
    from isotherm.spark.small_input import BatchFunction

_PLACES = 2.0**40


class OldRange(NamedTuple):
    """The offsets of one partition of the old topic that a run copies: half-open."""

    partition: int
    start: Offset
    end: Offset


def old_ranges(bounds: Mapping[int, OffsetBounds], starts: Mapping[int, Offset]) -> list[OldRange]:
    """What is to be copied: from the log start, or where an earlier run has ended (`starts`).

    Raises PolicyViolationError if retention has deleted records that the earlier run did not copy,
    or if the topic ends before that: it is another one, or has lost records.
    """
    for partition, start in sorted(starts.items()):
        end = bounds[partition].end if partition in bounds else None
        if end is None or end < start:
            raise PolicyViolationError(
                "the old topic ends before what an earlier run has copied"
                f" partition={partition} copied_to={start} end_offset={end}"
                " hint='if the topic was made anew, copy it into another topic'"
            )
    ranges = []
    for partition, offsets in sorted(bounds.items()):
        start = starts.get(partition, offsets.start)
        if start < offsets.start:
            raise PolicyViolationError(
                "records that an earlier run has not copied are deleted"
                f" partition={partition} copied_to={start} start_offset={offsets.start}"
            )
        ranges.append(OldRange(partition, start, offsets.end))
    return ranges


def old_rows(
    spark: SparkSession, options: Mapping[str, object], topic: str, ranges: Sequence[OldRange]
) -> WorkerRows:
    """The committed records of these ranges, with their place in the new topic.

    Columns of the record, PLACE, and TIE, which is offset * old_count + partition: a unique number
    that ascends within a partition. The workers that read them pack them, too.
    """
    mapped = planned_rows(
        spark,
        {
            **options,
            "subscribe": topic,
            "includeHeaders": "true",
            "columns": "key,value,headers,timestamp,timestampType,offset,partition",
            "isolationLevel": READ_COMMITTED,
            "startingOffsets": json.dumps({topic: {str(e.partition): e.start for e in ranges}}),
            "endingOffsets": json.dumps({topic: {str(e.partition): e.end for e in ranges}}),
        },
    )
    return WorkerRows(mapped.tasks, functools.partial(_placed, mapped.rows_of, tuple(ranges)))


def _placed(
    rows_of: BatchFunction, ranges: Sequence[OldRange], tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of tasks, with the columns that `packed_rows.pack` takes."""
    for rows in rows_of(tasks):
        if len(rows):
            yield _with_places(rows, ranges)


def _with_places(rows: pa.RecordBatch, ranges: Sequence[OldRange]) -> pa.RecordBatch:
    count = old_count(ranges)
    starts, sizes = np.zeros(count, dtype=np.int64), np.ones(count)
    for partition, start, end in ranges:
        starts[partition], sizes[partition] = start, max(end - start, 1)
    offsets, partitions = _int64s(rows["offset"]), _int64s(rows["partition"])
    # A number that never falls within a partition.
    shares = (offsets - starts[partitions]) / sizes[partitions]
    columns = {
        "key": rows["key"],
        "value": rows["value"],
        "timestamp": rows["timestamp"],
        "timestamp_type": rows["timestampType"],
        PLACE: numbers(np.floor(shares * _PLACES).astype(np.int64), pa.int64()),
        "headers": rows["headers"],
        TIE: numbers(offsets * count + partitions, pa.int64()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _int64s(column: Any) -> Int64Array:
    values: Int64Array = column.cast(pa.int64()).to_numpy()
    return values


def old_count(ranges: Iterable[OldRange]) -> int:
    """The number of partitions of the old topic."""
    return max((old_range.partition for old_range in ranges), default=0) + 1


def check_groups_have_committed(committed: Mapping[str, Mapping[int, Offset]], topic: str) -> None:
    """Raise PolicyViolationError for a group without any offset. The one that is meant would begin
    in the new topic where its `auto.offset.reset` says."""
    for group, offsets in committed.items():
        if not offsets:
            raise PolicyViolationError(
                f"the group has committed no offset of the topic group={group} topic={topic}"
                " hint='isotherm groups list shows the names of groups'"
            )


def check_groups_follow(
    committed: Mapping[str, Mapping[int, Offset]], ranges: Iterable[OldRange]
) -> None:
    """Raise PolicyViolationError for a group that has not seen all records of an earlier run: it is
    not known any more where these are."""
    for old_range in ranges:
        for group, offsets in committed.items():
            if offsets.get(old_range.partition, 0) < old_range.start:
                raise PolicyViolationError(
                    "the group has not seen all that an earlier run has copied"
                    f" group={group} partition={old_range.partition} copied_to={old_range.start}"
                    f" committed={offsets.get(old_range.partition)}"
                    " hint='translate its offsets in the run that copies these records'"
                )
