"""Computes the state of every remote segment at any point of a metadata topic's history.

A task reads one partition of the topic and folds it with the kernels that a broker uses at its
start. There is no shuffle: a task has in memory one run of records and the live segments of its
partition. With `spread`, several tasks read the files of one partition in parallel, and Spark
groups the records by user partition and sorts them by offset.

Damage in the topic does not end the job. It becomes a finding: a row with the offset and a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from isotherm.remote.metadata.folding.segment_fold import SEGMENTS
from isotherm.remote.metadata.topic.log_files import RUN_MAX_BYTES
from isotherm.spark.jobs.cost import Cost
from isotherm.spark.jobs.replay_spread import folded_by_place
from isotherm.spark.metadata.remote_metadata_log import LogSlice, MetadataLog
from isotherm.spark.metadata.slice_fold import FOLDED, POSITION, SEGMENT, fold_slice
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.small_input import is_small, kept
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_RECORD_SIZE = 160
"""Approximate bytes of an event and the header of its batch."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in the topic's history. The default is its end.

    `offsets` has the end offset of each metadata partition, exclusive. With `timestamp_ms` each
    partition ends before its first record with a later Kafka timestamp.
    """

    offsets: Mapping[int, Offset] = field(default_factory=dict)
    timestamp_ms: TimestampMs | None = None

    def cut(self, slice_: LogSlice) -> LogSlice:
        return slice_.until(self.offsets.get(slice_.number))


class Replay:
    """The result of a replay. A context manager: Spark persists the result until it ends."""

    def __init__(self, folded: DataFrame) -> None:
        self._folded = kept(folded)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folded.unpersist()

    @property
    def segments(self) -> DataFrame:
        """Every live segment: segment_fold.SEGMENTS and the metadata partition."""
        chosen = self._folded.where(self._folded.kind == SEGMENT)
        return chosen.select("metadata_partition", *SEGMENTS.names)

    @property
    def findings(self) -> DataFrame:
        """metadata_partition, offset, kind, text."""
        folded = self._folded
        chosen = folded.where(~folded.kind.isin(SEGMENT, POSITION))
        return chosen.select("metadata_partition", "offset", "kind", "text").orderBy(
            "metadata_partition", "offset"
        )

    def positions(self) -> dict[int, Offset]:
        """The end offset of each metadata partition, exclusive."""
        positions: dict[int, Offset] = {}
        for row in self._position_rows():
            # With `spread` several tasks have rows of one metadata partition.
            position = positions.get(row.metadata_partition, row.offset)
            positions[row.metadata_partition] = max(position, row.offset)
        return positions

    def records(self) -> int:
        """The number of folded records."""
        return sum(row.records for row in self._position_rows())

    def _position_rows(self) -> list[Any]:
        folded = self._folded
        chosen = folded.where(folded.kind == POSITION)
        return chosen.select("metadata_partition", "offset", "records").collect()


def replay(
    spark: SparkSession, log: MetadataLog, *, as_of: AsOf = AsOf(), spread: bool = False
) -> Replay:
    """Fold a metadata topic, the audit topic, or a dump of either.

    `spread` divides each partition of the topic among tasks. A time in `as_of` then costs an
    additional read of the topic.
    """
    slices = [as_of.cut(log_slice) for log_slice in log.slices()]
    count = partition_count(slices)
    if spread and not is_small(spark):
        return Replay(folded_by_place(spark, log, slices, count, as_of.timestamp_ms))

    def fold(number: int) -> Iterator[pa.RecordBatch]:
        yield from fold_slice(log, slices[number], count, as_of.timestamp_ms)

    return Replay(each_of(spark, len(slices), fold, FOLDED))


def cost_of_log(log: MetadataLog, positions: Mapping[int, Offset] | None = None) -> Cost:
    """The cost to read a log from `positions`, by default from its beginning. The bytes are the
    sizes of its files, or without files an estimate from the number of records."""
    gets = size = 0
    slices = log.slices()
    for log_slice in slices:
        rest = log_slice.since((positions or {}).get(log_slice.number, 0))
        gets += sum(-(-file.size // RUN_MAX_BYTES) for file in rest.files)
        size += sum(file.size for file in rest.files)
        if not rest.files and rest.end_offset is not None:
            size += (rest.end_offset - rest.start_offset) * _RECORD_SIZE
    return Cost(gets=gets, bytes_read=size, tasks=max(len(slices), 1))


def partition_count(slices: Sequence[LogSlice]) -> int | None:
    """The number of partitions of the topic, on which the metadata partition of a user partition
    depends. None for a dump that lacks some of them."""
    numbers = [log_slice.number for log_slice in slices]
    return len(numbers) if numbers == list(range(len(numbers))) else None
