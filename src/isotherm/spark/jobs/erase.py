"""Erases records from a tiered topic, in place or in a copy, and proves it.

plan       the pieces of the log, and what cannot be reached (erase_plan)
select     one Spark pass reads the log and finds the matching records (erase_matches,
           erase_selection)
stage      a second pass writes the segments with matches again
publish    the driver or the broker (rewrite_run)
prove      the log is read once more up to the end of the run; the certificate says what was
           found (erase_proof, remote/erasure/certificate.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from isotherm.remote.erasure.certificate import (
    ErasedPartition,
    ErasedSegment,
    ErasedTable,
    ErasureCertificate,
    joined,
)
from isotherm.remote.erasure.erased_piece import ErasureRules, erase_piece
from isotherm.remote.rewriting.journal import RewriteJournal
from isotherm.remote.storage.bucket_protection import read_protection
from isotherm.spark.jobs.cost import Cost, parallel_tasks
from isotherm.spark.jobs.erase_certificates import get_offsets, put_certificate, put_offsets
from isotherm.spark.jobs.erase_matches import Matches
from isotherm.spark.jobs.erase_plan import ErasurePlan
from isotherm.spark.jobs.erase_selection import (
    Selector,
    UndecodedValues,
)
from isotherm.spark.jobs.erase_settings import ErasureSettings
from isotherm.spark.jobs.erase_tables import (
    ErasedOffsets,
    OpenedTable,
    erase_rows,
    erased_offsets,
    joined_offsets,
)
from isotherm.spark.jobs.erase_values import type_text
from isotherm.spark.jobs.rewrite_run import (
    begin_journals,
    check_target,
    end_staging,
    new_run,
)
from isotherm.spark.jobs.rewrite_tasks import (
    STAGED_COLUMNS,
    StagedPiece,
    Stager,
    TaskSettings,
    map_pieces,
    offset_tasks,
    offsets_of_pieces,
    open_journals,
    staged_pieces,
)
from isotherm.spark.task_folder import task_folder
from isotherm.types import TopicIdPartition, uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.record.batch_table import Int64Array
    from isotherm.remote.rewriting.pieces import Piece

_INDEX_GETS = 5
"""GETs for one segment: its indexes, while it is planned and written, and its manifest."""
OFFSETS_WITH_TASKS_MAX = 100_000
"""The most records whose offsets every task of the second pass gets, 8 bytes each. Those of more
are shuffled to the tasks of their pieces."""
_STAGING_PUTS = 4
"""PUTs for one new segment: its announcement, log, indexes and manifest."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The counts of one partition. `matching` are the segments with matching `records`, `bytes` the
    size of their logs. `changed` counts the rewritten segments, in a copy all of them;
    `bytes_after` is the size of their new logs."""

    partition: TopicIdPartition
    segments: int
    matching: int
    records: int
    bytes: int
    unreachable: int
    undecoded: UndecodedValues | None = None
    changed: int = 0
    bytes_after: int = 0

    def as_row(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "segments": self.segments,
            "matching": self.matching,
            "records": self.records,
            "bytes": self.bytes,
            "unreachable": self.unreachable,
            "undecoded": 0 if self.undecoded is None else self.undecoded.count,
            "changed": self.changed,
            "bytes_after": self.bytes_after,
        }


def cost_of_scan(spark: SparkSession, plan: ErasurePlan, selector: Selector, fetch: int) -> Cost:
    """The cost to find the matching records. The fields of values are found before."""
    once = _cost(spark, plan.selected(selector), fetch)
    return once + once if selector.decodes else once


def cost_of_run(
    spark: SparkSession,
    plan: ErasurePlan,
    matches: Matches,
    selector: Selector,
    settings: ErasureSettings,
) -> Cost:
    """The cost of a run with these matches: two more reads of the segments that are written (one
    verifies the new ones), and of everything for the selection and for the proof."""
    written = _worked_on(plan, matches, settings)
    scanned = _cost(spark, plan.selected(selector), settings.fetch_bytes)
    rewritten = _cost(spark, written, settings.fetch_bytes)
    puts = Cost(puts=_STAGING_PUTS * len(written), heads=len(written), lists=2)
    return scanned + scanned + rewritten + rewritten + puts


def _cost(spark: SparkSession, pieces: Sequence[Piece], fetch_bytes: int) -> Cost:
    sizes = [piece.segment.segment_size_in_bytes for piece in pieces]
    gets = sum(-(-size // fetch_bytes) for size in sizes) + _INDEX_GETS * len(sizes)
    return Cost(gets=gets, bytes_read=sum(sizes), tasks=parallel_tasks(spark))


def _worked_on(plan: ErasurePlan, matches: Matches, settings: ErasureSettings) -> list[Piece]:
    if not settings.in_place:
        return list(plan.pieces)
    return [piece for piece in matches.matching(plan.pieces) if piece.is_cleaned]


def erase(
    spark: SparkSession,
    plan: ErasurePlan,
    matches: Matches,
    selector: Selector,
    settings: ErasureSettings,
    progress: Callable[[str], None] = lambda text: None,
    tables: Sequence[OpenedTable] = (),
    earlier: ErasureCertificate | None = None,
) -> tuple[ErasureCertificate, list[PartitionReport]]:
    """Delete the rows of matching records from the tables, and stage the segments with matches,
    without the matching records. Then publish a copy, or leave the journals of a run in place to
    the broker. The certificate says nothing of a proof yet, and is stored before anything is
    published: after a crash `--verify` finishes the proof. `earlier` is that of the run's passes
    before, which it includes.

    The tables come first: if the run ends before the publication, the next one finds the same
    records. After an error `recover` removes the staged segments.
    """
    check_target(plan.partitions, settings)
    run = new_run() if earlier is None else earlier.run
    erased_tables: Sequence[ErasedTable] = ()
    if tables:
        offsets = erased_offsets(matches.selection, matches.counts, plan.pieces)
        before: ErasedOffsets = {} if earlier is None else get_offsets(settings, run)
        put_offsets(settings, run, joined_offsets(before, offsets))
        erased_tables = erase_rows(spark, tables, offsets, run, progress)
    worked_on = _worked_on(plan, matches, settings)
    staged: list[StagedPiece] = []
    journals = open_journals(settings.written)
    started: list[RewriteJournal] = []
    if worked_on:
        progress(f"writing {len(worked_on)} segments again")
        started = begin_journals(journals, run, worked_on, settings)
        staged = _stage_all(spark, worked_on, matches, run, settings)
    certificate = replace(
        _certificate(run, plan, matches, selector, settings, staged),
        tables=tuple(erased_tables),
        protection=read_protection(settings.written, settings.now_ms),
    )
    if earlier is not None:
        certificate = joined(earlier, certificate)
    put_certificate(settings, certificate)
    if started:
        progress("publishing")
        end_staging(journals, started, staged, settings)
    return certificate, report(plan, matches, staged)


def _stage_all(
    spark: SparkSession,
    pieces: Sequence[Piece],
    matches: Matches,
    run: str,
    settings: ErasureSettings,
) -> list[StagedPiece]:
    rewrite = _Rewrite(
        TaskSettings(
            run=run,
            source=settings.source,
            target=settings.written,
            rules=settings.rules,
            in_place=settings.in_place,
        ),
        settings.rules,
    )
    if sum(matches.counts.values()) <= OFFSETS_WITH_TASKS_MAX:
        offsets, none = matches.selection.offsets_of_pieces(), np.array([], dtype=np.int64)

        def of_task(own: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
            return rewrite((piece, offsets.get(piece.number, none)) for piece in own)

        staged = map_pieces(spark, pieces, of_task, STAGED_COLUMNS)
    else:
        by_number = {piece.number: piece for piece in pieces}

        def of_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return rewrite(
                (by_number[number], relative) for number, relative in offsets_of_pieces(batches)
            )

        rows = offset_tasks(spark, pieces, matches.selection.records)
        staged = rows.mapInArrow(of_rows, STAGED_COLUMNS)
    return staged_pieces(pieces, staged.collect())


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Writes and stages pieces without the records at some offsets, in a task."""

    tasks: TaskSettings
    rules: ErasureRules

    def __call__(self, pieces: Iterator[tuple[Piece, Int64Array]]) -> Iterator[pa.RecordBatch]:
        stager = Stager(self.tasks)
        for piece, offsets in pieces:
            with task_folder("isotherm-erase-") as folder:
                rewritten = erase_piece(
                    stager.source, piece, offsets, self.rules, stager.new_id(piece), folder
                )
                row = stager.stage(piece, rewritten)
            yield row


