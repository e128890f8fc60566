"""Erases records from a tiered topic, in place or in a copy, and proves it.

plan       the pieces of the log, and what cannot be reached (erase_plan)
select     one Spark pass reads the log and finds the matching records (erase_selection)
stage      a second pass writes the segments with matches again
publish    the driver or the broker (rewrite_run)
prove      the log is read once more up to the end of the run; the certificate says what was
           found (remote/erasure/certificate.py)
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from isotherm.errors import ConfigError
from isotherm.remote.erasure.certificate import (
    ErasedPartition,
    ErasedSegment,
    ErasedTable,
    ErasureCertificate,
    ErasureCertificates,
    covering,
    joined,
    with_more_deleted,
)
from isotherm.remote.erasure.erased_piece import EraseAction, ErasureRules, erase_piece
from isotherm.remote.erasure.redaction import FieldPath
from isotherm.remote.rewriting.journal import RewriteJournal, RunKind
from isotherm.remote.storage.bucket_protection import read_protection
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.spark.jobs.cost import Cost, parallel_tasks
from isotherm.spark.jobs.erase_leftovers import unread_segments
from isotherm.spark.jobs.erase_plan import ErasurePlan, read_erasure_plan
from isotherm.spark.jobs.erase_selection import (
    ScanSettings,
    Selection,
    Selector,
    UndecodedValues,
    select_records,
)
from isotherm.spark.jobs.erase_tables import (
    ErasedOffsets,
    OpenedTable,
    count_rows,
    erase_rows,
    erased_offsets,
    joined_offsets,
    offsets_table,
    read_offsets,
    with_left,
)
from isotherm.spark.jobs.erase_values import find_value_type, type_of_text, type_text
from isotherm.spark.jobs.rewrite_run import (
    RewriteSettings,
    begin_journals,
    check_target,
    end_staging,
    new_run,
    source_and_target,
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
from isotherm.spark.options import SourceOptions
from isotherm.spark.tables.value_types import ValueType
from isotherm.spark.task_folder import task_folder
from isotherm.types import TimestampMs, TopicIdPartition, uuid_to_text

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureSettings(RewriteSettings):
    """`fields` are those that REDACT replaces."""

    action: EraseAction
    fields: tuple[FieldPath, ...] = ()

    @property
    def rules(self) -> ErasureRules:
        return ErasureRules(
            now_ms=self.now_ms,
            fetch_bytes=self.fetch_bytes,
            action=self.action,
            fields=self.fields,
        )


def settings_of(
    options: SourceOptions,
    *,
    now_ms: TimestampMs,
    action: EraseAction,
    fields: tuple[FieldPath, ...] = (),
    keep_old_ms: int = 0,
    to_url: str | None = None,
    to_storage: dict[str, str] | None = None,
) -> ErasureSettings:
    """Settings from the options of the source, and those of a copy's target
    (`source_and_target`)."""
    source, target = source_and_target(options, to_url, to_storage)
    return ErasureSettings(
        kind=RunKind.ERASURE,
        source=source,
        target=target,
        now_ms=now_ms,
        fetch_bytes=options.fetch_bytes,
        keep_old_ms=keep_old_ms,
        action=action,
        fields=fields,
    )


@dataclass(frozen=True, slots=True)
class Matches:
    """The matching records, and their number in each piece that has some. `undecoded` has the
    values that `value_type` cannot hold, by piece."""

    selection: Selection
    counts: Mapping[int, int]
    undecoded: Mapping[int, UndecodedValues] = field(default_factory=dict)
    value_type: ValueType = None

    def unpersist(self) -> None:
        self.selection.unpersist()

    def matching(self, pieces: Sequence[Piece]) -> list[Piece]:
        return [piece for piece in pieces if self.counts.get(piece.number)]

    def count(self, pieces: Sequence[Piece]) -> int:
        return sum(self.counts.get(piece.number, 0) for piece in pieces)

    def undecoded_in(self, pieces: Sequence[Piece]) -> UndecodedValues | None:
        """The values in these pieces that cannot be decoded, if there are any."""
        found = [
            (piece, self.undecoded[piece.number])
            for piece in pieces
            if piece.number in self.undecoded
        ]
        if not found:
            return None
        piece, first = found[0]
        count = sum(values.count for _, values in found)
        return UndecodedValues(count, piece.start_offset + first.first)


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


def find_matches(
    spark: SparkSession, plan: ErasurePlan, selector: Selector, settings: ErasureSettings
) -> Matches:
    """Read the log and find the records on which the action would change something.

    Raises PolicyViolationError if DROP selects a tombstone of a compacted topic, unless all records
    of its key are selected, and for a value that REDACT cannot change. Raises ConfigError for an
    expression that Spark refuses.
    """
    scan = ScanSettings(
        source=settings.source,
        fetch_bytes=settings.fetch_bytes,
        action=settings.action,
        fields=settings.fields,
        keeps_tombstones=settings.action is EraseAction.DROP
        and bool(plan.compacted)
        and not selector.names_whole_keys,
    )
    if selector.decodes and selector.value_type is None:
        pieces = plan.selected(selector)
        selector = replace(
            selector,
            value_type=find_value_type(
                spark, pieces, selector.value_format, settings.source, settings.fetch_bytes
            ),
        )
    selection = select_records(spark, plan.pieces, selector, scan)
    return Matches(selection, *selection.counts_of_pieces(), selector.value_type)


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
        before: ErasedOffsets = {} if earlier is None else _get_offsets(settings, run)
        _put_offsets(settings, run, joined_offsets(before, offsets))
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


def prove(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    certificate: ErasureCertificate,
    now_ms: TimestampMs,
) -> ErasureCertificate:
    """Read everything below the end of the run again, and look for the old objects. The new
    certificate is not stored. `settings` are those of the run, or of a later look into the bucket
    that it wrote to.

    Call after the publication: before that the old segments answer. Raises ConfigError for another
    selector or action than those of the run.
    """
    _check_same(settings, selector, certificate)
    if settings.target is not None:
        options = replace(options, metadata="bucket", kafka_properties={}, storage_manager=None)
        settings = replace(settings, source=settings.target, target=None)
    plan = read_erasure_plan(options, settings, selector)
    ends = covering(certificate.partitions)
    below = [
        piece
        for piece in plan.pieces
        if piece.start_offset < ends.get(piece.segment.topic_id_partition, 0)
    ]
    # Not `find_matches`: a tombstone is to be found like any record.
    scan = ScanSettings(
        source=settings.source,
        fetch_bytes=settings.fetch_bytes,
        action=settings.action,
        fields=settings.fields,
    )
    selector = as_before(selector, certificate)
    selection = select_records(spark, below, selector, scan)
    matches = Matches(selection, *selection.counts_of_pieces())
    matches.unpersist()
    left = {
        partition: matches.count(
            [piece for piece in below if piece.segment.topic_id_partition == partition]
        )
        for partition in ends
    }
    unread = unread_segments(settings, certificate, plan)
    partitions = tuple(
        replace(
            erased,
            left=left[erased.partition],
            unread_segments=tuple(unread.get(erased.partition, ())),
        )
        for erased in certificate.partitions
    )
    protection = read_protection(settings.written, now_ms)
    return replace(certificate, partitions=partitions, proved_ms=now_ms, protection=protection)


def as_before(selector: Selector, certificate: ErasureCertificate) -> Selector:
    """The selector that reads values as the run of the certificate did."""
    return replace(selector, value_type=type_of_text(certificate.value_type))


def _check_same(
    settings: ErasureSettings, selector: Selector, certificate: ErasureCertificate
) -> None:
    if selector.digest != certificate.selector:
        raise ConfigError(
            "the records that are selected are not those of the certificate"
            f" run={certificate.run} hint='give the same --keys, --where, --value, --partitions,"
            " --from and --until'"
        )
    fields = tuple(".".join(path) for path in settings.fields)
    if (settings.action.value, fields) != (certificate.action, certificate.fields):
        raise ConfigError(
            f"the certificate is of another action run={certificate.run}"
            f" action={certificate.action} fields={','.join(certificate.fields)}"
        )


def see_tables(
    spark: SparkSession,
    settings: ErasureSettings,
    certificate: ErasureCertificate,
    tables: Sequence[OpenedTable],
    *,
    erases: bool,
    progress: Callable[[str], None],
) -> ErasureCertificate:
    """Look for the rows of erased records in the tables. With `erases` delete them before: a run of
    `table` that began before the publication may have added some.

    Raises ConfigError if these are not the tables of the run.
    """
    if not (tables or certificate.tables):
        return certificate
    seen = with_left(certificate.tables, [_unseen(table) for table in tables])
    offsets = _get_offsets(settings, certificate.run)
    if erases:
        more = erase_rows(spark, tables, offsets, new_run(), progress)
        seen = with_more_deleted(seen, more)
    progress("reading the tables")
    seen = with_left(seen, count_rows(spark, tables, offsets))
    return replace(certificate, tables=seen)


def _unseen(opened: OpenedTable) -> ErasedTable:
    return ErasedTable(name=opened.name, table_format=opened.table_format)


def _put_offsets(settings: ErasureSettings, run: str, offsets: ErasedOffsets) -> None:
    file = io.BytesIO()
    parquet.write_table(offsets_table(offsets), file, compression="zstd")
    open_certificates(settings).put_offsets(run, file.getvalue())


def _get_offsets(settings: ErasureSettings, run: str) -> ErasedOffsets:
    return read_offsets(open_certificates(settings).get_offsets(run))


def unproved_runs(
    settings: ErasureSettings, is_selected: Callable[[str], bool]
) -> list[ErasureCertificate]:
    """The certificates of runs over the selected topics after which nothing was read again: a crash
    came before the proof, or no one waited for it. Oldest first."""
    certificates = open_certificates(settings)
    unproved = [
        certificate
        for certificate in map(certificates.get, certificates.runs())
        if certificate.proved_ms is None
        and any(is_selected(partition.partition.topic) for partition in certificate.partitions)
    ]
    return sorted(unproved, key=lambda certificate: certificate.time_ms)


def open_certificates(settings: ErasureSettings) -> ErasureCertificates:
    client = ObjectClient(settings.written, open_object_store(settings.written, create_folder=True))
    return ErasureCertificates(client, settings.written.create_layout().root_directory)


def put_certificate(settings: ErasureSettings, certificate: ErasureCertificate) -> str:
    """Store the certificate in the bucket that the run wrote to. Returns its key."""
    return open_certificates(settings).put(certificate)
