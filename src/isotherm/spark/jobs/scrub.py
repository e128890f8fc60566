"""Deep check of the data: reads and compares every byte of the chosen segments and their indexes.

A task checks whole segments (segment_scrub lists the checks). It also gets the segment before each,
whose producer snapshot contains the transactions that are open between the two. Gaps between
segments, and segments with the same offsets, are found from metadata alone. So these are checked
for all segments, even those outside the sample.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from isotherm.errors import ConfigError
from isotherm.remote.scrub.findings import Finding, FindingKind, Problem, segment_finding
from isotherm.remote.scrub.segment_scrub import FETCH_BYTES, SegmentScrubber, StoredObjects
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.bucket_listing import spread_over
from isotherm.spark.jobs.cost import Cost, cost_of_reading, parallel_tasks
from isotherm.spark.metadata.segment_frames import (
    SEGMENT_ARROW,
    segment_of_row,
    segment_row,
    segments_of,
)
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.planning import SegmentPiece, lineage_pieces
from isotherm.spark.small_input import is_small, kept, map_batches, map_groups
from isotherm.spark.tier.storage import storage_of_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FINDING_COLUMNS: tuple[str, ...] = Finding._fields

_FINDING_FIELDS: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
    "segment_id": pa.string(),
    "start_offset": pa.int64(),
    "object": pa.string(),
    "detail": pa.string(),
}
FINDINGS = pa.schema(_FINDING_FIELDS)
_SEGMENT = pa.struct(list(SEGMENT_ARROW))
_OF_PARTITION = ("topic_id", "partition")
# A segment, the segment that ends where it starts (or null), and earlier segments that have some of
# its offsets.
_PAIRED = SEGMENT_ARROW.append(pa.field("previous", _SEGMENT)).append(
    pa.field("overlapping", pa.list_(_SEGMENT))
)
_OVERLAPPING_MAX = 4
"""A segment is compared with at most this many others, because each of them is read for it."""
# One row per finding, and one row with a null kind per segment, with the counts of its read.
_SCRUBBED = pa.schema(_FINDING_FIELDS | {"bytes_read": pa.int64(), "batches": pa.int64()})

# GETs besides the log: manifest and five indexes; manifest and producer snapshot of the segment
# before.
_SMALL_OBJECTS = 8
# Below this many bytes of logs a task costs more than it saves: its Python process takes seconds to
# start, and reads hundreds of megabytes in a second.
_TASK_BYTES_MIN = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """`sample` is the share of segments to read; `seed` chooses them. `may_have_gaps` is for
    compacted topics. Without `with_records` only the headers and CRCs of batches are checked."""

    sample: float = 1.0
    seed: int = 0
    may_have_gaps: bool = False
    with_records: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 1:
            raise ConfigError(f"a sample is a share above 0, at most 1 sample={self.sample}")


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """`findings` has FINDING_COLUMNS and is persisted until `close`."""

    findings: DataFrame
    segments: int
    bytes_read: int
    batches: int

    def close(self) -> None:
        self.findings.unpersist()


def chosen_segments(segments: DataFrame, settings: ScrubSettings) -> DataFrame:
    """The segments that a scrub with these settings reads."""
    finished = _finished(segments)
    if settings.sample == 1:
        return finished
    # A hash of the id, so that the same seed chooses the same segments however Spark partitions the
    # DataFrame.
    drawn = sql.pmod(sql.xxhash64("segment_id", sql.lit(settings.seed)), sql.lit(1_000_000))
    return finished.where(drawn < int(settings.sample * 1_000_000))


def scrub_cost(segments: DataFrame, settings: ScrubSettings) -> Cost:
    return cost_of_reading(
        chosen_segments(segments, settings),
        fetch_bytes=FETCH_BYTES,
        requests_per_segment=_SMALL_OBJECTS,
        tasks=parallel_tasks(segments.sparkSession),
    )


def scrub(
    segments: DataFrame,
    store: ObjectStoreSettings | SourceOptions,
    settings: ScrubSettings = ScrubSettings(),
) -> ScrubReport:
    """Check the finished ones of `segments` (as in segment_frames). `store` is a bucket in a
    built-in layout, or options that name a user's RemoteStorageManager."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scrubber = _open_scrubber(store, settings)
        for batch in batches:
            for row in batch.to_pylist():
                previous = row["previous"] and segment_of_row(row["previous"])
                overlapping = [segment_of_row(segment) for segment in row["overlapping"]]
                result = scrubber.scrub(segment_of_row(row), previous, overlapping)
                rows: list[dict[str, Any]] = [finding._asdict() for finding in result.findings]
                rows.append({"bytes_read": result.bytes_read, "batches": result.batches})
                yield pa.RecordBatch.from_pylist(rows, schema=_SCRUBBED)

    chosen = chosen_segments(_with_previous(segments), settings)
    tasks = _reading_tasks(chosen)
    if is_small(segments.sparkSession) and tasks == 1:
        scrubbed = map_batches(chosen, read, _SCRUBBED)
    else:
        # There are several tasks per core, and the hash of the id mixes segments of all partitions,
        # so that large segments do not meet in one task.
        spread = chosen.repartition(tasks, "segment_id")
        scrubbed = kept(spread.mapInArrow(read, from_arrow_schema(_SCRUBBED)))
    totals = scrubbed.where(sql.col("kind").isNull()).agg(
        sql.count(sql.lit(1)), sql.sum("bytes_read"), sql.sum("batches")
    )
    count, size, batches = totals.first() or (0, 0, 0)
    of_data = scrubbed.where(sql.col("kind").isNotNull()).select(*FINDING_COLUMNS)
    findings = kept(of_data.unionByName(check_histories(segments)))
    if not is_small(segments.sparkSession):
        # Compute the findings now, while `scrubbed` is persisted. Otherwise every segment would be
        # read again.
        findings.count()
    scrubbed.unpersist()
    return ScrubReport(findings, int(count), int(size or 0), int(batches or 0))