def report(
    plan: ErasurePlan, matches: Matches, staged: Sequence[StagedPiece] = ()
) -> list[PartitionReport]:
    reports = []
    for partition in plan.partitions:
        pieces = plan.pieces_of(partition)
        matching = matches.matching(pieces)
        mine = [
            staged_piece
            for staged_piece in staged
            if staged_piece.replacement is not None
            and staged_piece.piece.segment.topic_id_partition == partition
        ]
        reports.append(
            PartitionReport(
                partition,
                segments=len(pieces),
                matching=len(matching),
                records=matches.count(pieces),
                bytes=sum(piece.segment.segment_size_in_bytes for piece in matching),
                unreachable=len(plan.unreachable[partition]),
                undecoded=matches.undecoded_in(pieces),
                changed=len(mine),
                bytes_after=sum(staged_piece.bytes_written for staged_piece in mine),
            )
        )
    return reports


def _certificate(
    run: str,
    plan: ErasurePlan,
    matches: Matches,
    selector: Selector,
    settings: ErasureSettings,
    staged: Sequence[StagedPiece],
) -> ErasureCertificate:
    partitions = []
    for partition, unreachable in plan.unreachable.items():
        pieces = plan.pieces_of(partition)
        reached = [piece for piece in pieces if piece.is_cleaned]
        partitions.append(
            ErasedPartition(
                partition=partition,
                start_offset=pieces[0].start_offset if pieces else 0,
                end_offset=pieces[-1].end_offset if pieces else 0,
                matched=matches.count(reached),
                undecoded=0 if (dead := matches.undecoded_in(pieces)) is None else dead.count,
                segments=tuple(
                    _erased_segment(staged_piece)
                    for staged_piece in staged
                    if staged_piece.piece.segment.topic_id_partition == partition
                    and staged_piece.replacement is not None
                ),
                unreachable=tuple(unreachable),
            )
        )
    return ErasureCertificate(
        run=run,
        action=settings.action.value,
        fields=tuple(".".join(path) for path in settings.fields),
        selector=selector.digest,
        in_place=settings.in_place,
        location=f"{settings.written.url} {settings.written.key_prefix or ''}".rstrip(),
        time_ms=settings.now_ms,
        partitions=tuple(partitions),
        value_type=type_text(matches.value_type),
    )


def _erased_segment(staged: StagedPiece) -> ErasedSegment:
    assert staged.replacement is not None, "of the others nothing is said"
    old, new = staged.replacement.old, staged.replacement.new
    return ErasedSegment(
        start_offset=new.start_offset,
        end_offset_inclusive=new.end_offset_inclusive,
        old=uuid_to_text(old.segment_id.id),
        new=uuid_to_text(new.segment_id.id),
        old_size=old.segment_size_in_bytes,
        new_size=new.segment_size_in_bytes,
    )
