"""`isotherm pipeline repartition`: copies a topic into a new one with other partitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions
from isotherm.cli.output import console, error_console, print_json, print_rows
from isotherm.cli.pipeline_load import (
    WAIT_S_DEFAULT,
    BatchSize,
    Compression,
    PartitionerOption,
    Run,
    SegmentBytes,
    WaitS,
    options_of,
    print_reports,
    settings_of,
)
from isotherm.cli.pipeline_options import (
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    progress,
    source_texts,
    spark_session,
)
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError, PolicyViolationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.spark.jobs.offsets_map import CopiedTo
    from isotherm.spark.jobs.repartition import OldRange
    from isotherm.spark.jobs.repartition_runs import CopyReport, Repartition

Old = Annotated[str, typer.Argument(metavar="OLD", help="The topic to copy.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The new topic: tiered, without records.")]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions", min=1, help="Create NEW with so many partitions unless it exists."
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--groups",
        metavar="GROUP",
        help="A group whose committed offsets of OLD are translated, and with --run committed for"
        " NEW. May be given many times. Its members must be stopped.",
    ),
]
FromOffsets = Annotated[
    str | None,
    typer.Option(
        "--from-offsets",
        metavar="JSON",
        help="The end of the last run, as it printed it: only what has arrived since is copied,"
        " and appended.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Append what has arrived since, again and again, until the lag is at most --lag-ms.",
    ),
]
LagMs = Annotated[
    int,
    typer.Option(
        min=0,
        help="With --follow, milliseconds from the moment when a run reads where OLD ends until"
        " its records are in NEW.",
    ),
]
OffsetsMap = Annotated[
    str | None,
    typer.Option(
        "--offsets-map",
        metavar="FOLDER",
        help="Keep the map from old offsets to new ones in this folder as Parquet, as Spark has"
        " the path. Later runs with the same folder go on where it ends.",
    ),
]
LAG_MS_DEFAULT = 60_000


@with_groups
def repartition(
    old: Old,
    new: New,
    *,
    partitions: Partitions = None,
    groups: Groups = None,
    from_offsets: FromOffsets = None,
    follow: Follow = False,
    lag_ms: LagMs = LAG_MS_DEFAULT,
    offsets_map: OffsetsMap = None,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    partitioner: PartitionerOption = "murmur2",
    compression: Compression = None,
    batch_size: BatchSize = None,
    segment_bytes: SegmentBytes = None,
    run: Run = False,
    wait_s: WaitS = WAIT_S_DEFAULT,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Copy a topic's records into the history of a new topic with another number of partitions.

    Records of one key keep their order, timestamps and headers stay. The committed records of OLD
    are read from the bucket, and the last ones from its brokers. The records are written into the
    bucket of NEW, and its broker adopts them. Until producers are switched, --follow, or runs with
    --offsets-map or --from-offsets, copy what has arrived since. Nothing is written without --run.

    isotherm pipeline repartition old new --partitions 24 -b broker:9092 --path s3://bucket --run

    Exit codes: 0 done · 1 failed or refused, or the lag stays above --lag-ms · 2 wrong options.
    """
    from isotherm.spark.jobs import repartition_runs as job
    from isotherm.spark.option_parsing import parse_options
    from isotherm.spark.options import READ_COMMITTED
    from isotherm.spark.tier.open_log import open_brokers

    _check_options(old, new, groups, from_offsets, offsets_map, follow=follow)
    options = options_of(new, path, option, bootstrap_server, client)
    texts = source_texts(path, option, bootstrap_server, client.properties)
    texts.pop("subscribePattern", None)
    # Behind the last stable offset there are records of open transactions: not yet committed.
    committed = {"subscribe": old, "isolationLevel": READ_COMMITTED}
    brokers = open_brokers(parse_options({**texts, **committed}))
    if brokers is None:
        raise ConfigError("the cluster is not named hint='name it with --bootstrap-server'")
    plan = job.Repartition(
        old=old,
        new=new,
        old_texts=texts,
        options=options,
        brokers=brokers,
        settings=settings_of(
            partitioner, None, compression, batch_size, segment_bytes, appends=False
        ),
        wait_s=wait_s,
        offsets_map=offsets_map,
    )
    since = job.NOTHING_COPIED
    if from_offsets is not None:
        since = job.parse_copied_to(from_offsets, old, new)
    with progress("reading the topics"):
        ranges = job.ranges_to_copy(plan, since)
    if not run and offsets_map is None:
        _print_ranges(old, ranges, as_json=as_json)
        return
    with spark_session(spark_options) as spark:
        if offsets_map is not None:
            since = job.since_of_map(spark, plan)
        if not run:
            _print_ranges(old, job.ranges_to_copy(plan, since), as_json=as_json)
            return
        if partitions is not None:
            brokers.create_topic(new, partitions, brokers.own_topic_config(old))
        limit_ms = lag_ms if follow else None
        reports = _copy(spark, plan, since, groups or [], limit_ms)
    text = job.copied_to_text(reports[-1].copied_to, old, new)
    _print_runs(reports, text, as_json=as_json)
    if follow and reports[-1].lag_ms > lag_ms:
        raise PolicyViolationError(
            f"the lag does not become smaller lag_ms={reports[-1].lag_ms} limit_ms={lag_ms}"
            f" runs={len(reports)} hint='give a larger --lag-ms: a run has a fixed cost'"
        )


