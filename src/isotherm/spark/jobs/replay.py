"""The state of every remote segment at any point of a metadata topic's history.

A task reads one partition of the topic and folds it with the compiled kernels that a broker's start
uses: nothing is shuffled, and a task holds one run of records and the live segments of its
partition. Where one partition of the topic has to be shared out (`spread`), tasks read its files
beside one another and Spark brings the records of each user partition together, in their order.

What is wrong with the topic does not end the job: it is a finding, a row that says where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.folding.segment_fold import SEGMENTS, SegmentFold
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.spark.driver.metadata_log import (
    RUN_MAX_BYTES,
    LogSlice,
    MetadataLog,
    RecordRun,
    as_events,
    until_time,
)
from isotherm.spark.jobs.cost import Cost
from isotherm.types import Offset, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

HEAD_MISSING = "head missing"
RECORDS_MISSING = "records missing"
DAMAGED_BATCH = "damaged batch"
DAMAGED_RECORD = "damaged record"
NO_METADATA = "no metadata"
MISPLACED = "misplaced"
HEAD_MISSING_TEXT = (
    "the topic begins here: retention or the dump has cut off its first records, and segments in"
    " them are missing"
)
FINDINGS_MAX = 1000
"""Of one metadata partition; what is beyond is counted in the last one."""

_RECORD_SIZE = 160
"""Of an event with its batch's header, about."""
_SEGMENT = "segment"
_POSITION = "position"
_FIELDS: list[Any] = [
    ("kind", pa.string()),
    ("metadata_partition", pa.int32()),
    ("offset", pa.int64()),
    ("text", pa.string()),
    ("records", pa.int64()),
]
FOLDED = pa.schema([*_FIELDS, *SEGMENTS])


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in the topic's history; by default its end.

    offsets: per metadata partition the first offset that does not count. timestamp_ms: the first
    record of each partition that is later, by Kafka's timestamp, and all after it do not count.
    """

    offsets: Mapping[int, Offset] = field(default_factory=dict)
    timestamp_ms: TimestampMs | None = None

    def cut(self, wanted: LogSlice) -> LogSlice:
        return wanted.until(self.offsets.get(wanted.number))


class Replay:
    """What a replay found. A context manager: the result is kept by Spark until it ends."""

    def __init__(self, folded: DataFrame) -> None:
        self._folded = folded.persist()

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
        chosen = self._folded.where(self._folded.kind == _SEGMENT)
        return chosen.select("metadata_partition", *SEGMENTS.names)

    @property
    def findings(self) -> DataFrame:
        """metadata_partition, offset, kind, text."""
        folded = self._folded
        chosen = folded.where(~folded.kind.isin(_SEGMENT, _POSITION))
        return chosen.select("metadata_partition", "offset", "kind", "text").orderBy(
            "metadata_partition", "offset"
        )

    def positions(self) -> dict[int, Offset]:
        """By metadata partition the offset after the last record that counts."""
        positions: dict[int, Offset] = {}
        for row in self._position_rows():
            known = positions.get(row.metadata_partition, row.offset)
            positions[row.metadata_partition] = max(known, row.offset)
        return positions

    def records(self) -> int:
        """How many records were folded."""
        return sum(row.records for row in self._position_rows())

    def _position_rows(self) -> list[Any]:
        folded = self._folded
        chosen = folded.where(folded.kind == _POSITION)
        return chosen.select("metadata_partition", "offset", "records").collect()


def replay(
    spark: SparkSession, log: MetadataLog, *, as_of: AsOf = AsOf(), spread: bool = False
) -> Replay:
    """Fold a metadata topic, the audit topic, or a dump of either.

    `spread` shares each partition of the topic out among tasks; a time in `as_of` then costs a
    reading of its own.
    """
    slices = [as_of.cut(each) for each in log.slices()]
    count = partition_count(slices)
    if spread:
        # It stands on this module.
        from isotherm.spark.jobs.replay_spread import folded_by_place

        return Replay(folded_by_place(spark, log, slices, count, as_of.timestamp_ms))

    def fold(number: int) -> Iterator[pa.RecordBatch]:
        yield from fold_slice(log, slices[number], count, as_of.timestamp_ms)

    return Replay(each_of(spark, len(slices), fold, FOLDED))


def cost_of_log(log: MetadataLog, positions: Mapping[int, Offset] | None = None) -> Cost:
    """Reading a log from `positions`, by default from its beginning. Files tell their sizes; of a
    topic the number of its records does, about."""
    gets = size = 0
    slices = log.slices()
    for each in slices:
        wanted = each.since((positions or {}).get(each.number, 0))
        gets += sum(-(-file.size // RUN_MAX_BYTES) for file in wanted.files)
        size += sum(file.size for file in wanted.files)
        if not wanted.files and wanted.end_offset is not None:
            size += (wanted.end_offset - wanted.start_offset) * _RECORD_SIZE
    return Cost(gets=gets, bytes_read=size, tasks=max(len(slices), 1))


def each_of(
    spark: SparkSession,
    count: int,
    work: Callable[[int], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """The batches of `work(0)`, `work(1)` and so on, each in a task of its own."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy().tolist():
                yield from work(number)

    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, spark_schema(schema))


def spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def partition_count(slices: Sequence[LogSlice]) -> int | None:
    """Partitions of the topic, by which user partitions are placed; None when a dump leaves some
    out and so does not tell."""
    numbers = [each.number for each in slices]
    return len(numbers) if numbers == list(range(len(numbers))) else None


