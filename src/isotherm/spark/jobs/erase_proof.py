"""Proves an erasure: reads what is left of its log and its tables, and what was not proved yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from isotherm.errors import ConfigError
from isotherm.remote.erasure.certificate import (
    ErasedTable,
    ErasureCertificate,
    covering,
    with_more_deleted,
)
from isotherm.remote.storage.bucket_protection import read_protection
from isotherm.spark.jobs.erase_certificates import get_offsets, open_certificates
from isotherm.spark.jobs.erase_leftovers import unread_segments
from isotherm.spark.jobs.erase_matches import Matches
from isotherm.spark.jobs.erase_plan import read_erasure_plan
from isotherm.spark.jobs.erase_selection import (
    ScanSettings,
    Selector,
    select_records,
)
from isotherm.spark.jobs.erase_settings import ErasureSettings
from isotherm.spark.jobs.erase_tables import (
    OpenedTable,
    count_rows,
    erase_rows,
    with_left,
)
from isotherm.spark.jobs.erase_values import type_of_text
from isotherm.spark.jobs.rewrite_run import (
    new_run,
)
from isotherm.spark.options import SourceOptions
from isotherm.types import TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    offsets = get_offsets(settings, certificate.run)
    if erases:
        more = erase_rows(spark, tables, offsets, new_run(), progress)
        seen = with_more_deleted(seen, more)
    progress("reading the tables")
    seen = with_left(seen, count_rows(spark, tables, offsets))
    return replace(certificate, tables=seen)


def _unseen(opened: OpenedTable) -> ErasedTable:
    return ErasedTable(name=opened.name, table_format=opened.table_format)


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
