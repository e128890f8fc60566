"""Compacts a tiered topic by key (KIP-534's rules), in place or into another bucket or prefix.

plan       find the pieces of the log, and which of them can be cleaned (compact_plan)
stage      write new segments to the target, without manifests, in two Spark passes
           (compact_passes)
publish    the driver or the broker (rewrite_run)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from isotherm.remote.compaction.compacted_piece import CompactionRules
from isotherm.remote.rewriting.journal import RunKind
from isotherm.spark.jobs.compact_passes import (
    PassSettings,
    newest_of_all,
    open_producers_of,
    shuffle_partitions,
    stage_all,
)
from isotherm.spark.jobs.compact_plan import CompactionPlan, plan_compaction
from isotherm.spark.jobs.cost import Cost, parallel_tasks
from isotherm.spark.jobs.rewrite_plan import read_histories
from isotherm.spark.jobs.rewrite_run import (
    RewriteSettings,
    begin_journals,
    check_target,
    end_staging,
    new_run,
    source_and_target,
)
from isotherm.spark.jobs.rewrite_tasks import StagedPiece, open_journals
from isotherm.spark.options import SourceOptions
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INDEX_GETS = 5
"""GETs for one segment: its indexes, while it is planned and written, and its manifest."""
_STAGING_PUTS = 4
"""PUTs for one new segment: its announcement, log, indexes and manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings(RewriteSettings):
    """Delete horizons of tombstones are compared with `now_ms`, the time of the run."""

    delete_retention_ms: int

    @property
    def rules(self) -> CompactionRules:
        return CompactionRules(
            now_ms=self.now_ms,
            delete_retention_ms=self.delete_retention_ms,
            fetch_bytes=self.fetch_bytes,
        )


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The counts of one partition.

    `segments` and `bytes` are those of the whole partition. `changed` counts the rewritten
    segments, in a copy all of them, and `uncleanable` the segments above the cleanable part. The
    records (including control records) and bytes before and after are those of the rewritten
    segments.
    """

    partition: TopicIdPartition
    segments: int
    bytes: int
    uncleanable: int
    changed: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int

    def as_row(self) -> dict[str, Any]:
        row = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {"topic": self.partition.topic, "partition": self.partition.partition, **row}


def read_plan(options: SourceOptions, settings: CompactionSettings) -> CompactionPlan:
    """Read the histories, fetch indexes, and plan. In place nothing of a partition is cleaned whose
    leader epochs are not proven. Raises the errors of `read_histories`."""
    histories = read_histories(options, settings)
    return plan_compaction(
        storage_of_job(settings.source),
        histories.pieces,
        in_place=settings.in_place,
        unproven=histories.unproven,
    )


def cost_of(spark: SparkSession, plan: CompactionPlan, settings: CompactionSettings) -> Cost:
    """The cost of both passes: two reads of the cleaned segments, one of the other segments of a
    copy, and one to verify the written segments, which are at most as large as their sources."""
    worked_on = plan.cleaned if settings.target is None else plan.pieces

    def fetches(pieces: Iterable[Any]) -> tuple[int, int]:
        sizes = [piece.segment.segment_size_in_bytes for piece in pieces]
        return sum(-(-size // settings.fetch_bytes) for size in sizes), sum(sizes)

    first, second = fetches(plan.cleaned), fetches(worked_on)
    return Cost(
        gets=first[0] + 2 * second[0] + 2 * _INDEX_GETS * len(worked_on),
        lists=2,
        puts=_STAGING_PUTS * len(worked_on),
        bytes_read=first[1] + 2 * second[1],
        tasks=parallel_tasks(spark),
    )


def compact(
    spark: SparkSession,
    plan: CompactionPlan,
    settings: CompactionSettings,
    progress: Callable[[str], None] = lambda text: None,
) -> list[PartitionReport]:
    """Stage all segments. Then publish a copy, or leave the journals of a run in place to the
    broker.

    After an error `recover` removes the staged segments. An error in a task, such as
    CorruptObjectError, arrives as the cause of a PySparkException.
    """
    check_target(plan.partitions, settings)
    worked_on = plan.cleaned if settings.in_place else list(plan.pieces)
    run = new_run()
    passes = PassSettings(
        run=run,
        source=settings.source,
        target=settings.written,
        rules=settings.rules,
        in_place=settings.in_place,
    )
    if not worked_on:
        return report(plan, [])
    journals = open_journals(settings.written)
    progress("reading the keys")
    newest = newest_of_all(spark, plan.cleaned, passes)
    try:
        with shuffle_partitions(spark, plan.cleaned):
            opened = open_producers_of(plan.cleaned, newest)
        progress(f"writing {len(worked_on)} segments again")
        # Only after pass 1, because a run that stores nothing for long counts as abandoned.
        started = begin_journals(journals, run, worked_on, settings)
        staged = stage_all(spark, worked_on, newest, opened, passes)
    finally:
        newest.unpersist()
    progress("publishing")
    end_staging(journals, started, staged, settings)
    return report(plan, staged)


def report(plan: CompactionPlan, staged: Sequence[StagedPiece]) -> list[PartitionReport]:
    reports = []
    for partition in plan.partitions:
        mine = [
            staged_piece
            for staged_piece in staged
            if staged_piece.piece.segment.topic_id_partition == partition
        ]
        pieces = [piece for piece in plan.pieces if piece.segment.topic_id_partition == partition]
        reports.append(
            PartitionReport(
                partition,
                segments=len(pieces),
                bytes=sum(piece.segment.segment_size_in_bytes for piece in pieces),
                uncleanable=sum(not piece.is_cleaned for piece in pieces),
                changed=sum(staged_piece.replacement is not None for staged_piece in mine),
                records_before=sum(staged_piece.records_read for staged_piece in mine),
                records_after=sum(staged_piece.records_kept for staged_piece in mine),
                bytes_before=sum(staged_piece.bytes_read for staged_piece in mine),
                bytes_after=sum(staged_piece.bytes_written for staged_piece in mine),
            )
        )
    return reports


def settings_of(
    options: SourceOptions,
    *,
    now_ms: TimestampMs,
    delete_retention_ms: int,
    keep_old_ms: int = 0,
    to_url: str | None = None,
    to_storage: dict[str, str] | None = None,
) -> CompactionSettings:
    """Settings from the options of the source, and those of a copy's target
    (`source_and_target`)."""
    source, target = source_and_target(options, to_url, to_storage)
    return CompactionSettings(
        kind=RunKind.COMPACTION,
        source=source,
        target=target,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        fetch_bytes=options.fetch_bytes,
        keep_old_ms=keep_old_ms,
    )