def _reading_tasks(chosen: DataFrame) -> int:
    """The number of tasks that read the segments' logs. The metadata of a job in a small session is
    small, but the logs need not be."""
    tasks = spread_over(chosen.sparkSession)
    if not is_small(chosen.sparkSession):
        return tasks
    size = chosen.agg(sql.sum(sql.col("size_in_bytes").cast("long"))).collect()[0][0] or 0
    return max(1, min(tasks, -(-int(size) // _TASK_BYTES_MIN)))


def _open_scrubber(
    store: ObjectStoreSettings | SourceOptions, settings: ScrubSettings
) -> SegmentScrubber:
    return SegmentScrubber(
        storage_of_job(store),
        StoredObjects(store) if isinstance(store, ObjectStoreSettings) else None,
        may_have_gaps=settings.may_have_gaps,
        with_records=settings.with_records,
    )


def _with_previous(segments: DataFrame) -> DataFrame:
    """The finished segments as _PAIRED: each with its predecessor in the log, and with overlapping
    segments."""

    def pair(group: pa.Table) -> pa.Table:
        batches = group.combine_chunks().to_batches()
        segments = [segment for batch in batches for segment in segments_of(batch)]
        before = previous_segments(segments)
        beside = overlapping_segments(segments)
        rows = [
            segment_row(segment_metadata)
            | {
                "previous": None,
                "overlapping": [*map(segment_row, beside[segment_metadata.segment_id.id])],
            }
            for segment_metadata in segments
        ]
        for row, segment in zip(rows, segments, strict=True):
            if segment.segment_id.id in before:
                row["previous"] = segment_row(before[segment.segment_id.id])
        return pa.Table.from_pylist(rows, schema=_PAIRED)

    return map_groups(_finished(segments), _OF_PARTITION, pair, _PAIRED)


def previous_segments(
    segments: list[RemoteLogSegmentMetadata],
) -> dict[uuid.UUID, RemoteLogSegmentMetadata]:
    """The segment that ends where another begins, by the other's segment id, for all finished
    segments of one partition."""
    return {
        later.segment.segment_id.id: earlier.segment
        for earlier, later in pairwise(lineage_pieces(segments))
        if earlier.segment.end_offset_inclusive + 1 == later.segment.start_offset
    }


def overlapping_segments(
    segments: Sequence[RemoteLogSegmentMetadata],
) -> dict[uuid.UUID, list[RemoteLogSegmentMetadata]]:
    """The earlier segments (by start offset) that have some offsets of another, by the other's
    segment id, for all finished segments of one partition. At most _OVERLAPPING_MAX for each."""
    ordered = sorted(
        segments, key=lambda segment: (segment.start_offset, segment.segment_id.id.bytes)
    )
    reaching: list[RemoteLogSegmentMetadata] = []
    beside = {}
    for segment in ordered:
        reaching = [one for one in reaching if one.end_offset_inclusive >= segment.start_offset]
        beside[segment.segment_id.id] = reaching[-_OVERLAPPING_MAX:]
        reaching.append(segment)
    return beside


def _finished(segments: DataFrame) -> DataFrame:
    return segments.where(sql.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name)


def check_histories(segments: DataFrame) -> DataFrame:
    """The findings of `history_findings` for all partitions. They need metadata alone."""

    def check(group: pa.Table) -> pa.Table:
        findings = [
            finding._asdict()
            for batch in group.combine_chunks().to_batches()
            for finding in history_findings(list(segments_of(batch)))
        ]
        return pa.Table.from_pylist(findings, schema=FINDINGS)

    return map_groups(_finished(segments), _OF_PARTITION, check, FINDINGS)


def history_findings(segments: list[RemoteLogSegmentMetadata]) -> Iterator[Finding]:
    """Find the gaps between the finished segments of one partition, and the segments that are not
    part of its log."""
    pieces = lineage_pieces(segments)
    for earlier, later in pairwise(pieces):
        if later.start_offset > earlier.end_offset:
            yield segment_finding(
                later.segment,
                Problem(
                    FindingKind.HISTORY_GAP,
                    f"no segment holds these offsets first={earlier.end_offset}"
                    f" last={later.start_offset - 1}",
                ),
            )
    read = {piece.segment.segment_id.id for piece in pieces}
    for segment in segments:
        if segment.segment_id.id not in read:
            yield segment_finding(segment, _unread(segment, pieces))


def _unread(segment: RemoteLogSegmentMetadata, pieces: Sequence[SegmentPiece]) -> Problem:
    """The reason why `pieces`, the log, contain nothing of a segment."""
    end = segment.end_offset_inclusive
    held_to = segment.start_offset
    for piece in pieces:
        if piece.start_offset <= held_to < piece.end_offset:
            held_to = piece.end_offset
    if held_to > end:
        fact = "other segments hold all of its offsets"
        return Problem(FindingKind.DUPLICATE_SEGMENT, f"{fact} end_offset={end}")
    fact = "by its leader epochs it is no part of the log, and no other segment holds its offsets"
    epochs = dict(segment.segment_leader_epochs)
    return Problem(
        FindingKind.OUTSIDE_HISTORY, f"{fact} first={held_to} end_offset={end} epochs={epochs}"
    )