class Findings:
    """Of one metadata partition, up to FINDINGS_MAX."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._rows: list[dict[str, Any]] = []
        self._count = 0

    def add(self, kind: str, offset: Offset, text: str) -> None:
        self._count += 1
        if self._count <= FINDINGS_MAX:
            place = {"metadata_partition": self._number, "offset": offset}
            self._rows.append({"kind": kind, "text": text, **place})

    def rows(self) -> list[dict[str, Any]]:
        if self._count > FINDINGS_MAX:
            left = self._count - FINDINGS_MAX
            self._rows[-1]["text"] += f" (and {left} more in this metadata partition)"
        return self._rows

    def of_kind(self, kind: str) -> int:
        return sum(row["kind"] == kind for row in self._rows)


class Gaps:
    """Finds offsets that runs, one after the other, lack: events are appended without gaps, and only
    keyed records are compacted away."""

    def __init__(self) -> None:
        self._last: Offset = -1
        self._last_is_event = False

    def of(self, columns: MetadataColumns) -> Iterator[tuple[Offset, str]]:
        """The first offset of each gap, and what is missing."""
        is_event = columns.key.is_null().to_numpy(zero_copy_only=False)
        follows = np.concatenate(([self._last_is_event], is_event[:-1]))
        steps = np.diff(columns.offset, prepend=self._last)
        for index in np.flatnonzero(is_event & follows & (steps > 1)).tolist():
            end = int(columns.offset[index])
            yield end - int(steps[index]) + 1, _gap_text(end)
        self._last = int(columns.offset[-1])
        self._last_is_event = bool(is_event[-1])

    def before(self, offset: Offset) -> Iterator[tuple[Offset, str]]:
        """The gap up to where the next file begins, which is not read here."""
        if self._last_is_event and offset > self._last + 1:
            yield self._last + 1, _gap_text(offset)


def _gap_text(end: Offset) -> str:
    return f"records are missing up to offset={end - 1}"


class SliceFold:
    """Folds the runs of one metadata partition, and finds what is wrong with them."""

    def __init__(self, number: int, topic_partitions: int | None) -> None:
        self.findings = Findings(number)
        self.fold = SegmentFold(self._on_corrupt, self._on_partition)
        self.records = 0
        self.next_offset: Offset = -1
        self.number = number
        self._topic_partitions = topic_partitions
        self._damaged = 0
        self._gaps = Gaps()

    def begin(self, wanted: LogSlice) -> None:
        """Before the first run of a slice that begins where the topic does."""
        self.next_offset = wanted.start_offset
        if wanted.start_offset > 0:
            self.findings.add(HEAD_MISSING, wanted.start_offset, HEAD_MISSING_TEXT)

    def feed(self, run: RecordRun) -> None:
        if len(run.columns.offset):
            for first, text in self._gaps.of(run.columns):
                self.findings.add(RECORDS_MISSING, first, text)
        self.feed_some(run.columns)

    def feed_some(self, columns: MetadataColumns) -> None:
        """As `feed` of records between which others have been left out on purpose."""
        self.fold.feed(columns)
        self.records += len(columns.offset)
        self.next_offset = max(self.next_offset, columns.next_offset)

    def end(self) -> None:
        if self.records and self._damaged == self.records:
            self.findings.add(
                NO_METADATA,
                self.next_offset,
                "no record is one of remote log metadata: is this the metadata topic?",
            )

    def _on_corrupt(self, offset: Offset, reason: str) -> None:
        self._damaged += 1
        self.findings.add(DAMAGED_RECORD, offset, reason)

    def on_damaged_batch(self, offset: Offset, reason: str) -> None:
        self.findings.add(DAMAGED_BATCH, offset, reason)

    def _on_partition(self, partition: TopicIdPartition) -> bool:
        count = self._topic_partitions
        expected = self.number if count is None else metadata_partition(partition, count)
        if expected != self.number and not self.findings.of_kind(MISPLACED):
            self.findings.add(
                MISPLACED,
                self.next_offset,
                f"events of {partition} belong in metadata partition {expected} of {count}:"
                " partitions of the topic are missing, or are of another one",
            )
        return True


def fold_slice(
    log: MetadataLog,
    wanted: LogSlice,
    topic_partitions: int | None,
    as_of_ms: TimestampMs | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of one metadata partition, in a task."""
    folding = SliceFold(wanted.number, topic_partitions)
    folding.begin(wanted)
    for run in until_time(log.read(wanted, folding.on_damaged_batch), as_of_ms):
        folding.feed(as_events(log.topic, run))
    yield from folded_rows(folding)


def folded_rows(folding: SliceFold) -> Iterator[pa.RecordBatch]:
    """What came out, as rows of FOLDED."""
    folding.end()
    number, segments = folding.number, folding.fold.state().segments
    position = {
        "kind": _POSITION,
        "metadata_partition": number,
        "offset": folding.next_offset,
        "records": folding.records,
    }
    folded_rows = pa.Table.from_pylist([position, *folding.findings.rows()], schema=FOLDED)
    yield from folded_rows.to_batches()
    kind = pa.repeat(pa.scalar(_SEGMENT), len(segments))
    numbers = pa.repeat(pa.scalar(number, pa.int32()), len(segments))
    rows = segments.append_column("kind", kind).append_column("metadata_partition", numbers)
    for name in ("offset", "text", "records"):
        rows = rows.append_column(name, pa.nulls(len(segments), FOLDED.field(name).type))
    yield from rows.select(FOLDED.names).cast(FOLDED).to_batches(max_chunksize=50_000)
