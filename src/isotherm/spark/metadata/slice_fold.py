"""Folds one partition of a metadata topic in a Spark task, and collects findings about its records.

Damage does not end the job. It becomes a finding: a row with the offset and a text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.folding.decoded_run import decode_run
from isotherm.remote.metadata.folding.segment_fold import SEGMENTS, SegmentFold
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.spark.metadata.remote_metadata_log import (
    LogSlice,
    MetadataLog,
    RecordRun,
    as_events,
    until_time,
)
from isotherm.types import Offset, TimestampMs, TopicIdPartition

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
"""The most findings of one metadata partition that are kept. The last one contains the number of
further ones."""

# Kinds of rows that are not findings.
SEGMENT = "segment"
POSITION = "position"
_FIELDS: list[Any] = [
    ("kind", pa.string()),
    ("metadata_partition", pa.int32()),
    ("offset", pa.int64()),
    ("text", pa.string()),
    ("records", pa.int64()),
]
FOLDED = pa.schema([*_FIELDS, *SEGMENTS])


class Findings:
    """The findings of one metadata partition, up to FINDINGS_MAX."""

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
    """Finds missing offsets in consecutive runs. Only gaps between two events count: compaction
    removes keyed records, and leaves events alone."""

    def __init__(self) -> None:
        self._last: Offset = -1
        self._last_is_event = False

    def of(self, columns: MetadataColumns) -> Iterator[tuple[Offset, str]]:
        """Yield the first offset of each gap, and a text."""
        is_event = columns.key.is_null().to_numpy(zero_copy_only=False)
        follows = np.concatenate(([self._last_is_event], is_event[:-1]))
        steps = np.diff(columns.offset, prepend=self._last)
        for index in np.flatnonzero(is_event & follows & (steps > 1)).tolist():
            end = int(columns.offset[index])
            yield end - int(steps[index]) + 1, _gap_text(end)
        self._last = int(columns.offset[-1])
        self._last_is_event = bool(is_event[-1])

    def before(self, offset: Offset) -> Iterator[tuple[Offset, str]]:
        """The gap up to the start of the next file, which another task reads."""
        if self._last_is_event and offset > self._last + 1:
            yield self._last + 1, _gap_text(offset)


def _gap_text(end: Offset) -> str:
    return f"records are missing up to offset={end - 1}"


class SliceFold:
    """Folds the runs of one metadata partition, and collects findings."""

    def __init__(self, number: int, topic_partitions: int | None) -> None:
        self.findings = Findings(number)
        self.fold = SegmentFold(self._on_corrupt, self._on_partition)
        self.records = 0
        self.next_offset: Offset = -1
        self.number = number
        self._topic_partitions = topic_partitions
        self._damaged = 0
        self._gaps = Gaps()

    def begin(self, log_slice: LogSlice) -> None:
        """Prepare for the first run of a slice that begins at the topic's start."""
        self.next_offset = log_slice.start_offset
        if log_slice.start_offset > 0:
            self.findings.add(HEAD_MISSING, log_slice.start_offset, HEAD_MISSING_TEXT)

    def feed(self, run: RecordRun) -> None:
        if len(run.columns.offset):
            for first, text in self._gaps.of(run.columns):
                self.findings.add(RECORDS_MISSING, first, text)
        self.feed_some(run.columns)

    def feed_some(self, columns: MetadataColumns) -> None:
        """As `feed`, but without a search for gaps: for records of a filtered partition."""
        self.fold.feed(decode_run(columns))
        self.records += len(columns.offset)
        self.next_offset = max(self.next_offset, columns.next_offset)

    def end(self) -> None:
        """Finish the fold after the last run."""
        self.fold.finish()
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
                f"events of {partition} belong to metadata partition {expected} of {count}:"
                " partitions of the topic are missing, or are of another one",
            )
        return True


def fold_slice(
    log: MetadataLog,
    log_slice: LogSlice,
    topic_partitions: int | None,
    as_of_ms: TimestampMs | None = None,
) -> Iterator[pa.RecordBatch]:
    """Fold one metadata partition, in a task. Yields rows of FOLDED."""
    folding = SliceFold(log_slice.number, topic_partitions)
    folding.begin(log_slice)
    for run in until_time(log.read(log_slice, folding.on_damaged_batch), as_of_ms):
        folding.feed(as_events(log.topic, run))
    yield from folded_rows(folding)


def folded_rows(folding: SliceFold) -> Iterator[pa.RecordBatch]:
    """The result of a fold, as rows of FOLDED."""
    folding.end()
    number, segments = folding.number, folding.fold.state().segments
    position = {
        "kind": POSITION,
        "metadata_partition": number,
        "offset": folding.next_offset,
        "records": folding.records,
    }
    folded_rows = pa.Table.from_pylist([position, *folding.findings.rows()], schema=FOLDED)
    yield from folded_rows.to_batches()
    kind = pa.repeat(pa.scalar(SEGMENT), len(segments))
    numbers = pa.repeat(pa.scalar(number, pa.int32()), len(segments))
    rows = segments.append_column("kind", kind).append_column("metadata_partition", numbers)
    for name in ("offset", "text", "records"):
        rows = rows.append_column(name, pa.nulls(len(segments), FOLDED.field(name).type))
    yield from rows.select(FOLDED.names).cast(FOLDED).to_batches(max_chunksize=50_000)