def _copy(
    spark: SparkSession,
    plan: Repartition,
    since: CopiedTo,
    groups: list[str],
    lag_ms_max: int | None,
) -> list[CopyReport]:
    from isotherm.spark.jobs import repartition_runs as job

    adopted = []
    with progress("copying") as show_step:
        for report in job.runs(spark, plan, since, groups, lag_ms_max, show_step, SystemClock()):
            if report.is_adopted:
                adopted.append(report)
            elif plan.offsets_map is None:
                text = job.copied_to_text(report.copied_to, plan.old, plan.new)
                error_console().print(
                    "all is staged; when the broker has adopted it, what arrives from now on:"
                    f" --from-offsets '{text}'",
                    soft_wrap=True,
                )
    return adopted


def _check_options(
    old: str,
    new: str,
    groups: list[str] | None,
    from_offsets: str | None,
    offsets_map: str | None,
    *,
    follow: bool,
) -> None:
    if old == new:
        raise ConfigError(f"a topic cannot be copied into itself topic={old}")
    if from_offsets is not None and offsets_map is not None:
        raise ConfigError(
            "the map says where the last run has ended options=--from-offsets,--offsets-map"
        )
    if follow and groups:
        raise ConfigError(
            "groups go on while a topic is followed options=--follow,--groups"
            " hint='translate their offsets in a last run, when they are stopped'"
        )


def _print_runs(reports: list[CopyReport], ended_at: str, *, as_json: bool) -> None:
    from isotherm.spark.jobs.moved_offsets import TranslatedOffset

    partitions = [row for report in reports for row in report.partitions]
    groups = [translated._asdict() for report in reports for translated in report.groups]
    if as_json:
        print_json(
            {
                "partitions": [row.as_row() for row in partitions],
                "groups": groups,
                "ended_at": json.loads(ended_at),
                "lag_ms": [report.lag_ms for report in reports],
            }
        )
        return
    print_reports(partitions, run=True, as_json=False)
    if groups:
        print_rows(TranslatedOffset._fields, groups, as_json=False)
    console().print(f"\nwhat may be missing: the last {reports[-1].lag_ms} ms")
    console().print(f"what arrives from now on: --from-offsets '{ended_at}'", soft_wrap=True)


def _print_ranges(topic: str, ranges: list[OldRange], *, as_json: bool) -> None:
    rows = [
        {"topic": topic, **old_range._asdict(), "records_at_most": old_range.end - old_range.start}
        for old_range in ranges
    ]
    print_rows(("topic", "partition", "start", "end", "records_at_most"), rows, as_json=as_json)
    if not as_json:
        console().print("\nwould copy these offsets; --run does it")
